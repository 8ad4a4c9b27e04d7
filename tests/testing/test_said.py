"""What handlers say in a simulated run can be asserted on.

The real handlers and the real core, in memory and in virtual time.
"""

from __future__ import annotations

import asyncio

from treadle.sdk import Retry, Workflow
from treadle.sdk.chunks import Progress, Text
from treadle.sdk.testing import simulate
from treadle.worker import LoopContext, SyncTaskContext, Worker


def test_a_simulated_run_tells_what_each_attempt_has_said() -> None:
    workflow, worker = Workflow("talk"), Worker()
    first = workflow.task("first", "plain")
    workflow.agent_loop("loop", "loop", after=[first], max_iterations=5, retry=Retry(3))

    @worker.handler("plain")
    def plain(ctx: SyncTaskContext[None]) -> None:
        ctx.report({"done": 1})

    @worker.handler("loop")
    async def loop(ctx: LoopContext[None]) -> object:
        ctx.write(f"{ctx.iteration}.{ctx.attempt}")
        if ctx.attempt < 2 and ctx.iteration == 1:
            raise ValueError("once")
        return ctx.complete("end") if ctx.iteration == 1 else ctx.continue_()

    run = asyncio.run(simulate(workflow, None, worker))
    assert run.status == "completed"
    (_, report), *texts = run.said
    assert isinstance(report, Progress) and bytes(report.value) == b'{"done":1}'
    assert [(step, chunk.text) for step, chunk in texts if isinstance(chunk, Text)] == [
        ("loop", "0.1"),
        ("loop", "1.1"),
        ("loop", "1.2"),
    ]
    assert [(chunk.iteration, chunk.attempt) for _, chunk in texts] == [(0, 1), (1, 1), (1, 2)]
