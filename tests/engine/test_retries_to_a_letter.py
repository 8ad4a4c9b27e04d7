"""A retry is used up exactly, and ends in a dead letter, by each way in which it travels.
Method: a handler that fails four times on a real server; its delays are held by a worker, slept in
the timers stream, or belong to the chunk of a map or to a step that starts runs."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import Retry, Workflow
from treadle.sdk.run import child_of
from treadle.worker import LoopContext, TaskContext, Worker

FOUR = Retry(max_attempts=4, backoff="fixed", delay_s=0.03, jitter=0)
ALL = [1, 2, 3, 4]


def failing(seen: list[int]) -> Worker:
    """Return a worker that fails, and notes which attempt it was."""
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: TaskContext[Any]) -> None:
        seen.append(ctx.attempt)
        raise OSError(f"failure {len(seen)}")

    @worker.handler("link")
    async def link(ctx: LoopContext[Any]) -> Any:
        if ctx.iteration == 0:
            return ctx.continue_()
        seen.append(ctx.attempt)
        raise OSError(f"failure {len(seen)}")

    return worker


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every delay be slept in the timers stream, however short."""
    module = sys.modules["treadle.engine.core.advance"]  # Its function has the same name.
    monkeypatch.setattr(module, "DELAY_BY_WORKER_MS_MAX", 0)


def one(kind: str) -> Workflow[Any]:
    workflow = Workflow[Any]("failing")
    if kind == "task":
        workflow.task("step", "work", retry=FOUR)
    elif kind == "loop":
        workflow.agent_loop("step", "link", max_iterations=3, retry=FOUR)
    else:
        workflow.map("step", "work", retry=FOUR)
    return workflow


def uses_up(play: Play, kind: str) -> None:
    """Start a run whose only step fails four times, and look at what is left of it."""

    async def story(stand: Stand) -> None:
        seen: list[int] = []
        await stand.engine()
        stand.worker(failing(seen))
        await stand.client.start(one(kind), ["item"], id="run")
        assert (await stand.ended("run", timeout_s=10)).status == "failed"
        await stand.quiet(0.3)
        assert seen == ALL
        (letter,) = await stand.letters()
        assert (letter.reason, letter.run, letter.step) == ("run_failed", "run", "step")
        assert letter.failure is not None
        assert letter.failure.message.endswith("failure 4")
        if kind != "map":
            stored = [event.data for event in await stand.events("run")]
            assert sum(b'"step.failed"' in each for each in stored) == 4

    play(story)


@pytest.mark.parametrize("kind", ["task", "loop", "map"])
@pytest.mark.slow
def test_held_by_a_worker(play: Play, kind: str) -> None:
    uses_up(play, kind)


@pytest.mark.parametrize("kind", ["task", "loop", "map"])
@pytest.mark.slow
@pytest.mark.usefixtures("slept")
def test_slept_in_the_timers_stream(play: Play, kind: str) -> None:
    uses_up(play, kind)


@pytest.mark.slow
def test_of_a_step_that_starts_runs(play: Play) -> None:
    child = Workflow("child")
    child.task("step", "work")
    workflow = Workflow("parent")
    workflow.sub_workflow("sub", "child", retry=FOUR)

    async def story(stand: Stand) -> None:
        seen: list[int] = []
        await stand.engine()
        stand.worker(failing(seen))
        await stand.client.register(child)
        await stand.client.start(workflow, id="run")
        ended = await stand.ended("run", timeout_s=10)
        await stand.quiet(0.3)
        assert seen == [1, 1, 1, 1], "each is the first attempt of another run"
        children = [child_of(ended, "sub", attempt) for attempt in ALL]
        letters = {letter.run: letter for letter in await stand.letters()}
        assert set(letters) == {"run", *children}
        assert len(await stand.letters()) == 5
        mine = letters["run"]
        assert (mine.reason, mine.step) == ("run_failed", "sub")
        assert mine.failure is not None
        assert "failure 4" in mine.failure.message
        assert await stand.document(child_of(ended, "sub", 5)) is None

    play(story)
