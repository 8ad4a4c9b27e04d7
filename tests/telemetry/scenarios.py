"""Runs whose traces are looked at, in the collector of a test and in real backends.

Each is played to its end on a stand whose engine exports, and returns its handle.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.agent.durable.stand import PATIENCE_S, Stand
from tests.agent.durable.test_kill import payer
from tests.agent.durable.test_subagents import clerk, lead, workflow
from tests.agent.run.family import family
from tests.nursery import agents
from tests.telemetry.researcher import research

from treadle.sdk import Client, Retry, RunHandle, Workflow
from treadle.sdk.tracing.fold import PAUSE_US_MIN
from treadle.worker import LoopContext, TaskContext, Worker

CANARY = "sk-canary-7c1f"
"""What a loop's result holds, and no span may."""
LONG = 300
"""Iterations of a long loop: more than a trace holds."""


# ------------------------------------------------------------------ a task and a loop


def report(**options: Any) -> Workflow[Any]:
    """Return a workflow of a task and a loop."""
    workflow: Workflow[Any] = Workflow("report")
    workflow.task("fetch", "fetch")
    loop: dict[str, Any] = {"max_iterations": 500, "retry": Retry(max_attempts=3, delay_s=0.1)}
    workflow.agent_loop("think", "think", after=["fetch"], **loop | options)
    return workflow


def a_worker() -> Worker:
    """Return a worker with a task, and a loop that fails once if it is asked to."""
    worker = Worker()
    failed: set[str] = set()

    @worker.handler("fetch")
    async def fetch(ctx: TaskContext[Any]) -> Any:
        return ctx.input

    @worker.handler("think")
    async def think(ctx: LoopContext[dict[str, Any]]) -> Any:
        last, fails_at = ctx.input["last"], ctx.input.get("fails_at", -1)
        if ctx.iteration == fails_at and ctx.run not in failed:
            failed.add(ctx.run)
            raise RuntimeError("no luck")
        if ctx.iteration == ctx.input.get("hangs_at", -1):
            await asyncio.sleep(60)
        if ctx.iteration == ctx.input.get("waits_at", -1) and not await ctx.messages():
            return ctx.wait("a person", state=ctx.input)
        return ctx.continue_(ctx.input) if ctx.iteration < last else ctx.complete({"k": CANARY})

    return worker


async def retried(client: Client) -> RunHandle:
    """Iteration 1 of 3 fails once."""
    run = await client.start(report(), {"last": 2, "fails_at": 1}, id="run")
    await run.result()
    return run


async def long_loop(client: Client) -> RunHandle:
    """A loop goes on in a second trace."""
    run = await client.start(report(), {"last": LONG - 1}, id="run")
    await run.result()
    return run


async def parked_and_resumed(client: Client) -> RunHandle:
    """A loop stands at its bound of 2 iterations until it gets 3 more."""
    bounded = report(max_iterations=2, on_limit="park")
    run = await client.start(bounded, {"last": 2}, id="run")
    await stood(run)
    assert (await run.get()).step("think").iterations == 2
    await run.resume(add_iterations=3)
    await run.result()
    return run


async def stood(run: RunHandle) -> None:
    """Wait until a run is parked, and has been for longer than what is taken for no wait."""
    async with asyncio.timeout(20):
        while (await run.get()).status != "parked":
            await asyncio.sleep(0.02)
        since_s = time.monotonic()
        while time.monotonic() - since_s < 2 * PAUSE_US_MIN / 1e6:
            await asyncio.sleep(0.005)


# ------------------------------------------------------------------ agents


async def _ended(run: RunHandle, result: Any) -> RunHandle:
    assert await asyncio.wait_for(run.result(), PATIENCE_S) == result
    return run


async def researched(place: Stand, dies_in: int | None = None, pace_s: float = 0) -> RunHandle:
    """Fetch, five turns of an agent with two tools in each but the last, report.

    In the turn ``dies_in`` the worker is killed within a tool, and another goes on.
    """
    module, pace = "tests.telemetry.researcher", {"RESEARCH_PACE_S": str(pace_s)}
    window = "" if dies_in is None else f"test.read-page=kill@{dies_in + 1}"
    first = place.worker(window, module, **pace)
    run = await place.client.start(research(), "looms", id="run")
    if window:
        assert await place.ended(first) == -9
        place.worker("", module, **pace)
    return await _ended(run, "LOOMS WOVE PATTERNS FROM PUNCHED CARDS.")


async def killed_worker(place: Stand, window: str) -> RunHandle:
    """An agent's worker is killed at a failpoint, and another goes on."""
    run = await place.client.start(payer(), "Pay order O-0.", id="run")
    assert await place.ended(place.worker(window, PAY_FINDS="yes")) == -9
    place.worker(PAY_FINDS="yes")
    return await _ended(run, {"paid": 201})


class Zombie:
    """A worker that was stopped before its verdict, and whose run another has ended."""

    def __init__(self, place: Stand, run: RunHandle, process: Any) -> None:
        self.run = run
        self._place = place
        self._process = process

    async def wakes(self) -> RunHandle:
        """Let it go on; return a later run that ended, whose spans come after the zombie's."""
        self._process.send_signal(signal.SIGCONT)
        later = await self._place.client.start(payer(), "Pay order O-1.", id="later")
        await asyncio.wait_for(later.result(), PATIENCE_S)
        return later


async def zombie(place: Stand) -> Zombie:
    """A worker stops before its first verdict, and another ends its run."""
    run = await place.client.start(payer(), "Pay order O-0.", id="run")
    process = place.worker("worker.settle-before=stop@1", PAY_FINDS="yes")
    await place.stopped(process)
    place.worker(PAY_FINDS="yes")
    return Zombie(place, await _ended(run, {"paid": 201}), process)


sub_agents_play = family(lead=lead, clerk=clerk)


async def sub_agents(place: Stand, **variables: str) -> RunHandle:
    """An agent hands two tasks to two others; the fake model plays ``sub_agents_play``."""
    run = await place.client.start(workflow(), "Pay both.", id="run")
    place.worker("", "family_member", PAY_STEPS="30", **variables)
    return await _ended(run, "All is paid.")


@asynccontextmanager
async def killed_engine(
    place: Stand, directory: Path, **variables: str
) -> AsyncGenerator[RunHandle]:
    """An engine is killed in a run, and another ends and exports it; the stand has none."""

    def engine(number: int, failpoints: str) -> Any:
        env = {**place.settings.to_env(), "TREADLE_FAILPOINTS": failpoints, **variables}
        log = directory / f"engine-{number}.log"
        return agents().start("treadle.cli", "engine", env=env, log=log)

    doomed = engine(0, "engine.before-ack=kill@4")
    run = await place.client.start(payer(), "Pay order O-0.", id="run")
    place.worker(PAY_FINDS="yes")
    assert await place.ended(doomed) == -9
    follower = engine(1, "")
    try:
        yield await _ended(run, {"paid": 201})
    finally:
        follower.terminate()
        follower.wait(20)
