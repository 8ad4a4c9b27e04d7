"""How many at once, how many in a while: the limits that steps and runs are written with.

A limit is shared by everything that names the same one: its scope says by what, its key says by
which value. What they promise is in ``docs/flow-control.md``; what is stored of them is in
``messages/flow.py``.
"""

from __future__ import annotations

from typing import Literal, cast

import msgspec

from treadle.sdk.errors import UserError

Scope = Literal["step", "workflow", "type", "namespace"]

PRIORITY_MAX = 100
"""Priorities go from minus this to this."""
AGEING_MS = 10_000
"""One point of priority is worth so long a wait: whoever has waited longer by that comes first."""


def check_priority(priority: object) -> int:
    """Return the number if it may be a priority; raise ``UserError`` otherwise."""
    is_number = isinstance(priority, int) and not isinstance(priority, bool)
    if is_number and abs(cast("int", priority)) <= PRIORITY_MAX:
        return cast("int", priority)
    raise UserError(
        f"priority {priority!r} is not a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}. "
        "Give one; a higher one comes first, and 0 leaves it to the steps."
    )


class Concurrency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How many executions of a step, or how many runs, there are at a time."""

    limit: int
    """Most at a time, 1 to 1,000."""
    key: str = ""
    """One limit for each value of this expression over ``input`` and ``steps``, for example
    ``input["customer"]``; empty is one for all."""
    scope: Scope = "step"
    """What shares the limit: this ``step`` in all runs, the steps of the ``workflow`` that have
    one of this name, all steps of the task ``type``, or of the ``namespace`` by this name."""
    name: str = ""
    """Name of a limit that several steps share; required for the scope ``namespace``."""


class RateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How many executions of a step begin in a while. Who comes too early sleeps, and no worker,
    slot or attempt is used for it."""

    limit: int
    """Executions per period, spread evenly once the burst is used."""
    per_s: float
    """The period in seconds."""
    burst: int = 0
    """How many may begin at once after a pause; 0 is as many as the limit."""
    key: str = ""
    """One limit for each value of this expression; empty is one for all."""
    scope: Scope = "step"
    """What shares the limit, as for concurrency."""
    name: str = ""
    """Name of a limit that several steps share; required for the scope ``namespace``."""


def key_that_names(limit: Concurrency | RateLimit) -> str:
    """Return what of its key is part of which limit it is, beside the scope and the name.

    Nothing if it has a name: that is enough, and others find the same value at other places.
    """
    return "" if limit.name else limit.key
