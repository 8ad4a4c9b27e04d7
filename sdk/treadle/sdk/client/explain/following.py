"""A run, and those it waits for: its children, and whoever holds its lane.

    run ──awaits──> child          it goes on when the child has ended: each of its children
    run ──queued──> holders        it begins when fewer than its places are held: any of them

A run that is come to again on the way down waits for itself, and so does everyone in between:
nobody of them gets on. What is read of one run is a moment younger than what was read of the one
before it, and each of a ring stands until the next one has ended, so a ring that was seen is one,
unless somebody has just broken it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from treadle.sdk.client.explain.asking import elsewhere, facts_of
from treadle.sdk.client.explain.facts import Facts, Holder
from treadle.sdk.client.explain.reason import Explanation
from treadle.sdk.client.explain.reasons import explanation_of
from treadle.sdk.client.explain.rings import Link, Ring, ring_of
from treadle.sdk.client.looking import Look, look
from treadle.sdk.client.store import Store
from treadle.sdk.errors import UnknownRun
from treadle.sdk.limits import PLACES_MAX
from treadle.sdk.run import RunDocument

RUNS_MAX = 2 * PLACES_MAX
"""Runs that one explanation looks at: all that hold one lane, and what those wait for."""
CHILDREN_MAX = 10
"""Children of one run that are looked at."""
AT_ONCE = 8
"""Looked at side by side: each listens to workers for up to half a second, and mostly waits."""


async def explain(store: Store, run: str) -> Explanation:
    """Return why a run stands, or what it does; raise ``UnknownRun`` if there is none."""
    try:
        found = await look(store, run)
    except UnknownRun as error:
        raise UnknownRun(run, await elsewhere(store, run)) from error
    facts = await facts_of(store, found)
    return (await _Following(store).told(found, facts, ())).explanation


class _Told(NamedTuple):
    """What a run that is waited for is doing."""

    explanation: Explanation
    ring: Ring | None = None
    """The ring for which it never ends."""
    since_ms: int = 0
    """Since when it is at work."""


class _Following:
    """One explanation: what it may still look at."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._left = RUNS_MAX

    async def told(self, found: Look, facts: Facts, path: Sequence[Link]) -> _Told:
        """Explain a run that was looked at, with those it waits for."""
        # Without an engine it does not matter what other runs are doing.
        has_engine = not any(each.role == "engine" for each in facts.silent)
        if has_engine and not facts.view.is_terminal:
            facts = await self._with_children(facts, path)
            facts = await self._with_holders(facts, path)
        return _Told(explanation_of(facts), facts.ring, _began_ms(found.document))

    async def _with_children(self, facts: Facts, path: Sequence[Link]) -> Facts:
        waits = [step for step in facts.view.steps if step.doing == "awaiting_child"]
        links = [
            Link(run=facts.view.id, on=step.child, step=step.id, ends_ms=facts.view.deadline_ms)
            for step in waits[:CHILDREN_MAX]
        ]
        found = await asyncio.gather(*(self._end(link, path) for link in links))
        told = {link.on: each for link, each in zip(links, found, strict=True)}
        children = {run: each.explanation for run, each in told.items() if isinstance(each, _Told)}
        return replace(facts, children=children, ring=_ring(facts.view.id, told.values()))

    async def _with_holders(self, facts: Facts, path: Sequence[Link]) -> Facts:
        """Ask those who hold the lane, until it is known whether it may have a place."""
        ahead, view = facts.view.ahead, facts.view
        if ahead is None or ahead.count < ahead.places:
            return facts
        links = [
            Link(run=view.id, on=holder, lane=view.lane, requested_ms=view.requested_ms)
            for holder in ahead.holders
        ]
        told: dict[str, _Told | Ring | None] = {}
        for start in range(0, len(links), AT_ONCE):
            some = links[start : start + AT_ONCE]
            found = await asyncio.gather(*(self._end(link, path) for link in some))
            told |= {link.on: each for link, each in zip(some, found, strict=True)}
            unknown = len(links) - len(told)
            stuck = sum(_is_stuck(each) for each in told.values())
            if stuck >= ahead.places or stuck + unknown < ahead.places:
                break
        holders = {
            run: Holder(explanation=each.explanation, since_ms=each.since_ms)
            for run, each in told.items()
            if isinstance(each, _Told)
        }
        ring = _ring(view.id, told.values())
        in_rings = sum(_ring(view.id, [each]) is not None for each in told.values())
        return replace(
            facts,
            holders=holders,
            holders_stuck=sum(map(_is_stuck, told.values())),
            ring=ring if in_rings >= ahead.places else None,
        )

    async def _end(self, link: Link, path: Sequence[Link]) -> _Told | Ring | None:
        """Return what keeps a run from its end; None if it has gone, or is one too many."""
        links = (*path, link)
        if ring := ring_of(links):
            return ring
        self._left -= 1
        if self._left < 0:
            return None
        with contextlib.suppress(UnknownRun):  # The request of a child is on its way.
            found = await look(self._store, link.on)
            facts = await facts_of(self._store, found, is_asked_for=False)
            return await self.told(found, facts, links)
        return None


def _is_stuck(told: _Told | Ring | None) -> bool:
    return isinstance(told, Ring) or (told is not None and told.explanation.is_stuck)


def _ring(run: str, told: Iterable[_Told | Ring | None]) -> Ring | None:
    """Return the ring in which those wait that a run waits for; one that it is part of first."""
    found = [each.ring if isinstance(each, _Told) else each for each in told]
    rings = [ring for ring in found if ring is not None]
    return next((ring for ring in rings if run in ring.runs), rings[0] if rings else None)


def _began_ms(document: RunDocument | None) -> int:
    began = [entry.started_ms for entry in document.steps.values()] if document else []
    return min((each for each in began if each), default=0)
