"""Dead processes: notice them in a moment, and give their work out again at once.

Workers and engines beat on core NATS twice a second, naming what they hold. A process is dead
when it says so, when its pid is gone on this host, or when its beats stop. Then

    of a worker   every task that was delivered, that no living worker says it holds, and whose
                  register still stands, is reported lost: an event like any other, fenced by
                  its token, so a wrong guess costs one attempt and nothing else
    of an engine  the events it may have taken are handled now, not after the ack wait

All of this is speed. Without it the server delivers again after the ack wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import msgspec

from treadle.engine.registers import Registers
from treadle.sdk.bus.connection import Message, Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.bus.puller import EXPIRES_S
from treadle.sdk.errors import ServerError
from treadle.sdk.ids import new_nonce
from treadle.sdk.log_fields import spaced
from treadle.sdk.messages import Beat, Held, Task, TaskLost, WorkerPresence
from treadle.sdk.presence import BEAT_S, BEATS_LOST_S, PRESENCE_S, host_id, is_process_alive
from treadle.sdk.subjects import RegisterAddress, Subjects
from treadle.sdk.tracing.place import Place

_CHECK_S = 0.25
_OWN_STALL_S = 1.0
"""An engine whose own loop stood still this long cannot blame others for missing beats."""
_LOOKS_LEFT_S = (0.0,)
_LOOKS_GONE_S = (0.2, 1.2, 5.0)
"""When to look for what a killed process held: once the server has most likely seen that its
connection is closed, since until then its next attempt could be delivered to it; again once it
has; and once more for a machine that is busy with everything else."""
_LOOKS_SILENT_S = (0.0, EXPIRES_S)
"""The same for one that may only be cut off: what it asked for is delivered until it expires."""
_GONE_KEPT_S = 60.0
"""A late beat of a process that was given up does not bring it back."""
FAREWELL_S = 2.0
"""Longest that an engine which stops waits for its presence to be deleted; it expires otherwise."""
_CONFIRM_S = 2.0
"""Longest wait for the living workers' next beats before lost tasks are reported."""

_log = logging.getLogger("treadle.engine")
_beat = msgspec.json.Decoder(Beat)


class _Seen:
    __slots__ = ("at", "beat")

    def __init__(self, beat: Beat, at: float) -> None:
        self.beat = beat
        self.at = at


class Takeover:
    """Watches beats, sends this engine's own, and reports what dead workers held."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        registers: Registers,
        *,
        name: str,
        projects: bool = False,
        measures: bool = False,
        indexes: bool = False,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._registers = registers
        self._seen: dict[str, _Seen] = {}
        self._gone: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._presence = WorkerPresence(
            incarnation=new_nonce(),
            role="engine",
            name=name,
            host=host_id(),
            pid=os.getpid(),
            started_ms=round(time.time() * 1000),
            projects=projects,
            measures=measures,
            indexes=indexes,
        )

    @property
    def incarnation(self) -> str:
        """The id of this engine process."""
        return self._presence.incarnation

    async def start(self, on_engine_lost: Callable[[], Awaitable[None]]) -> None:
        """Begin to watch and to beat."""
        self._on_engine_lost = on_engine_lost
        await self._js.connection.subscribe(self._subjects.all_beats, self._take)
        self._start(self._watch())
        self._start(self._announce())

    async def stop(self) -> None:
        """Say goodbye, so that the others need not wait for missing beats."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._js.connection.is_connected:
            return  # Nobody could hear it, and its presence expires.
        self._send(leaving=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._forget_presence(self._presence)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---------------------------------------------------------------- own beats

    async def _announce(self) -> None:
        stored_at = -PRESENCE_S
        while True:
            self._send(leaving=False)
            if time.monotonic() - stored_at >= PRESENCE_S:
                stored_at = time.monotonic()
                await self._store_presence()
            await asyncio.sleep(BEAT_S)

    def _send(self, *, leaving: bool) -> None:
        beat = msgspec.json.encode(Beat(presence=self._presence, leaving=leaving))
        try:
            self._js.connection.publish(self._subjects.beat(self._presence.incarnation), beat)
        except Unknown:
            return  # Not connected: nobody could hear it.

    async def _store_presence(self) -> None:
        subject = self._subjects.worker(self._presence.incarnation)
        try:
            await self._js.store(subject, msgspec.json.encode(self._presence), budget_s=2.0)
        except ServerError:
            return  # The next refresh is near.

    async def _forget_presence(self, presence: WorkerPresence) -> None:
        subject = self._subjects.worker(presence.incarnation)
        try:
            await self._js.purge(self._subjects.workers_stream, subject)
        except (ServerError, ApiError, Unknown):
            return  # It expires by itself.

    # ---------------------------------------------------------------- others' beats

    def _take(self, message: Message) -> None:
        try:
            beat = _beat.decode(message.data)
        except (ValueError, RecursionError):
            return
        incarnation = beat.presence.incarnation
        if incarnation == self._presence.incarnation or incarnation in self._gone:
            return
        self._seen[incarnation] = _Seen(beat, time.monotonic())
        if beat.leaving:
            self._lost(incarnation, "it left", _LOOKS_LEFT_S)

    async def _watch(self) -> None:
        checked_at = time.monotonic()
        while True:
            await asyncio.sleep(_CHECK_S)
            now = time.monotonic()
            if now - checked_at > _OWN_STALL_S:
                for seen in self._seen.values():
                    seen.at = now
            checked_at = now
            try:
                self._check(now)
            except Exception:  # noqa: BLE001 — without this loop a dead worker costs the ack wait
                _log.exception("engine.watch-failed")

    def _check(self, now: float) -> None:
        for incarnation, seen in list(self._seen.items()):
            presence = seen.beat.presence
            if now - seen.at > BEATS_LOST_S:
                self._lost(incarnation, f"no beat for {now - seen.at:.1f} s", _LOOKS_SILENT_S)
            elif _is_gone(presence):
                self._lost(incarnation, f"its process {presence.pid} is gone", _LOOKS_GONE_S)
        for incarnation, at in list(self._gone.items()):
            if now - at > _GONE_KEPT_S:
                del self._gone[incarnation]

    def _lost(self, incarnation: str, why: str, looks_s: tuple[float, ...]) -> None:
        seen = self._seen.pop(incarnation)
        self._gone[incarnation] = time.monotonic()
        presence = seen.beat.presence
        extra = {"role": presence.role, "peer": presence.name or incarnation, "why": why}
        if seen.beat.leaving:
            _log.info("engine.process-left %s", spaced(extra), extra=extra)
        else:
            _log.warning("engine.process-lost %s", spaced(extra), extra=extra)
        for after_s in looks_s:
            self._start(self._take_over(seen.beat, why, after_s))

    async def _take_over(self, beat: Beat, why: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            if beat.presence.role == "engine":
                await self._on_engine_lost()
            else:
                await self._report_lost(beat, why)
            await self._forget_presence(beat.presence)
        except Exception as exc:  # noqa: BLE001 — the ack wait does the same, later
            _log.warning("engine.take-over-failed %r", exc)

    # ---------------------------------------------------------------- a dead worker's tasks

    async def _report_lost(self, beat: Beat, why: str) -> None:
        presence = beat.presence
        delivered = await self._delivered(presence)
        held = await self._held_by_the_living(set(presence.types))
        for task in self._candidates(beat, delivered):
            if task.token not in held:
                await self._report(task, presence, why)

    async def _delivered(self, presence: WorkerPresence) -> dict[str, int]:
        """Per task type, the sequence up to which tasks have been given to some worker."""
        floors: dict[str, int] = {}
        for task_type in presence.types:
            name = self._subjects.worker_consumer(task_type, presence.domain)
            info = await self._js.api(f"CONSUMER.INFO.{self._subjects.steps_stream}.{name}")
            floors[task_type] = int(info["delivered"]["stream_seq"])
        return floors

    async def _held_by_the_living(self, types: set[str]) -> set[int]:
        """Tokens held by living workers of these types, by beats sent after now.

        A task delivered before now is in its holder's next beat, or it is settled already.
        """
        asked_at = time.monotonic() + BEAT_S / 10
        deadline = asked_at + _CONFIRM_S
        while True:
            living = [
                seen
                for seen in self._seen.values()
                if seen.beat.presence.role == "worker" and types & set(seen.beat.presence.types)
            ]
            if all(seen.at > asked_at for seen in living) or time.monotonic() > deadline:
                return {task.token for seen in living for task in seen.beat.held}
            await asyncio.sleep(BEAT_S / 10)

    def _candidates(self, beat: Beat, delivered: dict[str, int]) -> Iterable[Held]:
        yield from beat.held
        named = {task.token for task in beat.held}
        for subject, token in self._registers.known_tasks():
            address = self._subjects.parse_register(subject)
            if address.domain != beat.presence.domain or token in named:
                continue
            if token <= delivered.get(address.type, 0):
                yield Held(address.run, address.step, address.type, token)

    async def _report(self, task: Held, presence: WorkerPresence, why: str) -> None:
        address = RegisterAddress(presence.domain, task.run, task.step, task.type)
        known = self._registers.known(address)
        if known is None or known.sequence != task.token:
            known = await self._registers.read(address)
        if known is None or known.sequence != task.token or not isinstance(known.register, Task):
            return  # It has moved on without the dead process.
        held = known.register
        queued_us = 0
        if held.trace:
            stored = await self._js.last(
                self._subjects.steps_stream, self._registers.subject(address)
            )
            if stored is None or stored.sequence != task.token:
                return
            queued_us = stored.time_us - held.queued_ms * 1_000
        lost = TaskLost(
            step=task.step,
            type=task.type,
            token=task.token,
            iteration=held.iteration,
            attempt=held.attempt,
            worker=presence.incarnation,
            reason=f"worker {presence.name or presence.incarnation}: {why}",
            queued_us=queued_us,
        )
        await self._js.store(
            self._subjects.event(task.run, presence.domain),
            msgspec.json.encode(lost),
            message_id=f"{task.run}:{task.step}:lost:{task.token}",
        )
        place = Place(
            task.run,
            held.workflow,
            task.step,
            held.iteration if held.loop else -1,
            held.attempt,
            presence.incarnation,
            held.trace,
        )
        told = {"run": task.run, "step": task.step, "worker": presence.name, "why": why}
        _log.info("engine.task-lost %s", spaced(told), extra={"place": place, "why": why})


def _is_gone(presence: WorkerPresence) -> bool:
    return bool(presence.host) and presence.host == host_id() and not is_process_alive(presence.pid)
