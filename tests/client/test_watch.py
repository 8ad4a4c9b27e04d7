"""Watching a run, its history, and the list of runs.

A real server and the client; events and documents are written by hand.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.client.stage import Stage, chain, completed, continued, done, play, raw

from treadle.sdk.client import RunEvent
from treadle.sdk.messages import Failure, RunRequested, StepFailed, TaskDue, TaskLost
from treadle.sdk.run import StepEntry
from treadle.sdk.settings import Settings


def lines(events: list[RunEvent]) -> list[tuple[Any, ...]]:
    """What a person would see, without times."""
    return [(e.kind, e.step, e.iteration, e.status) for e in events]


async def _begin(stage: Stage) -> str:
    version = await stage.client.register(chain())
    await stage.event("r1", RunRequested(workflow="flow", definition=version, input=raw({"n": 1})))
    return version


def test_a_watcher_sees_what_was_before_it_came_and_all_that_follows(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        first = await stage.event("r1", completed("first", 3, {"n": 2}))
        steps: dict[str, StepEntry] = {"first": done(f"e{first}"), "loop": StepEntry("active")}
        await stage.document("r1", definition=version, steps=steps)
        seen: list[RunEvent] = []

        async def watch() -> None:
            async for event in stage.client.watch("r1"):
                seen.append(event)

        watching = asyncio.create_task(watch())
        async with asyncio.timeout(10):
            while len(seen) < 4:
                await asyncio.sleep(0.005)
            for iteration in range(3):
                await stage.event("r1", continued(iteration, token=10 + iteration))
                while len(seen) < 5 + iteration:
                    await asyncio.sleep(0.005)
            last = await stage.event("r1", completed("loop", 20, "end"))
            steps["loop"] = done(f"e{last}", iterations=4)
            await stage.document(
                "r1", definition=version, status="completed", steps=steps, ended_ms=2_000
            )
            await watching
        assert sorted(map(str, lines(seen[:4]))) == sorted(
            map(
                str,
                [
                    ("run.requested", "", None, ""),
                    ("step.started", "first", None, ""),
                    ("step.ended", "first", None, "completed"),
                    ("step.started", "loop", None, ""),
                ],
            )
        )
        assert lines(seen[4:]) == [
            *(("step.continued", "loop", n, "") for n in range(3)),
            ("step.ended", "loop", None, "completed"),
            ("run.ended", "", None, "completed"),
        ]
        assert bytes(seen[-2].value) == b'"end"' and seen[-2].iterations == 4

    play(settings, story)


def test_a_repeated_or_late_settle_is_watched_once_and_kept_in_the_history(
    settings: Settings,
) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        lost = TaskLost(step="loop", type="think", token=10, reason="gone")
        failed = StepFailed(step="loop", type="think", token=11, head=11, failure=Failure("Boom"))
        due = TaskDue(step="loop", type="think", token=12)
        for event in (
            continued(0, token=9),
            continued(0, token=9),  # Published twice.
            lost,
            continued(1, token=10),  # Late: its execution was given up.
            failed,
            due,
            continued(1, token=13),
            continued(1, token=9),  # A zombie.
        ):
            await stage.event("r1", event)
        await stage.document("r1", definition=version, status="cancelled", ended_ms=5)
        watched = [event async for event in stage.client.watch("r1")]
        assert [(e.kind, e.iteration) for e in watched if e.step == "loop"] == [
            ("step.continued", 0),
            ("task.lost", 0),
            ("step.failed", 0),
            ("step.continued", 1),
        ]
        history = [event async for event in stage.client.history("r1")]
        assert len(history) == 9
        assert [event.sequence for event in history] == sorted(e.sequence for e in history)
        assert history[0].name == "flow" and bytes(history[0].value) == b'{"n":1}'
        assert "Boom" in str(history[5])

    play(settings, story)


def test_a_parked_run_is_told_and_watched_on_after_its_resume(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        steps = {"loop": StepEntry("parked", 5, 1, failure=Failure("max_iterations"))}
        await stage.document("r1", definition=version, status="parked", steps=steps)
        events = stage.client.watch("r1")
        seen = [await anext(events) for _ in range(3)]
        assert [event.kind for event in seen] == ["step.started", "run.requested", "step.parked"]
        await stage.document("r1", definition=version, steps={"loop": StepEntry("active", 0, 1)})
        assert (await anext(events)).kind == "step.resumed"
        await stage.document("r1", definition=version, status="cancelled", ended_ms=9)
        assert [event.kind async for event in events] == ["run.ended"]

    play(settings, story)


def test_bytes_that_are_no_event_are_shown_as_corrupt(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await _begin(stage)
        await stage.js.store(stage.subjects.event("r1"), b"\xff{not json")
        kinds = await stage.stored("r1")
        assert kinds == ["run.requested", "corrupt"]

    play(settings, story)


def test_runs_are_listed_newest_first_and_filtered(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        for n in range(5):
            status = "completed" if n % 2 else "running"
            await stage.document(f"r{n}", requested_ms=100 - n, status=status)
        await stage.document("x", workflow="other", requested_ms=1)
        await stage.document("r0", requested_ms=100, status="parked")
        client = stage.client
        assert [view.id for view in await client.list()] == ["r0", "r1", "r2", "r3", "r4", "x"]
        assert [view.id for view in await client.list(limit=2)] == ["r0", "r1"]
        assert [view.id for view in await client.list("other")] == ["x"]
        assert [view.id for view in await client.list(status="completed")] == ["r1", "r3"]

    play(settings, story)


def test_a_watch_that_is_left_early_ends_without_a_complaint(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stage: Stage) -> None:
        await _begin(stage)
        async for event in stage.client.watch("r1"):
            assert event.kind == "run.requested"
            break
        kept = stage.client.watch("r1")
        await anext(kept)
        held.append(kept)  # Still open when the event loop ends.

    held: list[object] = []
    play(settings, story)
    assert caplog.records == []
