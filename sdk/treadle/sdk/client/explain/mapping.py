"""What a map is at: what the chunks of its list say that are under way. Pure.

A map that works at any chunk gets on; of one that does not, the first chunk is told that needs
somebody most.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.sdk.client.explain.facts import Facts
from treadle.sdk.client.explain.reason import Level, Reason
from treadle.sdk.client.view import StepView
from treadle.sdk.subjects import parse_chunk
from treadle.sdk.times import since
from treadle.sdk.wording import items_text

_ORDER: tuple[Level, ...] = ("works", "problem", "waits", "pause", "note", "ended")


def mapped(step: StepView, facts: Facts, found: Sequence[Reason]) -> Reason | None:
    """Return what a map is at, from what those of its chunks are at that say something.

    None if a pause of the run holds them all: a note says so.
    """
    if facts.view.pause is not None and not found:
        return None
    done = items_text(step.items_done, step.items, step.items_failed)
    when = since(step.started_ms, facts.now_ms)
    text = f"step {step.id!r} has done {done} ({when})"
    first = min(found, key=lambda each: _ORDER.index(each.level), default=None)
    if first is None or first.level == "works":
        return Reason(
            kind="mapping", level="works", text=text, step=step.id, since_ms=step.since_ms
        )
    _, number = parse_chunk(first.step) or (step.id, 0)
    count = len(facts.chunks.get(step.id, ()))
    of = "" if count == 1 else ", one of those under way,"
    said = first.text.removeprefix(f"step {first.step!r} ")
    return msgspec.structs.replace(first, text=f"{text}; chunk {number}{of} {said}", step=step.id)
