"""The workload: handlers that only carry state. Run as ``treadle worker bench/app.py``."""

from __future__ import annotations

from typing import Any

from treadle.sdk import Workflow
from treadle.worker import LoopContext, TaskContext, Worker

STATE_BYTES = 2000
ITERATIONS_MAX = 1_000_000

worker = Worker(concurrency=256)

checkpointed = Workflow("bench-checkpoint")
checkpointed.agent_loop("loop", "bench-checkpoint", max_iterations=ITERATIONS_MAX)

carried = Workflow("bench-carry")
carried.agent_loop("loop", "bench-carry", max_iterations=ITERATIONS_MAX)

chain = Workflow("bench-chain")
first = chain.task("a", "bench-pass")
second = chain.task("b", "bench-pass", after=[first])
third = chain.task("c", "bench-pass", after=[second])


@worker.handler("bench-checkpoint")
async def checkpoint(ctx: LoopContext[dict[str, Any]]) -> object:
    """Carry 2 KB in a checkpoint: read it, change it, write it, each iteration."""
    state = await ctx.load_checkpoint(dict) or {"n": 0, "pad": "x" * STATE_BYTES}
    state["n"] += 1
    await ctx.checkpoint(state)
    if ctx.iteration + 1 >= ctx.input["n"]:
        return ctx.complete(state["n"])
    return ctx.continue_(ctx.input)


@worker.handler("bench-carry")
async def carry(ctx: LoopContext[dict[str, Any]]) -> object:
    """Carry 2 KB in the output of continue, which is the next iteration's input."""
    if ctx.iteration + 1 >= ctx.input["n"]:
        return ctx.complete(ctx.iteration + 1)
    return ctx.continue_({"n": ctx.input["n"], "pad": "x" * STATE_BYTES})


@worker.handler("bench-pass")
async def relay(ctx: TaskContext[Any]) -> object:
    """Hand a small payload on."""
    return ctx.input
