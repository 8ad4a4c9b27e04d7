"""A published event completes every step that waits for it, whichever process dies and where.

Real processes; the window is hit by a failpoint, in the engine that looks after the wait or in the
one that lets the event meet it. The step has its event's payload, whoever gave it."""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

from treadle.sdk import Workflow

pytestmark = pytest.mark.slow

NAME = "order.paid"
RUNS = 3


def order() -> Workflow:
    """Return a workflow of two waits, one behind the other."""
    workflow = Workflow("order", input=dict)
    first = workflow.wait_for_event("first", NAME, match='event["id"] == input["id"]')
    workflow.wait_for_event("second", NAME, match='event["n"] > 1', after=first)
    return workflow


async def keys(stage: Stage) -> list[str]:
    s = stage.subjects
    found = stage.js.read(s.waiters_stream, s.all_waiters)
    return [e.subject async for e in found if e.data and not s.is_indexed_path(e.subject)]


async def start(stage: Stage) -> None:
    await stage.client.register(order())
    for n in range(RUNS):
        await stage.client.start("order", {"id": 7}, id=f"r{n}")


async def finished(stage: Stage) -> None:
    """Publish both events, and see that every run gets each of them once."""
    await stage.client.publish_event(NAME, {"id": 7, "n": 1}, id="one")
    for n in range(RUNS):
        run = f"r{n}"
        await stage.until(
            "the first wait is over",
            lambda run=run: stage.document(run),  # type: ignore[misc]
            lambda document: (
                document is not None
                and "first" in document.steps
                and document.steps["first"].status == "completed"
            ),
        )
    await stage.client.publish_event(NAME, {"id": 8, "n": 2}, id="two")
    for n in range(RUNS):
        assert await stage.client.result(f"r{n}", timeout_s=20) == {"id": 8, "n": 2}
    await stage.until("nobody waits", lambda: keys(stage), lambda left: not left)


@pytest.mark.parametrize(
    "window",
    [
        "engine.document-stored",
        "engine.waiter-stored",
        "engine.waiter-looked-back",
        "engine.effects-driven",
        "engine.event-told",
        "engine.event-met",
        "engine.waiter-forgotten",
    ],
)
@pytest.mark.parametrize("times", [1, 2])
def test_every_run_gets_its_events_although_an_engine_was_killed_at(
    play: Play, window: str, times: int
) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(f"{window}=kill@{times}")
        await start(stage)
        second = stage.engine()
        await finished(stage)
        assert second.is_running
        doomed.kill()

    play(story)


def test_an_event_that_was_found_in_looking_back_is_given_although_the_engine_was_killed(
    play: Play,
) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        await stage.settled()
        first.kill()
        await first.died()
        await start(stage)
        await stage.client.publish_event(NAME, {"id": 7, "n": 1}, id="one")
        doomed = stage.engine("engine.earlier-event-told=kill@1")
        await doomed.died()
        stage.engine()
        await finished(stage)

    play(story)


@pytest.mark.parametrize(
    "window", ["engine.waiter-stored", "engine.waiter-looked-back", "engine.event-told"]
)
def test_an_engine_that_slept_while_others_went_on_leaves_nothing_behind(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        sleeper = stage.engine(f"{window}=stop@1")
        await start(stage)
        stage.engine()
        await finished(stage)
        sleeper.go_on()
        await stage.settled()
        await stage.until("nobody waits", lambda: keys(stage), lambda left: not left)

    play(story)


@pytest.mark.parametrize(
    "window",
    [
        "engine.document-stored",
        "engine.waiter-stored",
        "engine.waiter-looked-back",
        "engine.earlier-event-told",
        "engine.effects-driven",
        "engine.event-told",
        "engine.event-met",
        "engine.waiter-forgotten",
    ],
)
def test_a_run_is_cancelled_by_its_event_although_an_engine_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(f"{window}=kill@1")
        workflow = Workflow("order", input=dict, cancel_on={NAME: 'event["id"] == input["id"]'})
        workflow.wait_for_signal("never")
        await stage.client.start(workflow, {"id": 6}, id="other")
        await stage.client.start(workflow, {"id": 7}, id="run")
        await stage.client.publish_event(NAME, {"id": 7}, id="stop")
        stage.engine()
        ended = await stage.ended("run")
        assert ended.status == "cancelled"
        await stage.until("its wait is over", lambda: keys(stage), lambda left: len(left) == 1)
        other = await stage.document("other")
        assert other is not None and other.status == "running"
        doomed.kill()

    play(story)


@pytest.mark.parametrize("verdict", ["approve", "reject"])
@pytest.mark.parametrize("window", ["engine.events-taken", "engine.document-stored"])
def test_an_answer_decides_once_although_the_engine_was_killed_at(
    play: Play, window: str, verdict: str
) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        workflow = Workflow("gate")
        workflow.approval("gate")
        run = await stage.client.start(workflow, id="run")
        await stage.until("it is asked", stage.client.approvals, bool)
        await stage.settled()
        first.kill()
        await first.died()
        doomed = stage.engine(f"{window}=kill@1")
        answer = run.approve if verdict == "approve" else run.reject
        sequence = await answer("gate", "gate", by="ada")
        await doomed.died()
        stage.engine()
        ended = await stage.ended("run")
        assert ended.steps["gate"].event == f"e{sequence}"
        assert ended.status == ("completed" if verdict == "approve" else "failed")

    play(story)
