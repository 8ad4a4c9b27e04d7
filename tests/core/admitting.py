"""What an engine does about limits, as steps between which it may die or another may act.

The shell's order (``engine/admission.py``, ``engine/slots.py``) over a simulated bucket: records
under compare-and-set, waiters by sequence. Every ``yield`` is a point in time, as in
``engines.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from tests.core import engines

from treadle.engine.core import Placed, advance
from treadle.engine.core import slots as core
from treadle.engine.core.flow import (
    RateDeferred,
    SlotsGranted,
    below,
    grant_moment,
    is_timely,
    line_of,
    slots_of,
)
from treadle.engine.core.rates import reserve
from treadle.engine.core.slots import Entry
from treadle.sdk.messages import Holder, Queued, Register, SlotClaim, SlotRecord, SlotWaiter, Task

if TYPE_CHECKING:
    from tests.core.world import World

Steps = Generator[None, None, None]
Op = Callable[[SlotRecord], SlotRecord]


class Bucket:
    """The limits bucket."""

    def __init__(self) -> None:
        self.records: dict[str, tuple[int, SlotRecord]] = {}
        self.waiters: dict[str, dict[int, SlotWaiter]] = {}
        self.rates: dict[str, int] = {}
        self._sequence = 0

    def read(self, limit: str) -> tuple[int, SlotRecord]:
        """Return a record and its revision."""
        return self.records.get(limit, (0, SlotRecord()))

    def put(self, limit: str, record: SlotRecord, revision: int) -> bool:
        """Store a record over a revision."""
        if self.read(limit)[0] != revision:
            return False
        self._sequence += 1
        self.records[limit] = (self._sequence, record)
        return True

    def holders(self) -> dict[str, tuple[Holder, ...]]:
        """Return who holds slots, by limit."""
        return {limit: record.holders for limit, (_, record) in self.records.items()}

    def wait(self, limit: str, waiter: SlotWaiter) -> None:
        """Store a waiter unless it is there."""
        waiters = self.waiters.setdefault(limit, {})
        if all((w.address, w.token) != (waiter.address, waiter.token) for w in waiters.values()):
            self._sequence += 1
            waiters[self._sequence] = waiter

    def next(self, limit: str, line: str, after: int) -> int:
        """Return the sequence of the next waiter of a line; 0 is none."""
        waiters = self.waiters.get(limit, {})
        return next((s for s, w in waiters.items() if s > after and w.line == line), 0)


def settle(world: World, step_id: str, placed: Placed) -> Steps:
    """Do what limits ask of a register as it stands."""
    register = placed.register
    if isinstance(register, Queued):
        yield from _admit(world, step_id, placed, register)
    elif not isinstance(register, Task):
        yield from _leave(world, step_id, register, placed)


def sweep(world: World) -> Steps:
    """Look after every holder, every free slot and everybody who waits."""
    for limit, (_, record) in list(world.limits.records.items()):
        for holder in record.holders:
            yield from _look(world, limit, holder.address, holder.token)
        yield from _commit(world, limit, lambda same: same)
    for limit, waiters in list(world.limits.waiters.items()):
        for sequence, waiter in list(waiters.items()):
            yield from _look(world, limit, waiter.address, waiter.token)
            if world.registers[waiter.address].sequence != waiter.token:
                waiters.pop(sequence, None)


def check(world: World) -> None:
    """Assert that no more tasks are given out than a limit allows, each with its slot."""
    for limit, given in _given_out(world).items():
        _, record = world.limits.read(limit)
        assert len(given) <= record.limit, "as many at a time as the limit says"
        assert given <= {(h.address, h.token) for h in record.holders}, "each has a slot"
        assert len(record.holders) <= record.limit
        assert len({h.address for h in record.holders}) == len(record.holders)


def check_rest(world: World) -> None:
    """Assert, after a sweep, that every slot is held by who needs it: none was lost."""
    given = _given_out(world)
    for limit, (_, record) in world.limits.records.items():
        for holder in record.holders:
            register = world.registers[holder.address].register
            assert isinstance(register, Task | Queued), "nobody keeps a slot who has moved on"
        if len(record.holders) < record.limit:
            waiting = [
                step_id
                for step_id, placed in world.registers.items()
                if isinstance(placed.register, Queued) and limit in slots_of(placed.register)
            ]
            held = {holder.address for holder in record.holders}
            blocked = [step_id for step_id in waiting if step_id not in held]
            assert all(_waits_elsewhere(world, step_id, limit) for step_id in blocked), (
                "no lost slot"
            )
        assert given.get(limit, set()) <= {(h.address, h.token) for h in record.holders}


def _waits_elsewhere(world: World, step_id: str, limit: str) -> bool:
    """True for a register that has to get another slot before this one."""
    register = world.registers[step_id].register
    before = slots_of(register)[: slots_of(register).index(limit)]
    return any(
        all(h.address != step_id for h in world.limits.read(other)[1].holders) for other in before
    )


def _given_out(world: World) -> dict[str, set[tuple[str, int]]]:
    given: dict[str, set[tuple[str, int]]] = {}
    for step_id, placed in world.registers.items():
        if isinstance(placed.register, Task):
            for limit in slots_of(placed.register):
                given.setdefault(limit, set()).add((step_id, placed.register.claim))
    return given


def _admit(world: World, step_id: str, placed: Placed, queued: Queued) -> Steps:
    flow, token = queued.task.flow, placed.sequence
    assert flow is not None
    for claim in flow.slots:
        entered: list[Entry] = []
        yield from _enter(world, claim, step_id, token, entered)
        if entered[-1] == "late":
            return
        if entered[-1] == "full":
            yield
            waiter = SlotWaiter(
                address=step_id, token=token, line=line_of(flow), since_ms=queued.since_ms
            )
            world.limits.wait(claim.key, waiter)
            yield from _queue(world, claim, waiter)
            return
    yield
    event: SlotsGranted | RateDeferred = SlotsGranted(token)
    if flow.rates and not is_timely(queued.task, world.now_ms):
        due_ms = _due_ms(world, queued)
        if due_ms > world.now_ms:
            event = RateDeferred(token, due_ms)
    moment = grant_moment("r1", token, queued, world.now_ms)
    is_paused = world.is_known_paused()
    new = advance(world.plan.work(step_id), placed, event, moment, is_paused=is_paused)
    yield
    if world.registers[step_id] is placed:
        world.put_register(step_id, new, world.heads[step_id])
    yield
    standing = world.registers[step_id]
    if token < below(standing.register, standing.sequence):
        yield from _leave(world, step_id, queued, standing)
    yield from engines.released(world, step_id)


def _enter(world: World, claim: SlotClaim, step_id: str, token: int, entered: list[Entry]) -> Steps:
    def enter(record: SlotRecord) -> SlotRecord:
        record, entry = core.enter(record, step_id, token, claim.limit, world.now_ms)
        entered.append(entry)
        return record

    yield from _commit(world, claim.key, enter)


def _queue(world: World, claim: SlotClaim, waiter: SlotWaiter) -> Steps:
    yield from _commit(world, claim.key, lambda r: core.queue(r, waiter, claim.limit))


def _leave(world: World, step_id: str, limited: Register, standing: Placed) -> Steps:
    position = below(standing.register, standing.sequence)
    for limit in slots_of(limited):
        yield from _commit(world, limit, lambda r: core.leave(r, step_id, position))


def _commit(world: World, limit: str, op: Op) -> Steps:
    """Change a record by compare-and-set, and let those go on who got a slot by it."""
    bucket = world.limits
    while True:
        yield
        revision, before = bucket.read(limit)
        record = op(before)
        granted: list[int] = []
        while (line := core.next_line(record)) is not None:
            yield
            sequence = bucket.next(limit, line, record.lines[line].after)
            head = bucket.waiters.get(limit, {}).get(sequence)
            record, is_new = core.grant(record, line, head, sequence, world.now_ms)
            if is_new:
                granted.append(sequence)
        yield
        if record == before or bucket.put(limit, record, revision):
            break
    for sequence in granted:
        waiter = bucket.waiters.get(limit, {}).get(sequence)
        if waiter is not None:
            yield from _look(world, limit, waiter.address, waiter.token)
            yield
            bucket.waiters[limit].pop(sequence, None)


def _look(world: World, limit: str, step_id: str, token: int) -> Steps:
    """Let the holder of a slot go on, or free the slot."""
    yield
    placed = world.registers[step_id]
    if isinstance(placed.register, Queued) and placed.sequence == token:
        yield from _admit(world, step_id, placed, placed.register)
        placed = world.registers[step_id]
    position = below(placed.register, placed.sequence)
    if token < position:
        yield from _commit(world, limit, lambda r: core.leave(r, step_id, position))


def _due_ms(world: World, queued: Queued) -> int:
    flow = queued.task.flow
    assert flow is not None
    dues: list[int] = []
    for claim in flow.rates:
        next_us = world.limits.rates.get(claim.key, 0)
        world.limits.rates[claim.key], due_us = reserve(
            next_us, world.now_ms * 1000, claim.interval_us, claim.burst
        )
        dues.append(-(-due_us // 1000))
    return max(dues)
