"""``--all`` of ``treadle run``: which runs, what is asked before, and what is printed.

The entry point on a real server; no engine runs, so runs are only requested.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.cli.conftest import Run
from tests.client.stage import chain, open_stage

from treadle.cli import exits
from treadle.sdk import Workflow
from treadle.sdk.children import ParentRun, child_id
from treadle.sdk.messages import Fork
from treadle.sdk.run import StepEntry
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


async def families(settings: Settings) -> None:
    """Write runs that have failed: two of ``order`` with a child each, and one tried again."""
    async with open_stage(settings) as stage:
        invoice, order = Workflow("invoice"), Workflow("order")
        invoice.task("render")
        order.sub_workflow("bill", invoice)
        await stage.client.register(invoice)
        version = await stage.client.register(order)
        known: dict[str, Any] = {"workflow": "order", "definition": version, "requested": 7}
        broken: dict[str, Any] = {"status": "failed", "failed_step": "bill"}
        bill = {"bill": StepEntry("failed", attempt=1)}
        for run in ("o1", "o2", "tried"):
            await stage.document(run, steps=bill, **known, **broken)
        await stage.document("tried-r1", fork=Fork("tried", is_retry=True), **known)
        for run in ("o1", "o2"):
            link = ParentRun(run=run, step="bill", root=run)
            child = child_id(run, 7, "bill", 1)
            await stage.document(child, workflow="invoice", status="failed", parent=link)


async def retried(settings: Settings, *runs: str) -> None:
    async with open_stage(settings) as stage:
        for run in runs:
            await stage.document(f"{run}-r1", fork=Fork(run, is_retry=True))


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
def test_what_is_left_to_parents_or_was_done_before_is_counted_apart(
    treadle: Run, settings: Settings
) -> None:
    asyncio.run(families(settings))
    every = ("run", "retry", "--all")
    dry = treadle(*every, "--dry-run")
    assert sorted(dry.out.split()) == ["o1", "o2"]
    assert "5 runs match at nats://" in dry.err
    assert ": 2 to retry, " in dry.err and "2 covered" in dry.err and "1 unchanged" in dry.err
    asked = treadle(*every, code=exits.USAGE).err
    assert "retry 2 of 5 runs (5 failed) at nats://" in asked and "2 covered" in asked
    # Of the children alone, whose parents might do the same once more.
    alone = treadle(*every, "--workflow", "invoice", "--dry-run").err
    assert "2 of them were started by runs that have failed too and do not match (o1, o2)" in alone
    # Nothing is left to be asked about once they are tried again.
    asyncio.run(retried(settings, "o1", "o2"))
    none = treadle(*every)
    assert "nothing to retry at nats://" in none.err
    assert "3 unchanged" in none.err and "2 covered" in none.err
    assert sorted(none.out.splitlines()) == ["o1  o1-r1", "o2  o2-r1", "tried  tried-r1"]


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "asked"), [("n\n", 0), ("\n", 0), ("y\n", 1)])
def test_a_person_is_asked_at_a_terminal(treadle: Run, answer: str, asked: int) -> None:
    every = ("run", "pause", "--all", "--workflow", "flow", "--until", "2999-01-01")
    done = treadle(*every, stdin=answer, terminal=True)
    assert "pause 3 runs (3 requested) at nats://" in done.err and "[y/N]" in done.err
    assert ("nothing was done" in done.err) is not bool(asked)
    assert kinds(treadle, "r2").count("run.pause_requested") == asked


@pytest.mark.slow
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
