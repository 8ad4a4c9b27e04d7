"""A step that starts a run gets its result, or ends it, whichever engine dies in between and where.

Real processes; the window is hit by a failpoint. The child's only step is a signal, so that nothing
happens between the windows by itself."""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

from treadle.sdk import Workflow
from treadle.sdk.run import RunDocument, child_of

pytestmark = pytest.mark.slow


def child() -> Workflow[Any]:
    workflow = Workflow("child")
    workflow.wait_for_signal("go")
    return workflow


def parent(*, detached: bool = False) -> Workflow[Any]:
    workflow = Workflow("parent")
    begun = workflow.wait_for_signal("begin")
    started = workflow.sub_workflow("sub", "child", after=begun, detached=detached)
    workflow.wait_for_signal("end", after=started)
    return workflow


async def waiting(stage: Stage, *, detached: bool = False) -> None:
    """Register both, and start a parent that waits to begin."""
    await stage.client.register(child())
    await stage.client.start(parent(detached=detached), id="r")
    await stage.status("r", "running")
    await stage.settled()


async def started(stage: Stage) -> str:
    """Wait until the step is active, and return the id of its run."""

    def is_it(run: RunDocument | None) -> bool:
        return run is not None and "sub" in run.steps

    run = await stage.until("the step has begun", lambda: stage.document("r"), is_it)
    assert run is not None
    return child_of(run, "sub")


async def goes_on(stage: Stage) -> None:
    """Wait until the step after it is active."""
    await stage.until(
        "the parent goes on",
        lambda: stage.document("r"),
        lambda run: run is not None and "end" in run.steps,
    )


async def count(stage: Stage, run: str, kind: str) -> int:
    return sum(f'"{kind}"'.encode() in event.data for event in await stage.events(run))


@pytest.mark.parametrize("window", ["engine.document-stored", "engine.child-requested"])
@pytest.mark.parametrize("detached", [False, True], ids=["attached", "detached"])
def test_a_child_is_requested_once_although_its_engine_was_killed_at(
    play: Play, window: str, detached: bool
) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        await waiting(stage, detached=detached)
        first.kill()
        doomed = stage.engine(f"{window}=kill@1")
        await stage.client.signal("r", "begin")
        await doomed.died()
        stage.engine()
        run = await started(stage)
        await stage.status(run, "running")
        await stage.client.signal(run, "go", "done")
        await stage.client.signal("r", "end", "over")
        assert (await stage.ended("r")).status == "completed"
        assert (await stage.ended(run)).status == "completed"
        await stage.settled()
        assert await count(stage, run, "run.requested") == 1

    play(story)


@pytest.mark.parametrize("window", ["engine.document-stored", "engine.parent-told"])
def test_a_childs_end_is_told_and_counts_once_although_its_engine_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        await waiting(stage)
        await stage.client.signal("r", "begin")
        run = await started(stage)
        await stage.status(run, "running")
        await stage.settled()
        first.kill()
        doomed = stage.engine(f"{window}=kill@1")
        await stage.client.signal(run, "go", "done")
        await doomed.died()
        stage.engine()
        await goes_on(stage)
        await stage.client.signal("r", "end", "over")
        assert await stage.client.result("r", timeout_s=15) == "over"
        ended = await stage.ended("r")
        assert ended.steps["sub"].status == "completed"
        await stage.settled()
        assert await count(stage, "r", "run.child_ended") in (1, 2)

    play(story)


@pytest.mark.parametrize("window", ["engine.document-stored", "engine.child-told"])
def test_a_child_hears_of_its_parents_end_although_its_engine_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        await waiting(stage)
        await stage.client.signal("r", "begin")
        run = await started(stage)
        await stage.status(run, "running")
        await stage.settled()
        first.kill()
        doomed = stage.engine(f"{window}=kill@1")
        await stage.client.cancel("r")
        await doomed.died()
        stage.engine()
        assert (await stage.ended(run)).status == "cancelled"
        assert (await stage.ended("r")).status == "cancelled"

    play(story)


def test_an_engine_that_slept_before_it_asked_for_a_child_starts_none_for_a_parent_that_is_over(
    play: Play,
) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        await waiting(stage)
        first.kill()
        sleeper = stage.engine("engine.document-stored=stop@1")
        await stage.client.signal("r", "begin")
        await sleeper.stopped()
        run = await started(stage)
        stage.engine()
        await stage.client.cancel("r")
        await stage.ended("r")
        await stage.settled()
        sleeper.go_on()
        await stage.settled()
        # Whichever engine asked for it: there is none, or it never began.
        document = await stage.document(run)
        assert document is None or document.status == "cancelled"

    play(story)
