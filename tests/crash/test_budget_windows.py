"""Loops that share a budget stop where they may, whichever engine dies in between and where.

Real processes; each window is hit by a failpoint. The loops go on for ever: only the budget ends
them, and each iteration counts one tool call."""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.chain import TASK_TYPE, Baton, seed
from tests.crash.conftest import Play
from tests.crash.stage import Stage

from treadle.sdk import Workflow
from treadle.sdk.run import RunDocument, child_of

pytestmark = pytest.mark.slow

MOST = 6
LOOPS = 3


def endless(workflow: Workflow[Any], *names: str, **options: Any) -> Workflow[Any]:
    for name in names:
        workflow.agent_loop(name, TASK_TYPE, max_iterations=1_000, on_limit="park", **options)
    return workflow


def family() -> tuple[Workflow[Any], Workflow[Any]]:
    """A run with two loops and a child with one."""
    top = endless(Workflow("top", max_tool_calls=MOST), "one", "two")
    top.sub_workflow("sub", "below")
    return top, endless(Workflow("below"), "three")


async def parked(stage: Stage, run: str, *steps: str, beyond: int = 0) -> RunDocument:
    """Wait until steps are parked, with more than so many iterations."""

    def is_it(document: RunDocument | None) -> bool:
        entries = [document.steps.get(name) for name in steps] if document else [None]
        return all(
            entry is not None and entry.status == "parked" and entry.iterations > beyond
            for entry in entries
        )

    found = await stage.until(f"{run} parks", lambda: stage.document(run), is_it)
    assert found is not None
    return found


def used(*runs: RunDocument) -> int:
    return sum(entry.spent.tool_calls for run in runs for entry in run.steps.values())


@pytest.mark.parametrize(
    "window",
    [
        "engine.register-created=kill@1",
        "engine.register-created=kill@3",
        "engine.child-requested=kill@1",
        "engine.budget-read=kill@1",
        "engine.budget-read=kill@4",
        "engine.budget-read=kill@7",
        "engine.register-stored=kill@3",
        "engine.register-stored=kill@6",
        "engine.register-stored=kill@7",
        "engine.document-stored=kill@3",
        "engine.before-ack=kill@5",
    ],
)
def test_a_run_and_its_child_stop_at_their_budget_although_an_engine_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(window)
        stage.worker()
        top, below = family()
        await stage.client.register(below)
        await stage.client.start(top, Baton(state=seed("r"), iterations=1_000), id="r")
        await doomed.died()
        stage.engine()
        stage.engine()
        above = await parked(stage, "r", "one", "two")
        child = await parked(stage, child_of(above, "sub"), "three")
        above = await parked(stage, "r", "one", "two")
        assert MOST <= used(above, child) <= MOST - 1 + 2 * LOOPS
        await stage.settled()

    play(story)


@pytest.mark.parametrize(
    "window", ["engine.register-created=kill@2", "engine.effects-driven=kill@3"]
)
def test_a_loop_that_is_stopped_before_it_begins_is_told_although_an_engine_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(window)
        stage.worker()
        top = Workflow("top", max_tool_calls=3)
        first = top.agent_loop("first", TASK_TYPE, max_iterations=9)
        endless(top, "second", after=first)
        await stage.client.start(top, Baton(state=seed("r"), iterations=3), id="r")
        await doomed.died()
        stage.engine()
        run = await stage.status("r", "parked")
        assert used(run) == 3
        assert run.steps["second"].iterations == 0
        await stage.client.resume("r", add_tool_calls=10)
        assert (await stage.ended("r")).status == "completed"

    play(story)


@pytest.mark.parametrize("window", ["engine.run-resumed=kill@1", "engine.document-stored=kill@1"])
def test_a_budget_is_raised_once_although_its_engine_was_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        stage.worker()
        await stage.client.start(
            endless(Workflow("top", max_tool_calls=2), "one"),
            Baton(state=seed("r"), iterations=1_000),
            id="r",
        )
        await stage.status("r", "parked")
        await stage.settled()
        first.kill()
        doomed = stage.engine(window)
        await stage.client.resume("r", add_tool_calls=3)
        await doomed.died()
        stage.engine()
        run = await parked(stage, "r", "one", beyond=2)
        assert (run.limits.tool_calls, used(run)) == (5, 5)

    play(story)
