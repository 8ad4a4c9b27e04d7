"""The lines before a model's provider: who waits, in which order, and how they are called.

A place is a key in the bucket of limits: its sequence is the order, and nobody rewrites it. Who
waits without a worker is called by an event that moves its register on, which is one of what is
stored: a place whose register has ended is nobody's.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, get_args

import msgspec

from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import ServerUnsuitable
from treadle.sdk.ids import new_nonce
from treadle.sdk.messages import (
    Ended,
    Parked,
    ProviderLine,
    ProviderWaiter,
    Register,
    Task,
    TaskDue,
)
from treadle.sdk.provider_buckets import ordered
from treadle.sdk.subjects import RegisterAddress, Subjects, settle_id

LINES: tuple[ProviderLine, ...] = get_args(ProviderLine)
CALL_BUDGET_S = 10.0
"""Whoever is not called in this time is called by the next who looks."""

_waiters = msgspec.json.Decoder(ProviderWaiter)
_registers: msgspec.json.Decoder[Register] = msgspec.json.Decoder(Register)


class Asleep(NamedTuple):
    """It waits without a worker."""

    task: Task
    token: int
    due_ms: int
    """When it looks by itself."""


State = Asleep | Literal["awake", "held", "over"]
"""``held``: the run is paused, or the step is parked. ``over``: it will never come."""


class Lines(Protocol):
    """Where the lines are kept, by the key of the provider's record."""

    async def first(self, key: str, most: int) -> list[ProviderWaiter]:
        """Return the first of those who are waited for."""
        ...

    async def find(self, key: str, waiter: ProviderWaiter) -> ProviderLine | None:
        """Return the line in which a place is."""
        ...

    async def is_empty(self, key: str) -> bool:
        """True if nobody is waited for, at this moment."""
        ...

    async def enter(self, key: str, line: ProviderLine, waiter: ProviderWaiter) -> None:
        """Give somebody a place at the end of a line, and take its place in others."""
        ...

    async def leave(self, key: str, waiter: ProviderWaiter) -> None:
        """Take all its places."""
        ...

    async def state(self, waiter: ProviderWaiter) -> State:
        """Return what somebody who waits is at."""
        ...

    async def call(self, waiter: ProviderWaiter, asleep: Asleep) -> None:
        """Send somebody on who sleeps."""
        ...


class StoredLines:
    """They are in the bucket of limits; an older engine has made none, and then there are none."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects

    async def first(self, key: str, most: int) -> list[ProviderWaiter]:
        refused, others = [await self._read(key, line, most) for line in LINES[:2]]
        return ordered(refused, others)[:most]

    async def find(self, key: str, waiter: ProviderWaiter) -> ProviderLine | None:
        try:
            subject = self._subject(key, "*", waiter)
            stored = await self._js.last(self._subjects.limits_stream, subject)
        except ServerUnsuitable:
            return None
        line = stored.subject.split(".")[4] if stored is not None else ""
        return next((each for each in LINES if each == line), None)

    async def is_empty(self, key: str) -> bool:
        s = self._subjects
        for line in LINES[:2]:
            if await self._js.next(s.limits_stream, s.provider_waiters(key, line), 1) is not None:
                return False
        return True

    async def enter(self, key: str, line: ProviderLine, waiter: ProviderWaiter) -> None:
        s, value = self._subjects, msgspec.json.encode(waiter)
        try:
            # Who has a place keeps it: only the first of these writes counts.
            await self._js.compare_and_set(
                s.limits_stream,
                self._subject(key, line, waiter),
                value,
                expected=0,
                is_mine=lambda _: True,
            )
        except ServerUnsuitable:
            return
        for other in LINES:
            if other != line:
                await self._js.purge(s.limits_stream, self._subject(key, other, waiter))

    async def leave(self, key: str, waiter: ProviderWaiter) -> None:
        try:
            subject = self._subject(key, "*", waiter)
            await self._js.purge(self._subjects.limits_stream, subject)
        except ServerUnsuitable:
            return

    async def state(self, waiter: ProviderWaiter) -> State:
        s = self._subjects
        if not waiter.type:
            return "awake"
        subject = s.register(waiter.run, waiter.step, waiter.type, waiter.domain)
        stored = await self._js.last(s.steps_stream, subject)
        if stored is None:
            return "over"
        try:
            register = _registers.decode(stored.data)
        except (ValueError, RecursionError):
            return "held"
        match register:
            case Ended():
                return "over"
            case Parked(line=line) if line:
                return Asleep(register.task, stored.sequence, register.due_ms)
            case Parked():
                return "held"
            case _:
                return "awake"

    async def call(self, waiter: ProviderWaiter, asleep: Asleep) -> None:
        task = asleep.task
        event = TaskDue(
            step=waiter.step,
            type=waiter.type,
            token=asleep.token,
            iteration=task.iteration,
            attempt=task.attempt,
        )
        await self._js.store(
            self._subjects.event(waiter.run, waiter.domain),
            msgspec.json.encode(event),
            message_id=settle_id(waiter.run, waiter.step, task.iteration, "due", new_nonce()),
            budget_s=CALL_BUDGET_S,
        )

    async def _read(self, key: str, line: str, most: int) -> list[ProviderWaiter]:
        s, found = self._subjects, list[ProviderWaiter]()
        try:
            async for stored in self._js.read(
                s.limits_stream, s.provider_waiters(key, line), batch=most
            ):
                try:
                    found.append(_waiters.decode(stored.data))
                except (ValueError, RecursionError):
                    await self._js.purge(s.limits_stream, stored.subject, up_to=stored.sequence + 1)
                    continue
                # Those who were refused come in the order of their age, so all count.
                if len(found) == most and line != LINES[0]:
                    break
        except ServerUnsuitable:
            return []
        return found

    def _subject(self, key: str, line: str, waiter: ProviderWaiter) -> str:
        s = self._subjects
        return s.provider_waiter(key, line, waiter.run, waiter.step, waiter.domain)


class LinesInMemory:
    """They are in this process, and whoever waits looks by itself."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], dict[str, ProviderWaiter]] = {}

    async def first(self, key: str, most: int) -> list[ProviderWaiter]:
        refused, others = [self._of(key, line) for line in LINES[:2]]
        return ordered([*refused.values()], [*others.values()])[:most]

    async def find(self, key: str, waiter: ProviderWaiter) -> ProviderLine | None:
        return next((line for line in LINES if waiter.place in self._of(key, line)), None)

    async def is_empty(self, key: str) -> bool:
        return not any(self._of(key, line) for line in LINES[:2])

    async def enter(self, key: str, line: ProviderLine, waiter: ProviderWaiter) -> None:
        self._of(key, line).setdefault(waiter.place, waiter)
        for other in LINES:
            if other != line:
                self._of(key, other).pop(waiter.place, None)

    async def leave(self, key: str, waiter: ProviderWaiter) -> None:
        for line in LINES:
            self._of(key, line).pop(waiter.place, None)

    async def state(self, waiter: ProviderWaiter) -> State:
        return "awake"

    async def call(self, waiter: ProviderWaiter, asleep: Asleep) -> None:
        raise AssertionError("who waits in its process does not sleep")

    def _of(self, key: str, line: str) -> dict[str, ProviderWaiter]:
        return self._lines.setdefault((key, line), {})


def waiter_at(
    address: RegisterAddress | None, alone: str, tokens: int, since_ms: int
) -> ProviderWaiter:
    """Return who waits, given its register; without one it is ``alone`` in its process."""
    if address is None:
        return ProviderWaiter(step=alone, tokens=tokens, since_ms=since_ms)
    return ProviderWaiter(
        run=address.run,
        step=address.step,
        type=address.type,
        domain=address.domain,
        tokens=tokens,
        since_ms=since_ms,
    )
