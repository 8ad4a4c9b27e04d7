"""Whoever should send a sleeper on in the line before a provider is killed: another one does.

A real server, engines and workers as processes, killed at a failpoint, and the fake model, which
answers the first call when the test lets it. A sleeper that nobody sends on looks by itself at the
time that reservations gave it: it has to call before that.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.agent.durable.stand import PATIENCE_S, Stand, stand
from tests.agent.durable.test_provider_budget import record, started, until_in_line

from treadle.sdk import RunHandle
from treadle.sdk.settings import Settings
from treadle.worker.agent.testing import Gate, RecordedRequest, Turn, stall_after, turn
from treadle.worker.agent.testing import tool_use as call

pytestmark = [pytest.mark.slow, pytest.mark.timeout(4 * PATIENCE_S)]

BUDGET = {"PAY_TOKENS_PER_MINUTE": "1900"}
"""By what is reserved there is room for one call, and by what calls use for all of them."""
SHORT = {"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0}


class Model:
    """It answers the first call when ``gate`` is open, and all others at once."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.asked_ms: list[float] = []

    def __call__(self, request: RecordedRequest) -> Turn:
        self.asked_ms.append(time.time() * 1000)
        stall = None if len(self.asked_ms) > 1 else stall_after(0, gate=self.gate)
        return turn(call("final_output", {"paid": 0}, id="final"), usage=SHORT, fault=stall)


@asynccontextmanager
async def played(
    settings: Settings, directory: Path, *, serve: bool = True
) -> AsyncGenerator[tuple[Stand, Model]]:
    model = Model()
    async with stand(settings, directory, model, serve=serve) as place:
        try:
            yield place, model
        finally:
            model.gate.open()


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await what():
            await asyncio.sleep(0.02)


async def own_time(run: RunHandle) -> int:
    """Return when a sleeper looks by itself; it is far away."""
    due_ms = (await run.get()).step("pay").due_ms
    assert due_ms - time.time() * 1000 > 15_000
    return due_ms


def test_a_step_that_is_called_while_it_lies_down_goes_on_though_its_engine_dies(
    settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with played(settings, tmp_path, serve=False) as (place, model):
            first = place.engine()
            worker = place.worker("agent.call-waits=stop@1", **BUDGET)
            (busy,) = await started(place, "r1")

            async def is_asked() -> bool:
                return place.fake.count == 1

            await until(is_asked)
            (sleeper,) = await started(place, "r2")
            await place.stopped(worker)
            first.kill()
            first.wait()
            worker.send_signal(signal.SIGCONT)

            async def is_lying_down() -> bool:
                return "step.waiting" in [event.kind async for event in sleeper.history()]

            await until(is_lying_down)
            model.gate.open()

            async def is_called() -> bool:
                called = (await record(settings)).called
                return any(at_ms and ".r2." in place for place, at_ms in called.items())

            # No register says yet that it sleeps, so nothing is sent to it.
            await until(is_called)
            doomed = place.engine("engine.line-waits=kill@1")
            assert await place.ended(doomed) == -9
            due_ms = await own_time(sleeper)
            place.engine()
            await asyncio.wait_for(sleeper.result(), 2 * PATIENCE_S)
            await asyncio.wait_for(busy.result(), PATIENCE_S)
            assert len(model.asked_ms) == 2
            assert model.asked_ms[1] < due_ms

    asyncio.run(story())


def test_a_worker_killed_before_it_calls_whom_it_has_marked_leaves_the_call_to_the_next(
    settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with played(settings, tmp_path) as (place, model):
            doomed = place.worker("agent.line-call=kill@1", PAY_SLOTS="1", **BUDGET)
            (first,) = await started(place, "r1")

            async def is_asked() -> bool:
                return place.fake.count == 1

            await until(is_asked)
            place.worker(**BUDGET)
            sleepers = list[RunHandle]()
            for name in ("r2", "r3"):
                sleepers += await started(place, name)
                await until_in_line(sleepers[-1], "pay")
            due_ms = await own_time(sleepers[0])
            model.gate.open()
            assert await place.ended(doomed) == -9
            marks = (await record(settings)).called
            assert any(at_ms and ".r2." in place for place, at_ms in marks.items())
            async with asyncio.timeout(2 * PATIENCE_S):
                await asyncio.gather(*(run.result() for run in (first, *sleepers)))
            assert len(model.asked_ms) == 4, "the call of the dead is made again"
            assert model.asked_ms[1] < due_ms

    asyncio.run(story())
