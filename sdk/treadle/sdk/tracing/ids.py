"""Ids of traces and spans: pure functions of durable facts.

Nothing has to survive a process for its span to be found: whoever knows the run's trace and which
step, iteration and attempt it is about names the same span. The trace's own id is chosen once, by
whoever requests the run, and stored with the request.

    trace reference   ``<32 hex>-<2 hex>``: the trace's id and its W3C flags, ``01`` is sampled
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import NamedTuple

SAMPLED = 0x01
SAMPLED_SUFFIX = "-01"
"""How the reference of a trace ends that is exported."""
ITERATIONS_OF_A_SEGMENT = 200
"""A trace with more than a thousand spans is shown in parts or not at all; the next iterations of
a loop are in a trace of their own, linked to this one."""

_PERSON = b"treadle-trace"
_EMPTY = {size: hashlib.blake2b(digest_size=size, person=_PERSON) for size in (8, 16)}
"""Hashes of nothing yet: a copy costs a third of a new one."""


class TraceRef(NamedTuple):
    """The trace of a run: 32 hexadecimal digits, and whether its spans are exported."""

    trace_id: str
    is_sampled: bool

    def __str__(self) -> str:
        return f"{self.trace_id}-{SAMPLED if self.is_sampled else 0:02x}"


@lru_cache(maxsize=4_096)
def parse_ref(text: str) -> TraceRef | None:
    """Return the reference that a message carries; None for a run without a trace."""
    trace_id, separator, flags = text.partition("-")
    if not separator or len(trace_id) != 32:
        return None
    try:
        number, bits = int(trace_id, 16), int(flags, 16)
    except ValueError:
        return None
    return TraceRef(trace_id, bool(bits & SAMPLED)) if number else None


@lru_cache(maxsize=4_096)
def root_span(trace_id: str) -> str:
    """Return the id of the run's span."""
    return _span(trace_id, "run")


@lru_cache(maxsize=4_096)
def step_span(trace_id: str, step: str) -> str:
    """Return the id of a step's span."""
    return _span(trace_id, "step", step)


def attempt_span(trace_id: str, step: str, iteration: int, attempt: int) -> str:
    """Return the id of the span of one execution."""
    return _span(trace_id, "attempt", step, str(iteration), str(attempt))


def part_span(trace_id: str, step: str, *parts: str) -> str:
    """Return the id of a span within a step that its parts name, the kind first."""
    return _span(trace_id, "part", step, *parts)


def segment_trace(trace_id: str, step: str, segment: int) -> str:
    """Return the trace that holds a segment of a long loop; the first is the run's own."""
    return trace_id if segment == 0 else _hash(16, trace_id, "segment", step, str(segment))


def child_ref(ref: TraceRef, step: str, attempt: int) -> TraceRef:
    """Return the trace of the run that a step starts with its n-th attempt: one of its own."""
    return TraceRef(_hash(16, ref.trace_id, "child", step, str(attempt)), ref.is_sampled)


def segment_of(iteration: int) -> int:
    """Return the segment that an iteration is in; both count from 0."""
    return iteration // ITERATIONS_OF_A_SEGMENT


def attempt_place(ref: TraceRef, step: str, iteration: int, attempt: int) -> tuple[str, str]:
    """Return trace and span id of one execution: where the spans of its handler belong."""
    trace_id = segment_trace(ref.trace_id, step, segment_of(iteration))
    return trace_id, attempt_span(ref.trace_id, step, iteration, attempt)


def traceparent(trace_id: str, span_id: str, *, is_sampled: bool) -> str:
    """Return the W3C header that names a span."""
    return f"00-{trace_id}-{span_id}-{SAMPLED if is_sampled else 0:02x}"


def task_traceparent(ref: TraceRef, step: str, iteration: int, attempt: int) -> str:
    """Return the header of a task: the span of the execution that it asks for."""
    trace_id, span_id = attempt_place(ref, step, iteration, attempt)
    return traceparent(trace_id, span_id, is_sampled=ref.is_sampled)


def _span(*parts: str) -> str:
    return _hash(8, *parts)


def _hash(size: int, *parts: str) -> str:
    digest = _EMPTY[size].copy()
    digest.update("\x1f".join(parts).encode())
    found = digest.hexdigest()
    return found if found.strip("0") else found[:-1] + "1"
