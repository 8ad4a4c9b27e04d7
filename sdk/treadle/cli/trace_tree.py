"""A run's spans as a tree in the terminal, and the link to them in a backend."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from treadle.cli import output
from treadle.sdk.errors import UserError
from treadle.sdk.times import age
from treadle.sdk.tracing import names

if TYPE_CHECKING:
    from treadle.sdk.client.tracing import RunTrace
    from treadle.sdk.tracing.span import Span

TRACE_URL = "TREADLE_TRACE_URL"
BAR_CHARS = 24
SHOWN_WAIT_US_MIN = 10_000
_NAME_CHARS_MAX = 56
_NAME_CHARS_MIN = 24
_TOOK_CHARS = 9


def link(found: RunTrace, *, as_json: bool) -> None:
    """Print the link; raise ``UserError`` when there is none."""
    template = os.environ.get(TRACE_URL, "").strip()
    if "{trace_id}" not in template:
        raise UserError(
            f"{TRACE_URL} is {template!r}, which does not hold {{trace_id}}, so there is no link. "
            f"Set it to your backend's, for example "
            f"{TRACE_URL}=http://127.0.0.1:6006/redirects/traces/{{trace_id}}"
        )
    if not found.trace_id:
        raise UserError(
            f"run {found.run!r} was started without a trace, so no backend has it. Start runs with "
            "trace='link', the default, and without OTEL_SDK_DISABLED."
        )
    address = template.replace("{trace_id}", found.trace_id)
    if as_json:
        output.emit({"url": address, "trace_id": found.trace_id})
    else:
        output.say(address)


def show(found: RunTrace, limit: int) -> None:
    """Print the tree; of a loop with more iterations the first and the last ones."""
    is_open = {(span.trace_id, span.span_id) for span in found.open}
    spans = [*found.spans, *found.open]
    root = next(span for span in spans if span.name.startswith(f"{names.INVOKE_WORKFLOW} "))
    if found.trace_id:
        how = "" if found.is_exported else " (not sampled)"
        output.say(f"trace {found.trace_id}{how}", "dim")
    whole = (root.start_us, max(root.end_us, root.start_us + 1))
    below = _children(spans)
    bars = output.has_bars()
    name_chars = _NAME_CHARS_MAX
    if not bars:
        room = output.width() - _TOOK_CHARS - 1
        name_chars = max(_NAME_CHARS_MIN, min(_NAME_CHARS_MAX, room))
    for prefix, span, left_out in _lines(root, below, limit):
        if left_out:
            output.say(f"{prefix}… {left_out} more", "dim")
            continue
        bar = f"  {_bar(span, whole)}" if bars else ""
        _line(prefix, span, name_chars, bar, is_open=(span.trace_id, span.span_id) in is_open)


def _children(spans: Sequence[Span]) -> dict[tuple[str, str], list[Span]]:
    """Return the spans by parent; the root of a segment is shown below its step."""
    below: dict[tuple[str, str], list[Span]] = {}
    steps = {
        span.attributes.get(names.STEP): (span.trace_id, span.span_id)
        for span in spans
        if span.name.startswith(f"{names.INVOKE_AGENT} ")
        and names.CONVERSATION in span.attributes
        and names.SEGMENT not in span.attributes
    }
    for span in spans:
        if _is_dull(span):
            continue
        parent = (span.trace_id, span.parent_id)
        if names.SEGMENT in span.attributes:
            parent = steps.get(span.attributes[names.STEP], parent)
        below.setdefault(parent, []).append(span)
    for children in below.values():
        children.sort(key=lambda span: (span.start_us, span.end_us))
    return below


def _is_dull(span: Span) -> bool:
    """True for what a backend needs and a person does not: marks, and waits too short to matter."""
    is_short = span.end_us - span.start_us < SHOWN_WAIT_US_MIN
    return span.name == names.RUN_STARTED or (span.name == names.QUEUE_WAIT and is_short)


def _lines(
    root: Span, below: dict[tuple[str, str], list[Span]], limit: int
) -> Iterator[tuple[str, Span, int]]:
    """Yield prefix, span and, where spans are left out, how many."""

    def go(span: Span, first: str, rest: str) -> Iterator[tuple[str, Span, int]]:
        yield first, span, 0
        children = below.get((span.trace_id, span.span_id), [])
        left_out = max(0, len(children) - limit)
        head = (limit + 1) // 2
        for number, child in enumerate(children):
            if left_out and number == head:
                yield f"{rest}│  ", child, left_out
            if left_out and head <= number < head + left_out:
                continue
            is_last = number == len(children) - 1
            yield from go(
                child, rest + ("└─ " if is_last else "├─ "), rest + ("   " if is_last else "│  ")
            )

    return go(root, "", "")


def _line(prefix: str, span: Span, name_chars: int, bar: str, *, is_open: bool) -> None:
    name = output.one_line(span.name)
    label = f"{prefix}{name}"
    if len(label) > name_chars:
        label = label[: name_chars - 1] + "…"
    took = f"{duration(span.end_us - span.start_us)}{'…' if is_open else ''}"
    about = "  ".join(_about(span))
    line = f"{label:<{name_chars}} {took:>{_TOOK_CHARS}}{bar}  {about}".rstrip()
    output.say(line, "red" if span.error else "cyan" if is_open else "")


def _bar(span: Span, whole: tuple[int, int]) -> str:
    """Return where in the run a span lies."""
    start, end = whole
    scale = BAR_CHARS / (end - start)
    first = min(BAR_CHARS - 1, max(0, int((span.start_us - start) * scale)))
    last = min(BAR_CHARS, max(first + 1, round((span.end_us - start) * scale)))
    return " " * first + "▇" * (last - first) + " " * (BAR_CHARS - last)


def _about(span: Span) -> Iterator[str]:
    have = span.attributes
    if span.error:
        yield output.one_line(f"{span.error}: {span.error_text}" if span.error_text else span.error)
    if names.USAGE_INPUT in have:
        yield f"{have[names.USAGE_INPUT]}+{have.get(names.USAGE_OUTPUT, 0)} tokens"
    elif span.name.startswith("invoke_") and names.INPUT_TOKENS in have:
        yield f"{have[names.INPUT_TOKENS]}+{have[names.OUTPUT_TOKENS]} tokens"
    cost = have.get(names.CALL_COST_USD) or have.get(names.COST_USD)
    if cost:
        yield f"${cost:.4f}"
    if span.name == "wait" and (reason := have.get(names.WAIT_REASON)):
        yield output.one_line(str(reason))
    if child := have.get(names.CHILD_RUN):
        yield f"treadle run trace {child}"


def duration(microseconds: int) -> str:
    """Return a duration as a person reads it: ``0.4ms``, ``350ms``, ``4.2s``, ``2m10s``."""
    if microseconds < 10_000:
        return f"{max(0, microseconds) / 1_000:.1f}ms"
    return age(microseconds // 1_000)
