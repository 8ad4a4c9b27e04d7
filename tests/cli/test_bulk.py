"""``--all`` of ``treadle run``: which runs, what is asked before, and what is printed.

The entry point on a real server; no engine runs, so runs are only requested.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.cli.conftest import Run
from tests.client.stage import chain, open_stage

from treadle.cli import exits
from treadle.sdk.settings import Settings


@pytest.fixture(autouse=True)
def requested(settings: Settings) -> None:
    """Three requested runs, two of them of one customer."""

    async def story() -> None:
        async with open_stage(settings) as stage:
            await stage.client.register(chain())
            for name, customer in (("r1", "ana"), ("r2", "ben"), ("r3", "ana")):
                await stage.client.start("flow", id=name, metadata={"for": customer})

    asyncio.run(story())


def kinds(treadle: Run, run: str) -> list[str]:
    return [event["kind"] for event in treadle("run", "history", run, "--json").lines]


def test_a_dry_run_names_the_runs_and_does_nothing(treadle: Run) -> None:
    done = treadle("run", "cancel", "--all", "--where", "for=ana", "--dry-run")
    assert sorted(done.out.split()) == ["r1", "r3"]
    assert "2 runs match at nats://" in done.err and "nothing was done" in done.err
    assert kinds(treadle, "r1") == ["run.requested"]


def test_what_is_done_to_many_is_confirmed_or_asked_for_with_yes(treadle: Run) -> None:
    every = ("run", "cancel", "--all", "--where", "for=ana")
    refused = treadle(*every, code=exits.USAGE).err
    assert "cancel 2 runs (2 requested) at nats://" in refused and "give --yes" in refused
    assert kinds(treadle, "r1") == ["run.requested"]
    done = treadle(*every, "--yes", "--reason", "late", "--json").lines
    assert sorted(line["run"] for line in done[:-1]) == ["r1", "r3"]
    assert done[-1] == {"matched": 2, "counts": {"done": 2}}
    assert kinds(treadle, "r3") == ["run.requested", "run.cancel_requested"]
    assert kinds(treadle, "r2") == ["run.requested"]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "asked"), [("n\n", 0), ("\n", 0), ("y\n", 1)])
def test_a_person_is_asked_at_a_terminal(treadle: Run, answer: str, asked: int) -> None:
    every = ("run", "pause", "--all", "--workflow", "flow", "--until", "2999-01-01")
    done = treadle(*every, stdin=answer, terminal=True)
    assert "pause 3 runs (3 requested) at nats://" in done.err and "[y/N]" in done.err
    assert ("nothing was done" in done.err) is not bool(asked)
    assert kinds(treadle, "r2").count("run.pause_requested") == asked


def test_one_run_and_many_are_not_mixed_up(treadle: Run) -> None:
    usage = exits.USAGE
    assert "no run is named" in treadle("run", "cancel", code=usage).err
    assert "is named beside --all" in treadle("run", "cancel", "r1", "--all", code=usage).err
    mixed = treadle("run", "cancel", "r1", "--where", "for=ana", code=usage).err
    assert "options that are for many runs" in mixed
    status = treadle("run", "retry", "--all", "--status", "completed", "--yes", code=usage).err
    assert "no run that is 'completed' can be asked to retry" in status
    assert "--id 'x' is of one run" in treadle("run", "retry", "--all", "--id", "x", code=usage).err
    none = treadle("run", "retry", "--all", "--yes", "--json").json
    assert none == {"matched": 0, "counts": {}}
    treadle("run", "retry", "--all", "--yes", "--workflow", "flaw", code=exits.UNKNOWN)
