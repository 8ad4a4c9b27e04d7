"""What a handler reads of its run's and its step's metadata, on a real server.
Method: a task that fails once and a loop, in a run with labels and in one without."""

from __future__ import annotations

from typing import Any

from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import Retry, Workflow
from treadle.worker import LoopContext, TaskContext, Worker


def test_a_handler_reads_the_labels_of_its_own_run_in_every_attempt(play: Play) -> None:
    seen: list[tuple[Any, Any]] = []
    workflow, worker = Workflow("labelled"), Worker()
    again = Retry(max_attempts=2, delay_s=0.01)
    first = workflow.task("first", retry=again, metadata={"team": "north"})
    workflow.agent_loop("second", max_iterations=2, after=first)

    @worker.handler("first")
    async def fails_once(ctx: TaskContext[None]) -> None:
        seen.append((dict(ctx.metadata), dict(ctx.step_metadata)))
        if ctx.attempt == 1:
            raise ValueError("again")

    @worker.handler("second")
    async def twice(ctx: LoopContext[None]) -> Any:
        seen.append((dict(ctx.metadata), dict(ctx.step_metadata)))
        return ctx.complete() if ctx.iteration else ctx.continue_()

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, id="r1", metadata={"customer": "acme"})
        await run.result(timeout_s=20)
        of_run, of_step = {"customer": "acme"}, {"team": "north"}
        assert seen == [(of_run, of_step)] * 2 + [(of_run, {})] * 2
        plain = await stand.client.start("labelled", id="r2")
        await plain.result(timeout_s=20)
        assert seen[4:] == [({}, of_step)] * 2 + [({}, {})] * 2
        assert (await stand.client.workflow("labelled")).step("first").metadata == of_step

    play(story)
