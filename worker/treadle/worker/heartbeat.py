"""A thread that user code cannot block: signs of life, and timeouts when the loop is stuck.

It has an event loop and a connection of its own. A few times a second it

    tells the engines that this process lives, and which tasks it holds (a beat);
    tells the server that long executions are in progress, so that none is redelivered;
    settles executions that are past their timeout when the worker's loop cannot;
    looks whether that loop is blocked, and says where: in the log, and in its presence record.

It shares the held tasks with the worker's loop; who settles one is decided by ``claim``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

import msgspec

from treadle.sdk.bus.connection import Connection, Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.errors import ServerError
from treadle.sdk.messages import Beat, Held, WorkerPresence
from treadle.sdk.presence import BEAT_S, BLOCKED_PRESENCE_S, PRESENCE_S
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects
from treadle.worker.held import HeldTable, HeldTask
from treadle.worker.settle import Settler, timeout_failure
from treadle.worker.verdict import Fail
from treadle.worker.watchdog import LoopWatch

_log = logging.getLogger("treadle.worker")

TICK_S = BEAT_S / 2
IN_PROGRESS_SHARE = 1 / 3
"""Of ack_wait: two may get lost before a task is redelivered."""
STUCK_LOOP_GRACE_S = 0.25
"""After a timeout, when the loop is blocked: it could not cancel anything."""
STUCK_HANDLER_GRACE_S = 2.0
"""After a timeout, when the loop runs: longer than it gives a cancelled handler to end."""
RESTART_S = 1.0
FIRST_BEAT_S = 2.0
"""Longest that a worker waits to be known before it takes tasks."""
FAREWELL_S = 2.0
"""Bound on the last beat, on what still has to be settled before it, and on what follows."""

_IN_PROGRESS = b"+WPI"


class Heartbeat:
    """The thread. Started and stopped by the worker's loop."""

    def __init__(
        self,
        settings: Settings,
        subjects: Subjects,
        presence: WorkerPresence,
        held: HeldTable,
        watch: LoopWatch,
        *,
        ack_wait_s: float,
    ) -> None:
        self._settings = settings
        self._subjects = subjects
        self._presence = presence
        self._held = held
        self._watch = watch
        self._touch_s = ack_wait_s * IN_PROGRESS_SHARE
        self._connected: Future[None] = Future()
        self._ended: Future[None] = Future()
        self._leaving = threading.Event()
        self._wake: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._serve, name="treadle-heartbeat", daemon=True)
        self._work: set[asyncio.Task[None]] = set()
        self._beat_due_s = 0.0
        self._presence_due_s = 0.0
        self._storing: asyncio.Task[None] | None = None
        self._is_blocked = False

    async def start(self) -> None:
        """Start the thread and wait for its first beat; raise ``ServerError`` if it fails."""
        self._thread.start()
        await asyncio.wrap_future(self._connected)

    async def stop(self) -> None:
        """Say farewell and end the thread."""
        self._leaving.set()
        self._wake()
        await asyncio.wrap_future(self._ended)

    def _serve(self) -> None:
        try:
            self._serve_until_leaving()
        finally:
            self._ended.set_result(None)

    def _serve_until_leaving(self) -> None:
        while not self._leaving.is_set():
            try:
                asyncio.run(self._main())
            except ServerError as exc:
                if not self._connected.done():
                    self._connected.set_exception(exc)
                    return
                _log.warning("worker.heartbeat-unconnected: %s", exc)
                self._leaving.wait(RESTART_S)
            except Exception as exc:  # noqa: BLE001 — a runner loop
                if not self._connected.done():
                    self._connected.set_exception(exc)
                    return
                # Without this thread every long task would be taken for lost.
                _log.exception("worker.heartbeat-failed")
                self._leaving.wait(RESTART_S)

    async def _main(self) -> None:
        name = f"treadle worker {self._presence.name} heartbeat"
        connection = await Connection.open(self._settings, name=name)
        try:
            js = JetStream(connection, message_ids=self._settings.message_ids)
            settler = Settler(js, self._subjects, self._presence.incarnation)
            woken = self._prepare_wake()
            self._presence_due_s = 0.0
            while not self._leaving.is_set():
                self._tick(js, settler)
                if not self._connected.done():
                    await self._be_known(connection)
                try:
                    async with asyncio.timeout(TICK_S):
                        await woken.wait()
                except TimeoutError:
                    pass
            await self._say_farewell(js)
        finally:
            await connection.close()

    async def _be_known(self, connection: Connection) -> None:
        """Let the worker take tasks once its first beat is with the server.

        An engine cannot miss a process it has never heard of: what one held that died in its
        first moment would stand until the ack wait is over.
        """
        try:
            await connection.flush(FIRST_BEAT_S)
        except Unknown:
            pass  # Not connected: no task is delivered either, and the next beat is near.
        if not self._connected.done():
            self._connected.set_result(None)

    def _prepare_wake(self) -> asyncio.Event:
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def wake() -> None:
            try:
                loop.call_soon_threadsafe(woken.set)
            except RuntimeError:
                pass  # It has ended already.

        self._wake = wake
        return woken

    async def _say_farewell(self, js: JetStream) -> None:
        if not js.connection.is_connected:
            return  # Nobody could hear it.
        if self._work:
            await asyncio.wait(self._work, timeout=FAREWELL_S)
        self._beat(js.connection, self._presence, leaving=True)
        try:
            await js.connection.flush(FAREWELL_S)
        except Unknown:
            return  # Engines notice an absence by themselves.
        await self._forget_presence(js)

    async def _forget_presence(self, js: JetStream) -> None:
        if self._storing is not None and not self._storing.done():
            return  # It could be stored after the purge; engines look later, and it expires.
        subject = self._subjects.worker(self._presence.incarnation)
        try:
            async with asyncio.timeout(FAREWELL_S):
                await js.purge(self._subjects.workers_stream, subject)
        except (ServerError, ApiError, Unknown, TimeoutError):
            return  # It expires by itself.

    def _tick(self, js: JetStream, settler: Settler) -> None:
        now_s = time.monotonic()
        self._watch.check(now_s)
        presence = self._present(now_s)
        self._refresh(js, presence, now_s)
        if now_s >= self._beat_due_s:
            self._beat_due_s = now_s + BEAT_S - TICK_S / 2
            self._beat(js.connection, presence, leaving=False)
        is_stuck = self._watch.stalled_s(now_s) > STUCK_LOOP_GRACE_S
        grace_s = STUCK_LOOP_GRACE_S if is_stuck else STUCK_HANDLER_GRACE_S
        for held in self._held:
            self._touch(js.connection, held, now_s)
            timeout_s = held.task.timeout_ms / 1000
            timed_s = held.timed_s
            if timeout_s and timed_s and now_s > timed_s + timeout_s + grace_s:
                self._expire(js.connection, settler, held)

    def _present(self, now_s: float) -> WorkerPresence:
        """Return the presence as it is now, with what holds the loop."""
        stall = self._watch.stall
        blocked_ms = round(self._watch.stalled_s(now_s) * 1000)
        if stall is None or blocked_ms <= 0:
            return self._presence
        entries = (
            held.entry
            for held in self._held
            if stall.task is not None and stall.task in (held.work, held.item)
        )
        entry = next(entries, None)
        return msgspec.structs.replace(
            self._presence,
            blocked_ms=blocked_ms,
            blocked_at=stall.at,
            blocked_type=entry.type if entry else "",
            blocked_run=entry.run if entry else "",
        )

    def _refresh(self, js: JetStream, presence: WorkerPresence, now_s: float) -> None:
        is_blocked = presence.blocked_ms > 0
        if is_blocked != self._is_blocked:
            self._is_blocked = is_blocked
            self._presence_due_s = now_s
        # One at a time: of two, the older could be stored last.
        if now_s < self._presence_due_s or (self._storing and not self._storing.done()):
            return
        self._presence_due_s = now_s + (BLOCKED_PRESENCE_S if is_blocked else PRESENCE_S)
        self._storing = self._spawn(self._store_presence(js, presence))

    def _beat(self, connection: Connection, presence: WorkerPresence, *, leaving: bool) -> None:
        now_s = time.monotonic()
        held = tuple(_entry_of(task, now_s) for task in self._held)
        beat = Beat(presence=presence, held=held, leaving=leaving)
        try:
            connection.publish(
                self._subjects.beat(self._presence.incarnation), msgspec.json.encode(beat)
            )
        except Unknown:
            pass  # Not connected: no engine can hear it.

    def _touch(self, connection: Connection, held: HeldTask, now_s: float) -> None:
        if now_s - held.touched_s < self._touch_s:
            return
        try:
            connection.publish(held.delivery.ack_subject, _IN_PROGRESS)
        except Unknown:
            return
        held.touched_s = now_s

    def _expire(self, connection: Connection, settler: Settler, held: HeldTask) -> None:
        if held.is_claimed or not held.claim():
            return
        if held.call is not None:
            held.call.token.mark("timeout")
        self._spawn(self._settle_timeout(connection, settler, held))

    async def _settle_timeout(
        self, connection: Connection, settler: Settler, held: HeldTask
    ) -> None:
        try:
            await settler.settle(held, Fail(timeout_failure(held.task)))
            connection.publish(held.delivery.ack_subject)
        except (ServerError, Unknown) as exc:
            _log.warning("worker.settle-unknown %s: %s", held, exc)
            return
        _log.warning("worker.timeout-settled %s: its handler did not stop", held)

    async def _store_presence(self, js: JetStream, presence: WorkerPresence) -> None:
        subject = self._subjects.worker(presence.incarnation)
        try:
            await js.store(subject, msgspec.json.encode(presence), budget_s=PRESENCE_S)
        except ServerError as exc:
            _log.warning("worker.presence-unknown: %s", exc)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task


def _entry_of(held: HeldTask, now_s: float) -> Held:
    executing_ms = max(1, round((now_s - held.started_s) * 1000)) if held.started_s else 0
    return msgspec.structs.replace(held.entry, executing_ms=executing_ms)
