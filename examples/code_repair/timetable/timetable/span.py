"""Half-open spans of time: the start belongs to a span, the end does not."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Span:
    """From ``start`` up to, but without, ``end``."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise ValueError(f"a span must end after it starts, not {self.start} to {self.end}")

    @property
    def minutes(self) -> int:
        return self.end - self.start

    def overlaps(self, other: "Span") -> bool:
        """True when the two spans share at least one minute."""
        return self.start <= other.end and other.start <= self.end

    def contains(self, other: "Span") -> bool:
        """True when every minute of the other span belongs to this one."""
        return self.start <= other.start and other.end <= self.end


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the same minutes as spans that are sorted and do not touch."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, span.end)
        else:
            merged.append(span)
    return merged


def gaps(within: Span, taken: Iterable[Span]) -> list[Span]:
    """Return the parts of ``within`` that no taken span covers; these lie within it."""
    free: list[Span] = []
    cursor = within.start
    for span in merge(taken):
        if span.start > cursor:
            free.append(Span(cursor, span.start))
        cursor = max(cursor, span.end)
    return free
