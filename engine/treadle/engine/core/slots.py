"""Who has a slot of a concurrency limit, who waits for one, and whose turn is next; pure.

    enter   a queued register asks: it holds a slot from now on, or there is none for it
    queue   it waits: its waiter is stored, and its line may hold somebody
    leave   a register has moved on: what it held before that is free
    grant   the first of the line whose turn it is holds a slot

A holder is a register at a token, and tokens only grow. So whoever comes late, with what was true
a while ago, removes nothing that was taken since, and what it adds is void: its register has moved
on, and the next look at it says so. Every function may be applied again.

Turns: higher priorities first, where ten seconds of waiting are worth a point. Within a priority
the fairness keys take turns by start-time fair queueing: a line's next turn is 1 / weight after its
last, and one that begins to wait starts at the present turn.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.flow import AGEING_MS
from treadle.sdk.messages import Holder, Line, SlotRecord, SlotWaiter

LINES_MAX = 2_000
"""Lines of one limit; those who come with another fairness key then share a line."""

Entry = Literal["held", "full", "late"]


def enter(
    record: SlotRecord, address: str, token: int, limit: int, now_ms: int
) -> tuple[SlotRecord, Entry]:
    """Let a register take a free slot, unless others wait for one; its older ones are free.

    ``late``: the register was seen at a later token.
    """
    own = [holder.token for holder in record.holders if holder.address == address]
    if own and max(own) > token:
        return record, "late"
    record = _limited(leave(record, address, token), limit)
    if token in own:
        return record, "held"
    if record.lines or len(record.holders) >= limit:
        return record, "full"
    return _held(record, Holder(address, token, now_ms)), "held"


def queue(record: SlotRecord, waiter: SlotWaiter, limit: int) -> SlotRecord:
    """Note that somebody waits in a line."""
    line = record.lines.get(waiter.line)
    if line is None:
        line = Line(
            waiter.priority, waiter.fair, waiter.weight, waiter.since_ms, served=record.clock
        )
    elif waiter.since_ms < line.since_ms:
        line = msgspec.structs.replace(line, since_ms=waiter.since_ms)
    record = msgspec.structs.replace(record, arrived=record.arrived + 1)
    return _limited(_lined(record, waiter.line, line), limit)


def leave(record: SlotRecord, address: str, below: int) -> SlotRecord:
    """Free what a register took at tokens below this one."""
    kept = tuple(h for h in record.holders if h.address != address or h.token >= below)
    if len(kept) == len(record.holders):
        return record
    return msgspec.structs.replace(record, holders=kept)


def next_line(record: SlotRecord) -> str | None:
    """Return the line whose turn it is; None if no slot is free or nobody waits."""
    if not record.lines or len(record.holders) >= record.limit:
        return None
    oldest: dict[int, int] = {}
    for line in record.lines.values():
        oldest[line.priority] = min(oldest.get(line.priority, line.since_ms), line.since_ms)
    priority = min(oldest, key=lambda p: (oldest[p] - p * AGEING_MS, -p))
    return min(
        (name for name, line in record.lines.items() if line.priority == priority),
        key=lambda name: (record.lines[name].served, record.lines[name].since_ms, name),
    )


def grant(
    record: SlotRecord, line_name: str, head: SlotWaiter | None, sequence: int, now_ms: int
) -> tuple[SlotRecord, bool]:
    """Give the first of a line a slot; return whether it had none. Without one the line goes."""
    line = record.lines[line_name]
    if head is None:
        lines = {name: line for name, line in record.lines.items() if name != line_name}
        return msgspec.structs.replace(record, lines=lines), False
    moved = msgspec.structs.replace(
        line, after=sequence, since_ms=max(line.since_ms, head.since_ms)
    )
    record = _lined(record, line_name, moved)
    tokens = [holder.token for holder in record.holders if holder.address == head.address]
    if tokens and max(tokens) >= head.token:
        return record, False
    turn = max(line.served, record.clock)
    moved = msgspec.structs.replace(moved, weight=head.weight, served=turn + 1 / head.weight)
    record = leave(_lined(record, line_name, moved), head.address, head.token)
    record = msgspec.structs.replace(record, clock=turn)
    return _held(record, Holder(head.address, head.token, now_ms, sequence)), True


def is_idle(record: SlotRecord) -> bool:
    """True when nobody holds a slot or may wait for one."""
    return not record.holders and not record.lines


def _held(record: SlotRecord, holder: Holder) -> SlotRecord:
    return msgspec.structs.replace(record, holders=(*record.holders, holder))


def _lined(record: SlotRecord, name: str, line: Line) -> SlotRecord:
    if record.lines.get(name) == line:
        return record
    return msgspec.structs.replace(record, lines={**record.lines, name: line})


def _limited(record: SlotRecord, limit: int) -> SlotRecord:
    return record if record.limit == limit else msgspec.structs.replace(record, limit=limit)
