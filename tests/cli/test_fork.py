"""``treadle run retry`` and ``treadle run fork``: what they print, store and refuse.

The entry point on a real server; no engine runs, what one would write is written by hand.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.cli.conftest import Run
from tests.client.stage import chain, done, ended, open_stage

from treadle.cli import exits
from treadle.sdk import Workflow
from treadle.sdk.messages import Failure
from treadle.sdk.run import StepEntry
from treadle.sdk.settings import Settings


def failed(settings: Settings) -> None:
    """Write a run whose loop has failed behind a step that has completed."""

    async def story() -> None:
        async with open_stage(settings) as stage:
            version = await stage.client.register(chain())
            await stage.client.start("flow", {"n": 1}, id="r1")
            (requested,) = [event.sequence async for event in stage.client.history("r1")]
            await stage.register("r1", "first", "work", ended("one"))
            failure = Failure("Boom", "it broke")
            steps = {"first": done(), "loop": StepEntry("failed", 0, 1_000, 2_000, failure=failure)}
            await stage.document(
                "r1",
                definition=version,
                requested=requested,
                status="failed",
                failure=failure,
                failed_step="loop",
                steps=steps,
            )

    asyncio.run(story())


@pytest.mark.slow
def test_a_retry_prints_the_new_run_which_says_what_it_was_made_of(
    treadle: Run, settings: Settings
) -> None:
    failed(settings)
    made = treadle("run", "retry", "r1", "--json").json
    assert made == {"run": "r1-r1", "forked_from": "r1"}
    assert treadle("run", "retry", "r1").out == "r1-r1\n", "again it is the same run"
    shown = treadle("run", "show", "r1-r1").out
    assert "made of run r1, with 1 of its steps: treadle run show r1" in shown
    assert treadle("run", "show", "r1-r1", "--json").json["forked_from"]["run"] == "r1"
    kinds = [event["kind"] for event in treadle("run", "history", "r1-r1", "--json").lines]
    assert kinds == ["run.outcome_kept", "run.step_given", "run.requested"]


@pytest.mark.slow
def test_a_fork_names_where_it_starts_and_refuses_what_is_not_there(
    treadle: Run, settings: Settings
) -> None:
    failed(settings)
    fork = ("run", "fork", "r1", "--from-step")
    assert treadle(*fork, "loop", "--input", "2", "--id", "other").out == "other\n"
    assert "made of run r1 from step 'loop', with 1 of" in treadle("run", "show", "other").out
    conflict = treadle(
        *fork, "loop", "--input", "3", "--id", "other", "--json", code=exits.CONFLICT
    )
    assert "Choose another run id" in conflict.json["error"]["message"]
    late = treadle(*fork, "loop", "--iteration", "4", "--json", code=exits.CONFLICT).json["error"]
    assert "no stored verdict of iteration 0" in late["message"]
    unknown = treadle(*fork, "wrap", "--json", code=exits.USAGE).json["error"]
    assert "has no step 'wrap' (it has 'first', 'loop'" in unknown["message"]


@pytest.mark.slow
def test_what_is_done_again_because_it_was_undone_is_named_before(
    treadle: Run, settings: Settings
) -> None:
    order = Workflow("order")
    look = order.task("look")
    charge = order.task("charge", after=look, compensate="refund")
    pack = order.task("pack", after=charge)
    order.task("ship", after=pack)
    order.task("refund")

    async def story() -> None:
        async with open_stage(settings) as stage:
            version = await stage.client.register(order)
            for run in ("r1", "r2"):
                await stage.client.start("order", {"n": 1}, id=run)
                (requested,) = [event.sequence async for event in stage.client.history(run)]
                steps = {"look": done(), "charge": done(), "pack": done()}
                for step in steps:
                    await stage.register(run, step, step, ended("one"))
                steps["ship"] = StepEntry("failed", 0, 1_000, 2_000, failure=Failure("Boom"))
                if run == "r1":
                    steps["refund"] = done()
                await stage.document(
                    run,
                    workflow="order",
                    definition=version,
                    requested=requested,
                    status="failed",
                    failure=Failure("Boom"),
                    failed_step="ship",
                    steps=steps,
                )

    asyncio.run(story())
    many = treadle("run", "retry", "--all", "--workflow", "order", "--dry-run").err
    assert "! 1 of them were compensated (r1): a retry executes again what was undone" in many
    told = treadle("run", "fork", "r1", "--from-step", "ship", "--id", "other", "--json")
    assert told.err.startswith(
        "! 2 steps are executed again, although it starts from step 'ship': 'charge', 'pack'."
    )
    assert treadle("run", "retry", "r1").err.startswith("! 2 steps are executed again: 'charge', ")
    assert "with 1 of its steps" in treadle("run", "show", "other").out
    assert treadle("run", "fork", "r1", "--id", "whole").err == "", "that starts all again"
    assert "made of run r1, with none of its steps:" in treadle("run", "show", "whole").out
    assert treadle("run", "retry", "r2").err == "", "nothing of it was undone"
    again = treadle("run", "retry", "--all", "--workflow", "order", "--yes", "--json").lines
    assert [line["repeated"] for line in again[:-1]] == [[], []], "both were there already"
