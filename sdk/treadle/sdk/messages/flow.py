"""What is stored of limits: what a task claims, who holds slots, who waits for one.

a task         ``Flow``: its limits with the keys they had when its step began
limits bucket  per concurrency limit a ``SlotRecord``, per waiting register a ``SlotWaiter``,
               per rate limit a ``RateRecord``
"""

from __future__ import annotations

import msgspec


class SlotClaim(msgspec.Struct, frozen=True, array_like=True):
    """A concurrency limit under which a task is given out."""

    key: str
    """Names the limit's record: a hash of what shares the limit and of its key's value."""
    label: str
    """The same for people, such as ``step orders/charge [42]``."""
    limit: int


class RateClaim(msgspec.Struct, frozen=True, array_like=True):
    """A rate limit under which a task is given out."""

    key: str
    label: str
    interval_us: int
    """Microseconds between two that begin, once the burst is used."""
    burst: int
    period_ms: int


class Flow(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The limits of a step, from when it began."""

    slots: tuple[SlotClaim, ...] = ()
    """In the order in which they are taken: the same for all that share two of them."""
    rates: tuple[RateClaim, ...] = ()
    priority: int = 0
    fair: str = ""
    """Whom the step belongs to: those who wait for one limit take turns."""
    weight: float = 1.0
    """How many turns it has when another has one."""


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """A register that has a slot: it holds the task, or is about to."""

    address: str
    """``domain.run.step.type`` of the register."""
    token: int
    """Sequence of the queued register that took it: a later one of this address replaces it."""
    since_ms: int = 0
    waiter: int = 0
    """Sequence of the waiter to whom it was granted; 0 if it was free."""


class Line(msgspec.Struct, frozen=True, array_like=True):
    """Those who wait for a limit with one priority and one fairness key."""

    priority: int
    fair: str
    weight: float
    since_ms: int
    """Since when the first of them has waited."""
    after: int = 0
    """Waiters up to this sequence had their turn."""
    served: float = 0.0
    """When its next turn is, in turns: it grows by 1 / weight with each."""


class SlotRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One concurrency limit: who holds its slots, and in which lines somebody may wait."""

    label: str = ""
    limit: int = 0
    """As whoever asked last has it."""
    holders: tuple[Holder, ...] = ()
    lines: dict[str, Line] = {}
    arrived: int = 0
    """How many came to wait: whoever finds a line empty meanwhile has to look again."""
    clock: float = 0.0
    """The turn that was given last; a line that begins to wait starts there."""


class SlotWaiter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A queued register that waits for a slot. It is the redo log of the grant: it goes when the
    register has moved on."""

    address: str
    token: int
    line: str
    priority: int = 0
    fair: str = ""
    weight: float = 1.0
    since_ms: int = 0


class RateRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One rate limit: when the next execution may begin if none is saved up."""

    label: str = ""
    next_us: int = 0
    """Theoretical time of the next, microseconds since the epoch."""
    interval_us: int = 0
    burst: int = 0
