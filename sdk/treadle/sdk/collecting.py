"""Collecting starts: many starts of a key become one run. How a workflow says so.

    Debounce   the last input, when no start came for a while
    Batch      the list of the inputs, when there are enough of them, or after a while

What is promised is in ``docs/debounce-and-batch.md``; what is stored is in ``collected.py``.
"""

from __future__ import annotations

import msgspec


class Debounce(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="debounce",
    tag_field="kind",
):
    """The starts of a key become one run with the last input, once they have come to rest."""

    period_s: float
    """The run begins when no start came for so many seconds."""
    max_wait_s: float
    """It begins so many seconds after the first start at the latest, however many come."""
    key: str = ""
    """Starts with different values of this expression over ``input`` do not meet, for example
    ``input["customer"]``; empty is all starts of the workflow together."""


class Batch(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag="batch",
    tag_field="kind",
):
    """The starts of a key become one run, whose input is the list of theirs in their order."""

    max_size: int
    """The run begins when so many starts have come."""
    max_wait_s: float
    """It begins so many seconds after the first start at the latest, with what has come."""
    key: str = ""
    """Starts with different values of this expression over ``input`` do not meet, for example
    ``input["customer"]``; empty is all starts of the workflow together."""


Collect = Debounce | Batch
