"""Executions of this process: slots, stopping, abandoning, draining.

    accept --> wait for a slot --> execute --> settle --> acknowledge --> release
                                     |
                                   stop (timeout, cancel, fence, drain)
                                     |-- handler ends within the grace --> as above
                                     +-- it does not --> abandoned: settled without it

One asyncio task per execution; whoever claims a held task settles it, so a handler that was
abandoned, or that the heartbeat thread has timed out, cannot settle a second time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from treadle.sdk import failpoints
from treadle.sdk.errors import ServerError
from treadle.sdk.messages import Task
from treadle.sdk.subjects import RegisterAddress, step_of
from treadle.worker.execution import Call
from treadle.worker.held import HeldTable, HeldTask
from treadle.worker.items import perform
from treadle.worker.port import HeldPort, Services
from treadle.worker.settle import Settler, timeout_failure
from treadle.worker.tracing import enter
from treadle.worker.verdict import Fail, Stopped, StopReason, Verdict

if TYPE_CHECKING:
    from treadle.sdk.bus.puller import Delivery
    from treadle.worker.intake import Intake

_log = logging.getLogger("treadle.worker")

CANCEL_GRACE_S = 1.0
"""What a stopped handler has to clean up before it is abandoned."""
DRAIN_SETTLE_S = 5.0
"""After a drain: to give back what is left. What then still is held, the engines take over."""
SETTLED_MAX = 4_096
"""Tokens remembered after they were settled: a server that was killed may deliver them again."""


class Runner:
    """Executes the tasks that the intakes hand in."""

    def __init__(
        self, services: Services, settler: Settler, held: HeldTable, *, concurrency: int
    ) -> None:
        self._services = services
        self._settler = settler
        self._held = held
        self._loop = asyncio.get_running_loop()
        self._free = concurrency
        self._abandoned_max = concurrency
        self._waiting: deque[HeldTask] = deque()
        self._abandoned: set[HeldTask] = set()
        self._settled: dict[int, None] = {}
        self._reports: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._idle = asyncio.Event()
        services.on_fenced = lambda held: self.stop(held, "fenced")

    @property
    def abandoned(self) -> int:
        """Handlers that were told to stop and still run."""
        return len(self._abandoned)

    @property
    def slots(self) -> int:
        """Executions it may have under way at once."""
        return self._abandoned_max

    @property
    def slots_used(self) -> int:
        """Executions it has under way."""
        return self._abandoned_max - self._free

    @property
    def waiting(self) -> int:
        """Held tasks that wait for a slot."""
        return len(self._waiting)

    def is_executing(self, token: int) -> bool:
        """True while this process holds the task of that token."""
        return self._held.get(token) is not None

    def has_settled(self, token: int) -> bool:
        """True when this process has settled that token, as far back as it remembers."""
        return token in self._settled

    # ---------------------------------------------------------------- in

    def accept(self, held: HeldTask) -> None:
        """Hold the task; execute it as soon as there is a slot."""
        self._held.add(held)
        if self._is_draining:
            self._spawn(self._give_back(held))
        elif self._free:
            self._start(held)
        else:
            self._waiting.append(held)

    def report_lost(
        self,
        intake: Intake,
        delivery: Delivery,
        address: RegisterAddress,
        task: Task,
        reason: str,
    ) -> None:
        """Tell the engine that the execution of this delivery's task is lost."""
        work = self._settler.lost(address, task, delivery.sequence, reason, delivery.time_us)
        self._spawn(self._report(intake, delivery, work))

    def report_due(
        self, intake: Intake, delivery: Delivery, address: RegisterAddress, task: Task
    ) -> None:
        """Tell the engine that the delay of this delivery's task is over."""
        work = self._settler.due(address, task, delivery.sequence)
        self._spawn(self._report(intake, delivery, work))

    def report_unreadable(
        self, intake: Intake, delivery: Delivery, address: RegisterAddress, retry_ms: int
    ) -> None:
        """Let the engine look at a register that cannot be read; it is offered again later."""
        work = self._settler.look(address, delivery.sequence)
        self._spawn(self._report(intake, delivery, work, retry_ms=retry_ms))

    async def _report(
        self,
        intake: Intake,
        delivery: Delivery,
        work: Coroutine[Any, Any, None],
        *,
        retry_ms: int = 0,
    ) -> None:
        try:
            await work
            if retry_ms:
                delivery.nak(retry_ms)
            else:
                delivery.ack()
        except ServerError as exc:
            # Not acknowledged: it is delivered again.
            _log.warning("worker.report-unknown subject=%s: %s", delivery.subject, exc)
        finally:
            intake.finished()

    # ---------------------------------------------------------------- execute

    def _start(self, held: HeldTask) -> None:
        self._free -= 1
        held.occupies_slot = True
        held.started_s = time.monotonic()
        held.timed_s = held.started_s if held.task.chunk is None else 0.0
        held.taken_us = time.time_ns() // 1_000
        port = HeldPort(self._services, held)
        held.call = Call(held.intake.handler, held.task, held.address, port)
        if held.task.timeout_ms and held.task.chunk is None:
            held.timer = self._loop.call_later(
                held.task.timeout_ms / 1000, self.stop, held, "timeout"
            )
        if held.task.attempt > 1:
            held.voice = self._services.output.voice(held.address, held.task)
            held.voice.look_back()
        held.work = self._loop.create_task(self._execute(held, held.call))

    async def _execute(self, held: HeldTask, call: Call) -> None:
        try:
            enter(held)
            verdict = await perform(call)
            call.close()
            if held.saving is not None and held.saving.locked():
                # A checkpoint that the handler did not await moves the head: settle after it.
                async with held.saving:
                    pass
            if held.work is not None and held.work.cancelling():
                await _absorb_cancel()
            if held.voice is not None:
                await held.voice.close(patient=not isinstance(verdict, Stopped))
            await self._finish(held, verdict)
        except Exception:  # noqa: BLE001 — a runner loop
            # The task is delivered again; the other executions go on.
            _log.exception("worker.execution-failed %s", held)
        finally:
            self._abandoned.discard(held)
            self._release(held)
            self._free_slot(held)
            held.work = None

    async def _finish(self, held: HeldTask, verdict: Verdict) -> None:
        if not held.claim():
            return
        try:
            if not isinstance(verdict, Stopped):
                await self._settler.settle(held, verdict)
            elif verdict.reason == "timeout":
                await self._settler.settle(held, Fail(timeout_failure(held.task)))
            elif verdict.reason == "lost":
                reason = "its worker is stopping, or NATS was away for too long"
                queued_us = held.queued_us
                await self._settler.lost(held.address, held.task, held.token, reason, queued_us)
            else:
                # Cancelled or fenced. No acknowledgement either: if the register has moved, the
                # delivery is gone with it; if not, the redelivery puts it right.
                _log.info("worker.execution-stopped %s reason=%s", held, verdict.reason)
                return
        except ServerError as exc:
            _log.warning("worker.settle-unknown %s: %s", held, exc)
            return
        self._remember(held.token)
        held.delivery.ack()
        failpoints.reach("worker.acked")

    def _remember(self, token: int) -> None:
        self._settled[token] = None
        if len(self._settled) > SETTLED_MAX:
            del self._settled[next(iter(self._settled))]

    def _release(self, held: HeldTask) -> None:
        if held.is_released:
            return
        held.is_released = True
        held.call = None  # It leads back here: without the cycle both are freed at once.
        if held.timer is not None:
            held.timer.cancel()
        if held.grace is not None:
            held.grace.cancel()
        self._held.remove(held)
        held.intake.finished()
        self._notice_idle()

    def _free_slot(self, held: HeldTask) -> None:
        if not held.occupies_slot:
            return
        held.occupies_slot = False
        self._free += 1
        if self._waiting:
            self._start(self._waiting.popleft())

    # ---------------------------------------------------------------- stop

    def cancel(self, run: str, step: str) -> None:
        """Stop the executions of a run, or of one of its steps."""
        for held in self._held:
            names = ("", held.address.step, step_of(held.address.step))
            if held.address.run == run and step in names:
                self.stop(held, "cancelled")

    def stop(self, held: HeldTask, reason: StopReason) -> None:
        """Tell an execution to stop; abandon it if it does not. The first reason stands."""
        call = held.call
        if held.is_released or held.grace is not None:
            return
        if call is None:
            self._waiting.remove(held)
            if reason == "lost":
                self._spawn(self._give_back(held))
            else:
                self._release(held)
        elif not call.is_closed:
            call.stop(reason)
            held.grace = self._loop.call_later(CANCEL_GRACE_S, self._abandon, held, reason)

    def _abandon(self, held: HeldTask, reason: StopReason) -> None:
        if held.is_released or held.call is None or held.call.is_closed:
            return
        _log.warning(
            "worker.handler-abandoned %s: %s did not stop within %.1f s of its %s. It goes on in "
            "the background and its result is ignored. Let it end when ctx.cancelled is set, and "
            "let CancelledError pass",
            held,
            held.address.type,
            CANCEL_GRACE_S,
            reason,
        )
        held.call.close()
        self._abandoned.add(held)
        self._spawn(self._finish_abandoned(held, reason))

    async def _finish_abandoned(self, held: HeldTask, reason: StopReason) -> None:
        try:
            await self._finish(held, Stopped(reason))
        finally:
            self._release(held)
            # Each still costs memory, perhaps a thread: past a bound they keep their slots.
            if len(self._abandoned) <= self._abandoned_max:
                self._free_slot(held)

    async def _give_back(self, held: HeldTask) -> None:
        try:
            await self._finish(held, Stopped("lost"))
        finally:
            self._release(held)

    # ---------------------------------------------------------------- drain

    async def drain(self, timeout_s: float) -> None:
        """Let executions finish; after the time limit give back what is left."""
        self._is_draining = True
        while self._waiting:
            self.stop(self._waiting[0], "lost")
        if timeout_s and (running := sum(held.call is not None for held in self._held)):
            _log.info(
                "worker.waiting for %d handler%s to end, at most %g s; a second signal gives up",
                running,
                "" if running == 1 else "s",
                timeout_s,
            )
        if await self._wait_idle(timeout_s):
            return
        for held in self._held:
            self.stop(held, "lost")
        # While the server is away nothing can be given back: whoever takes over finds out.
        is_connected = self._services.output.js.connection.is_connected
        running = any(held.call is not None and not held.call.is_closed for held in self._held)
        grace_s = CANCEL_GRACE_S if running else 0.0
        if not await self._wait_idle(grace_s + (DRAIN_SETTLE_S if is_connected else 0.0)):
            _log.warning("worker.drain-incomplete held=%d", len(self._held))

    async def _wait_idle(self, timeout_s: float) -> bool:
        self._idle.clear()
        self._notice_idle()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def _notice_idle(self) -> None:
        if self._is_draining and not self._held and not self._reports:
            self._idle.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        report = self._loop.create_task(work)
        self._reports.add(report)
        report.add_done_callback(self._report_done)

    def _report_done(self, report: asyncio.Task[None]) -> None:
        self._reports.discard(report)
        if not report.cancelled() and report.exception() is not None:
            _log.error("worker.report-failed", exc_info=report.exception())
        self._notice_idle()


async def _absorb_cancel() -> None:
    """Take back a cancellation that was meant for the handler, which has ended."""
    task = asyncio.current_task()
    assert task is not None
    while task.cancelling():
        task.uncancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        pass
