"""Inputs that a task only refers to, because they are too large to copy into it.

A run's own input is in its request, among the events; the output of a step is in the register
that ended it; what a step waited for is in its event. The parts are put together as the bytes
they are stored as.
"""

from __future__ import annotations

import asyncio

import msgspec

from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import NonRetryable, ServerUnavailable, clause
from treadle.sdk.gathering import Gatherer
from treadle.sdk.handed_on import Carrier, handed_on
from treadle.sdk.messages import (
    Ended,
    FromRun,
    FromSteps,
    Register,
)
from treadle.sdk.shape import assembled
from treadle.sdk.stored import read
from treadle.sdk.subjects import RegisterAddress, Subjects

READS_AT_ONCE_MAX = 16
"""Enough to hide the round trips of a wide fan-in, without flooding the connection."""


class InputLost(NonRetryable):
    """An input that was stored cannot be found any more."""


class InputReader:
    """Reads and assembles inputs."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._event: msgspec.json.Decoder[Carrier] = msgspec.json.Decoder(Carrier)
        self._register: msgspec.json.Decoder[Register] = msgspec.json.Decoder(Register)
        self._gate = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._gatherer = Gatherer(js, subjects)

    async def read(self, source: FromRun | FromSteps, address: RegisterAddress) -> msgspec.Raw:
        """Return the input as JSON; raise ``InputLost`` if a part of it is gone."""
        if isinstance(source, FromRun):
            return await self._from_event(source.sequence, "the run's input")
        parts = await asyncio.gather(
            *(self._from_step(step, kind, source, address) for step, kind in source.steps.items())
        )
        if source.single:
            return parts[0]
        if source.shape is not None:
            values = dict(zip(source.steps, map(bytes, parts), strict=True))
            return msgspec.Raw(assembled(source.shape, values))
        return msgspec.Raw(msgspec.json.encode(dict(zip(source.steps, parts, strict=True))))

    async def _from_step(
        self, step: str, task_type: str, source: FromSteps, address: RegisterAddress
    ) -> msgspec.Raw:
        if step in source.maps:
            map_ = RegisterAddress(address.domain, address.run, step, task_type)
            return msgspec.Raw(await self._gatherer.output(map_, source.maps[step]))
        async with self._gate:
            if not task_type:
                if step in source.values:
                    return source.values[step]
                if not source.sequences[step]:
                    return msgspec.Raw(b"null")  # It has nothing to hand on.
                what = f"what step {step!r} waited for"
                return await self._from_event(source.sequences[step], what)
            subject = self._subjects.register(address.run, step, task_type, address.domain)
            stored = await self._js.last(self._subjects.steps_stream, subject)
        if stored is None:
            raise _lost(f"the output of step {step!r}", f"its register {subject} holds nothing")
        register = read(self._register, stored)
        if not isinstance(register, Ended):
            # This task exists because the step has ended: the server that answered is behind.
            raise ServerUnavailable(
                f"step {step!r} is shown as not ended by a server that is behind the others. "
                "The task is dispatched again."
            )
        return register.output

    async def _from_event(self, sequence: int, what: str) -> msgspec.Raw:
        stored = await self._js.get(self._subjects.events_stream, sequence)
        if stored is None:
            raise _lost(what, f"event {sequence} is not in {self._subjects.events_stream}")
        return handed_on(read(self._event, stored), stored.time_ms)


def _lost(what: str, why: str) -> InputLost:
    return InputLost(
        f"{what} cannot be read: {clause(why)}. "
        "It was removed after the run had started; keep the events "
        "and registers of a run for as long as it runs."
    )
