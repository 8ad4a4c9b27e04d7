"""Steps that wait in the line before a model's provider.

    worker  marks in the provider's record whom it calls, and then looks at the register
    engine  stores that a step waits, and then looks at the record

One of the two sees the other's, so nobody who is called goes on sleeping. Whoever sees both stores
that the step is due, an event that counts once for each value of its register.
"""

from __future__ import annotations

import msgspec

from treadle.engine.core.advance import Placed
from treadle.engine.registers import Registers
from treadle.sdk import failpoints
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.messages import Parked, ProviderRecord, ProviderWaiter, TaskDue
from treadle.sdk.subjects import RegisterAddress, Subjects

_records = msgspec.json.Decoder(ProviderRecord)
_waiters = msgspec.json.Decoder(ProviderWaiter)


class Turns:
    """Sends on who was called while it lay down, and whoever is next when another has left."""

    def __init__(self, js: JetStream, subjects: Subjects, registers: Registers) -> None:
        self._js = js
        self._subjects = subjects
        self._registers = registers

    async def settle(self, address: RegisterAddress, placed: Placed) -> None:
        """Send on a step that waits in a line and was called before that was stored."""
        register = placed.register
        if not isinstance(register, Parked) or not register.line:
            return
        failpoints.reach("engine.line-waits")
        s = self._subjects
        stored = await self._js.last(s.limits_stream, s.provider(register.line))
        if stored is None:
            return
        try:
            called = _records.decode(stored.data).called
        except (ValueError, RecursionError):
            return
        place = ProviderWaiter(run=address.run, step=address.step, domain=address.domain).place
        if place in called:
            await self._send_on(address, placed)

    async def left(self, address: RegisterAddress, line: str) -> None:
        """Take a step that has ended out of its line, and let the first one there look."""
        s = self._subjects
        mine = s.provider_waiter(line, "*", address.run, address.step, address.domain)
        await self._js.purge(s.limits_stream, mine)
        for which in ("a", "b"):
            stored = await self._js.next(s.limits_stream, s.provider_waiters(line, which), 1)
            if stored is None:
                continue
            try:
                first = _waiters.decode(stored.data)
            except (ValueError, RecursionError):
                continue
            if not first.type:
                continue
            other = RegisterAddress(first.domain, first.run, first.step, first.type)
            placed = await self._registers.read(other)
            if placed is not None and isinstance(placed.register, Parked) and placed.register.line:
                await self._send_on(other, placed)
            return

    async def _send_on(self, address: RegisterAddress, placed: Placed) -> None:
        due = TaskDue(step=address.step, type=address.type, token=placed.sequence)
        await self._js.store(
            self._subjects.event(address.run, address.domain), msgspec.json.encode(due)
        )
