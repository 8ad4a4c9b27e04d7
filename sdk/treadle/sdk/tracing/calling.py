"""What a start says of its trace: a new one that links to the caller's, or the caller's own.

Whether it is sampled is decided here, once, by OTEL_TRACES_SAMPLER and its argument, and stored
with the request: everybody after that follows the flag.
"""

from __future__ import annotations

import os
import secrets
from typing import Literal, NamedTuple

from opentelemetry import trace
from opentelemetry.trace import SpanContext, TraceFlags

from treadle.sdk.errors import UserError
from treadle.sdk.tracing import names
from treadle.sdk.tracing.ids import TraceRef, parse_ref, root_span, traceparent

TraceMode = Literal["link", "join", "off"]
"""``link``: a trace of its own with a link to the caller's span. ``join``: part of the caller's
trace. ``off``: none."""
_MODES = ("link", "join", "off")
_RATIO_BITS = 1 << 64


class Origin(NamedTuple):
    """What a request stores of its trace."""

    ref: str = ""
    caller: str = ""
    """The caller's span as a W3C traceparent; empty if there is none."""
    state: str = ""
    """The caller's W3C tracestate."""


def origin(mode: TraceMode | None) -> Origin:
    """Return what a start that is made here and now stores of its trace.

    None is ``link``, or ``off`` where OTEL_SDK_DISABLED is true. Raises ``UserError`` for a mode
    or a sampler that does not exist.
    """
    if mode is None:
        mode = "off" if _is_true("OTEL_SDK_DISABLED") else "link"
    if mode not in _MODES:
        raise UserError(f"trace {mode!r} is none of {', '.join(_MODES)}. Choose one of them.")
    if mode == "off":
        return Origin()
    calling = trace.get_current_span().get_span_context()
    if not calling.is_valid:
        trace_id = secrets.token_hex(16)
        return Origin(str(TraceRef(trace_id, _decides(trace_id, None))))
    caller_id = trace.format_trace_id(calling.trace_id)
    trace_id = caller_id if mode == "join" else secrets.token_hex(16)
    ref = TraceRef(trace_id, _decides(trace_id, calling))
    span_id = trace.format_span_id(calling.span_id)
    caller = traceparent(caller_id, span_id, is_sampled=calling.trace_flags.sampled)
    return Origin(str(ref), caller, calling.trace_state.to_header())


def link_to_run(started: Origin) -> None:
    """Let the current span link to the run that it has started; the run's span links back."""
    ref = parse_ref(started.ref)
    if ref is None or not started.caller or ref.trace_id in started.caller:
        return
    flags = TraceFlags(TraceFlags.SAMPLED if ref.is_sampled else TraceFlags.DEFAULT)
    root = int(root_span(ref.trace_id), 16)
    context = SpanContext(int(ref.trace_id, 16), root, is_remote=True, trace_flags=flags)
    trace.get_current_span().add_link(context, {names.LINK: "run"})


def _decides(trace_id: str, parent: SpanContext | None) -> bool:
    """Return whether the sampler of the environment samples a trace."""
    name = os.environ.get("OTEL_TRACES_SAMPLER", "").strip().lower() or "parentbased_always_on"
    root = name.removeprefix("parentbased_")
    if name != root and parent is not None:
        return parent.trace_flags.sampled
    match root:
        case "always_on":
            return True
        case "always_off":
            return False
        case "traceidratio":
            return int(trace_id[16:], 16) < round(_ratio() * _RATIO_BITS)
        case _:
            raise UserError(
                f"OTEL_TRACES_SAMPLER is {name!r}, which does not exist. Set it to always_on, "
                "always_off or traceidratio, each also with parentbased_ before it."
            )


def _ratio() -> float:
    text = os.environ.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1"
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise UserError(
            f"OTEL_TRACES_SAMPLER_ARG is {text!r}: the share of traces that are sampled is a "
            "number from 0 to 1. Set it to one."
        )
    return ratio


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "").strip().lower() == "true"
