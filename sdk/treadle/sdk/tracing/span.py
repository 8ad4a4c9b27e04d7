"""A span as data: what an exporter sends, what the terminal draws, what tests compare.

Times are microseconds since the epoch. Ids are hexadecimal: 32 digits of a trace, 16 of a span.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

Value = str | int | float | bool
NO_CONTENT: Mapping[int, dict[str, str]] = {}
SpanKind = Literal["internal", "client", "consumer"]


class SpanLink(msgspec.Struct, frozen=True):
    """Another span that this one has to do with."""

    trace_id: str
    span_id: str
    relation: str
    trace_state: str = ""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is over, with its place in a trace."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    """Empty: the root of its trace."""
    name: str
    kind: SpanKind = "internal"
    start_us: int
    end_us: int
    attributes: dict[str, Value] = {}
    error: str = ""
    """``error.type`` of what failed; empty is no error."""
    error_text: str = ""
    links: tuple[SpanLink, ...] = ()


class SpanPart(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """Something an execution did, as its verdict tells it: a model call, a tool call.

    It becomes a span below the execution. No content, ever: names, numbers and times.
    """

    number: int
    """Place in the step's journal. What is told twice has one number, and is one span."""
    name: str
    start_us: int
    end_us: int
    attributes: dict[str, Value] = {}
    error: str = ""
    attempt: int = 0
    """The attempt that did it; 0 is the one that tells it."""
