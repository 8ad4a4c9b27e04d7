"""What limits ask of a register: slots before its task is given out, and none after it.

    Queued ──a slot of each limit──> ──its rates──> Task
       │ full: it waits                └─too early─> Delayed | Sleeping
       └────────────────── whoever frees a slot grants it, and goes on here
    any other value: what the register held is free

Both are effects of a register as it stands, driven by whoever stored it, by whoever finds its event
applied, and by the sweep; each part may be done again. A register is a ``Task`` only after its
holders are stored, and they go only after it has moved on: at any time at least as many slots are
held as tasks are given out.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from treadle.engine.core import effects
from treadle.engine.core.advance import Placed, Work, advance
from treadle.engine.core.flow import (
    RateDeferred,
    SlotsGranted,
    below,
    grant_moment,
    is_timely,
    slots_of,
    weight_of,
)
from treadle.engine.pauses import Pauses
from treadle.engine.rates import Rates
from treadle.engine.registers import Moved, Registers
from treadle.engine.slots import Granted, Slots, address_of
from treadle.engine.timers import Timers
from treadle.engine.underway import UnderWay
from treadle.sdk import failpoints
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.log_fields import spaced
from treadle.sdk.messages import Parked, Queued, Register, Task
from treadle.sdk.subjects import RegisterAddress

WAITING_KNOWN_MAX = 100_000
"""Registers an engine knows to wait: it need not let them ask again at each look at their run."""

_log = logging.getLogger("treadle.engine")


class Admission:
    """Gives out and takes back what limits allow."""

    def __init__(
        self,
        registers: Registers,
        timers: Timers,
        pauses: Pauses,
        slots: Slots,
        rates: Rates,
    ) -> None:
        self._registers = registers
        self._timers = timers
        self._pauses = pauses
        self.slots = slots
        self._rates = rates
        self._waiting: OrderedDict[str, int] = OrderedDict()
        self._finishing = UnderWay()
        slots.on_granted = self._start
        self.find_step: Callable[[RegisterAddress, Task], Awaitable[Work | None]] = _unknown
        """Returns the step of a task; None if it cannot be found now."""
        self.on_held: Callable[[RegisterAddress, Placed], Awaitable[Placed]] = _stays
        """Called with a register of a paused run that was held instead of being given out."""

    async def settle(self, address: RegisterAddress, placed: Placed) -> Placed:
        """Do what limits ask of a register as it stands; return what stands then."""
        register = placed.register
        if isinstance(register, Task) or not _is_limited(register):
            return placed
        if isinstance(register, Queued):
            return await self._admit(address, placed)
        await self._leave(slots_of(register), address, placed)
        return placed

    async def begin(self, address: RegisterAddress, placed: Placed) -> Placed:
        """Do so for a step that is looked at once more; one known to wait goes on waiting."""
        if self._waiting.get(self._registers.subject(address)) == placed.sequence:
            return placed
        return await self.settle(address, placed)

    async def _admit(self, address: RegisterAddress, placed: Placed) -> Placed:
        queued, token = placed.register, placed.sequence
        assert isinstance(queued, Queued)
        flow = queued.task.flow
        assert flow is not None
        for claim in flow.slots:
            entry = await self.slots.enter(claim, address, token, queued)
            if entry == "full":
                self._waits(address, token)
                return placed
            if entry == "late":
                return await self._registers.read(address) or placed
        failpoints.reach("engine.slots-held")
        step = await self.find_step(address, queued.task)
        if step is None:
            return placed  # Gone, or not there yet: the sweep comes again.
        now_ms = await self._rates.now_ms() if flow.rates else time.time_ns() // 1_000_000
        event: SlotsGranted | RateDeferred = SlotsGranted(token)
        if flow.rates and not is_timely(queued.task, now_ms):
            due_ms = await self._rates.due_ms(flow.rates, weight_of(queued.task))
            failpoints.reach("engine.rate-reserved")
            if due_ms > now_ms:
                event = RateDeferred(token, due_ms)
        moment = grant_moment(address.run, token, queued, now_ms)
        is_paused = await self._pauses.holds(address.run)
        new = advance(step, placed, event, moment, is_paused=is_paused)
        # A timer is a hint, and the sweep does not look for one that is missing: it comes first.
        await self._set_timers(address, new)
        outcome = await self._registers.move(address, new, token=token, head=token, follow=True)
        failpoints.reach("engine.task-admitted")
        standing = outcome.placed if isinstance(outcome, Moved) else outcome.head
        if standing is None:
            return placed  # It is gone: the sweep frees what it held.
        if token < below(standing.register, standing.sequence):
            await self._leave(slots_of(queued), address, standing)
        if isinstance(standing.register, Parked) and standing.register.paused:
            return await self.on_held(address, standing)
        return standing

    async def _leave(
        self, limits: tuple[str, ...], address: RegisterAddress, placed: Placed
    ) -> None:
        """Free what a register does not hold any more, now that it stands where it does."""
        await self.slots.leave(limits, address, below(placed.register, placed.sequence))
        failpoints.reach("engine.slots-left")

    async def _set_timers(self, address: RegisterAddress, register: Register) -> None:
        if isinstance(register, Task | Queued):
            return
        for timer in effects.of_register(address.step, address.type, register):
            await self._timers.set(address.run, timer)

    def _waits(self, address: RegisterAddress, token: int) -> None:
        subject = self._registers.subject(address)
        self._waiting[subject] = token
        self._waiting.move_to_end(subject)
        if len(self._waiting) > WAITING_KNOWN_MAX:
            self._waiting.popitem(last=False)

    # ---------------------------------------------------------------- those who got a slot

    def _start(self, granted: Granted) -> None:
        self._finishing.start(self._finish(granted))

    async def _finish(self, granted: Granted) -> None:
        try:
            await self.finish(granted)
        except Exception as exc:  # noqa: BLE001 — its waiter stands, so the sweep does it again
            extra = {"address": granted.waiter.address, "error": repr(exc)}
            _log.warning("engine.grant-delayed %s", spaced(extra), extra=extra)

    async def finish(self, granted: Granted) -> None:
        """Let a register go on that was granted a slot, then forget that it waited."""
        address = address_of(granted.waiter.address)
        self._waiting.pop(self._registers.subject(address), None)
        await self.look(granted.limit, address, granted.waiter.token)
        failpoints.reach("engine.grant-finished")
        await self.slots.forget(granted)

    async def look(self, limit: str, address: RegisterAddress, token: int) -> bool:
        """Let the holder of a slot go on, or free the slot; return whether it holds it."""
        placed = await self._registers.look(address)
        if placed is None:
            return False
        if isinstance(placed, StoredUnreadable):
            raise placed
        register = placed.register
        if isinstance(register, Queued) and placed.sequence == token:
            placed = await self._admit(address, placed)
            register = placed.register
        if token >= below(register, placed.sequence):
            return True
        await self._leave((limit,), address, placed)
        return False

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until every grant under way is finished, at most so long."""
        await self._finishing.wait_idle(timeout_s)


async def _unknown(_: RegisterAddress, __: Task) -> Work | None:
    return None


async def _stays(_: RegisterAddress, placed: Placed) -> Placed:
    return placed


def _is_limited(register: Register) -> bool:
    return bool(slots_of(register)) or isinstance(register, Queued)
