"""Runs that wait for each other in a ring, so that none of them ends. Pure.

a ──child──> b ──lane──> c ──child──> d ──lane──> a
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.sdk.client.explain.reason import Reason
from treadle.sdk.times import date

LINKS_SHOWN_MAX = 12


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One run that goes on when another one has ended."""

    run: str
    on: str
    step: str = ""
    """The step that waits for a child; empty is the wait for a lane."""
    lane: str = ""
    requested_ms: int = 0
    """Of one that waits for a lane: when it was requested."""
    ends_ms: int = 0
    """When the run ends by its own timeout; 0 is never."""


class Ring(msgspec.Struct, frozen=True):
    """Links of which each one leads to the next, and the last one to the first."""

    links: tuple[Link, ...]

    @property
    def runs(self) -> frozenset[str]:
        """The runs that wait for each other."""
        return frozenset(link.run for link in self.links)

    @property
    def victim(self) -> str:
        """The run whose cancel breaks it at the least cost: nothing of it has begun.

        Whoever is asked names the same one: of those that are queued the youngest.
        """
        queued = [link for link in self.links if link.lane]
        return max(queued, key=lambda link: (link.requested_ms, link.run)).run

    def seen_from(self, run: str) -> Ring:
        """Return it with a run at its beginning."""
        at = next(index for index, link in enumerate(self.links) if link.run == run)
        return Ring((*self.links[at:], *self.links[:at]))


def ring_of(path: Sequence[Link]) -> Ring | None:
    """Return the ring that the last link of a path closes; None if it leads on."""
    for index, link in enumerate(path):
        if link.run == path[-1].on:
            return Ring(tuple(path[index:]))
    return None


def ring_reason(ring: Ring, run: str) -> Reason:
    """Return the reason of a run that is part of a ring."""
    links = ring.seen_from(run).links
    shown = [_text(link) for link in links[:LINKS_SHOWN_MAX]]
    if len(links) > LINKS_SHOWN_MAX:
        shown.append(f"waits, as {len(links) - LINKS_SHOWN_MAX} more do")
    text = f"runs wait for each other, and none gets on: {run} {', which '.join(shown)}"
    bounded = min((link for link in links if link.ends_ms), key=lambda it: it.ends_ms, default=None)
    if bounded is not None:
        text = f"{text}; the timeout of {bounded.run} ends that at {date(bounded.ends_ms)}"
    return Reason(
        kind="deadlock",
        level="problem",
        text=text,
        command=f"treadle run cancel {ring.victim}",
        step=links[0].step,
        until_ms=bounded.ends_ms if bounded is not None else 0,
    )


def _text(link: Link) -> str:
    if link.step:
        return f"waits in step {link.step!r} for its child {link.on}"
    return f"waits in lane {link.lane!r} for {link.on}"
