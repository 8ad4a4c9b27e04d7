"""What a client asks an index of runs, and what it answers. Both ignore fields they do not know.

    client  --RunsAsked-->  <ns>.index  --RunsFound-->  client

An index says which runs there are. What they are like is read in the bucket.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from treadle.sdk.errors import UserError
from treadle.sdk.listing.filters import RunFilter

ANSWERED_MAX = 1_000
"""Runs of one answer: it stays far below what a server takes."""
ANSWER_S = 3.0
"""How long a client waits for an index before it reads the documents itself."""
READ_ON_S = 2.0
"""How long an index reads on for an answer that has to know what was stored just now."""


class Position(NamedTuple):
    """Where in the order of a listing a run stands: newest request first."""

    requested_ms: int
    run: str

    def to_text(self) -> str:
        """Return it as the cursor that callers keep."""
        return f"{self.requested_ms}.{self.run}"


def position_of(cursor: str | None) -> Position | None:
    """Return where a listing goes on; raise ``UserError`` if the text is no cursor."""
    if cursor is None:
        return None
    digits, dot, run = cursor.partition(".")
    if not dot or not run or not digits.isdecimal() or len(digits) > 18:
        raise UserError(
            f"{cursor!r} is no cursor of a listing. Pass the `cursor` of the page before it."
        )
    return Position(int(digits), run)


class RunsAsked(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which runs, newest request first."""

    filter: RunFilter = RunFilter()
    limit: int = ANSWERED_MAX
    below: Position | None = None
    """Only runs behind that one."""
    at_least: int = 0
    """Read the bucket up to this sequence first."""
    known: tuple[str, ...] = ()
    """Tell of these whether they have a document."""
    counts: bool = False
    """Count all that match, by status."""


class RunFound(msgspec.Struct, frozen=True, array_like=True):
    """A run that matches."""

    run: str
    requested_ms: int
    ahead: int = -1
    """Of a queued run: how many of its lane come before it."""
    holder: str = ""
    """And the first of them that is active."""


class RunsFound(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The answer."""

    position: int
    """Sequence up to which the bucket was read."""
    runs: tuple[RunFound, ...] = ()
    is_more: bool = False
    known: tuple[str, ...] = ()
    counts: dict[str, int] = {}
