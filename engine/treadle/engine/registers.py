"""Registers on JetStream: read, create, move and end them by compare-and-set.

All writers of a step's register and checkpoint expect the newest sequence under one filter,
``subjects.pair``. This file owns what a refusal or a silence means:

    10164               another write is in flight: try again
    10071, no answer    read the newest of the pair first, the register second, then decide:
                        parent is ours -> it is stored (what stands counts, not what was meant)
                        the token moved -> fenced
                        only the checkpoint moved -> a conflict of two executors of one token
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec

from treadle.engine.core.advance import Placed
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import JetStream, Refused
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import Ended, Register, Task
from treadle.sdk.stored import read
from treadle.sdk.subjects import RegisterAddress, Subjects, task_id
from treadle.sdk.tracing.ids import parse_ref, task_traceparent

HEADS_MAX = 200_000
"""Registers whose newest value an engine remembers; the oldest are read again when needed."""

_IN_FLIGHT = 10164
_RETRY_S = 0.005
_SILENCE_RETRY_S = 0.05

_decoder: msgspec.json.Decoder[Register] = msgspec.json.Decoder(Register)
_encoder = msgspec.json.Encoder()


class Moved(NamedTuple):
    """The register holds the value of this event: what stands, at its sequence."""

    placed: Placed


class Fenced(NamedTuple):
    """The register left the token: the event came late."""

    head: Placed | None


class Conflict(NamedTuple):
    """The token stands, but another execution of it has saved a checkpoint."""

    head: Placed


class Registers:
    """The registers of a namespace, with the heads this engine has written or read."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._heads: dict[str, Placed] = {}

    def subject(self, address: RegisterAddress) -> str:
        """Return the register's subject."""
        return self._subjects.register(address.run, address.step, address.type, address.domain)

    def known(self, address: RegisterAddress) -> Placed | None:
        """Return the newest value this engine knows, which may be old; None if it knows none."""
        return self._heads.get(self.subject(address))

    def known_tasks(self) -> list[tuple[str, int]]:
        """Return subject and token of every task this engine believes to be given out."""
        return [
            (subject, placed.sequence)
            for subject, placed in self._heads.items()
            if isinstance(placed.register, Task)
        ]

    def forget(self, address: RegisterAddress) -> None:
        """Drop what is known of a register."""
        self._heads.pop(self.subject(address), None)

    async def read(self, address: RegisterAddress) -> Placed | None:
        """Return the register as it stands, read from its leader; None if it does not exist.

        Raise ``StoredUnreadable`` if what is stored there is no register.
        """
        standing = await self.look(address)
        if isinstance(standing, StoredUnreadable):
            raise standing
        return standing

    async def look(self, address: RegisterAddress) -> Placed | StoredUnreadable | None:
        """Return the register as it stands, or the error that it cannot be read."""
        subject = self.subject(address)
        stored = await self._js.last(self._subjects.steps_stream, subject)
        if stored is None:
            return None
        try:
            placed = Placed(stored.sequence, read(_decoder, stored))
        except StoredUnreadable as exc:
            self._heads.pop(subject, None)
            return exc
        self._remember(subject, placed)
        return placed

    async def move(
        self,
        address: RegisterAddress,
        new: Register,
        *,
        token: int,
        head: int,
        follow: bool,
    ) -> Moved | Fenced | Conflict:
        """Store the next value if the register still holds ``token``.

        ``head`` is the newest sequence of the pair that the caller knows. ``follow`` goes on
        from whatever checkpoint was saved meanwhile; without it that is a ``Conflict``. A token
        may be the revision of a value that cannot be read: the write replaces it. Raise
        ``StoredUnreadable`` if another such value stands.
        """
        subject = self.subject(address)
        data = _encoder.encode(new)
        message_id, headers = _message_id(address, new), _trace_headers(address, new)
        pair = self._subjects.pair(address.run, address.step, address.domain)
        while True:
            try:
                answer = await self._js.attempt(
                    subject,
                    data,
                    expected=head,
                    filter=pair,
                    message_id=message_id,
                    headers=headers,
                )
            except Unknown:
                await asyncio.sleep(_SILENCE_RETRY_S)
            else:
                if not isinstance(answer, Refused):
                    return self._moved(subject, Placed(answer, new))
                if answer.err_code == _IN_FLIGHT:
                    await asyncio.sleep(_RETRY_S)
                    continue
            newest = await self._js.last(self._subjects.steps_stream, pair)
            register = await self.look(address)
            if isinstance(register, StoredUnreadable):
                if register.revision != token:
                    raise register
            elif register is not None and register.register.parent == new.parent:
                return Moved(register)
            elif (register.sequence if register else 0) != token:
                return Fenced(register)
            newest_sequence = newest.sequence if newest else 0
            if newest_sequence == head:
                continue
            if not follow:
                assert isinstance(register, Placed)
                return Conflict(register)
            head = newest_sequence

    async def create(self, address: RegisterAddress, first: Register, head: int = 0) -> Placed:
        """Make the register exist; return what stands, which may be anything.

        ``head`` is the newest of what was written under the step before it; 0 is nothing.
        """
        outcome = await self.move(address, first, token=0, head=head, follow=head > 0)
        if isinstance(outcome, Moved):
            return outcome.placed
        assert outcome.head is not None
        return outcome.head

    def _moved(self, subject: str, placed: Placed) -> Moved:
        self._remember(subject, placed)
        return Moved(placed)

    def _remember(self, subject: str, placed: Placed) -> None:
        known = self._heads.get(subject)
        if known is not None and known.sequence > placed.sequence:
            return
        self._heads[subject] = placed
        if len(self._heads) > HEADS_MAX:
            del self._heads[next(iter(self._heads))]


def _message_id(address: RegisterAddress, register: Register) -> str:
    task = register if isinstance(register, Task | Ended) else register.task
    iteration = task.iterations if isinstance(task, Ended) else task.iteration
    return task_id(address.run, address.step, iteration, task.attempt, register.parent)


def _trace_headers(address: RegisterAddress, register: Register) -> dict[str, str] | None:
    """Return the W3C headers of a task that a worker is given; None for a run without a trace."""
    if not isinstance(register, Task):
        return None
    ref = parse_ref(register.trace)
    if ref is None:
        return None
    return {
        "traceparent": task_traceparent(ref, address.step, register.iteration, register.attempt)
    }
