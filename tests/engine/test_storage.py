"""What a loop leaves behind does not grow with its length: one register and one checkpoint."""

from __future__ import annotations

from typing import Any

from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.worker import LoopContext, Worker
from treadle.worker.verdict import Complete, Continue

ITERATIONS = 300


def test_a_loop_of_three_hundred_iterations_keeps_two_messages(play: Play) -> None:
    async def story(stand: Stand) -> None:
        worker = Worker()

        @worker.handler("link")
        async def count(ctx: LoopContext[Any]) -> Continue | Complete:
            await ctx.checkpoint({"iteration": ctx.iteration, "text": "x" * 2_000})
            if ctx.iteration + 1 < ITERATIONS:
                return ctx.continue_(ctx.iteration + 1)
            return ctx.complete("done")

        await stand.engine()
        stand.worker(worker)
        await stand.client.start(loop(max_iterations=ITERATIONS), 0, id="run")
        assert await stand.client.result("run", timeout_s=20) == "done"
        steps = await stand.state(stand.subjects.steps_stream)
        runs = await stand.state(stand.subjects.runs_stream)
        assert (steps["messages"], runs["messages"]) == (2, 1)
        assert len(await stand.events()) == ITERATIONS + 1

    play(story)
