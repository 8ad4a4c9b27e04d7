"""What the span of a step that starts runs says of them. Pure: their traces are known by name."""

from __future__ import annotations

from msgspec.structs import replace

from treadle.sdk.definition import Step, SubWorkflowStep
from treadle.sdk.run import RunDocument, child_of
from treadle.sdk.tracing import ids, names
from treadle.sdk.tracing.span import Span, SpanLink

LINKS_MAX = 10
"""Runs that one span links to, the newest: a policy may start hundreds."""


def with_children(span: Span, ref: ids.TraceRef, step: Step, run: RunDocument) -> Span:
    """Return the span of a step with the run it has started, and links to all of them."""
    entry = run.steps[step.id]
    if not isinstance(step, SubWorkflowStep) or not entry.attempt:
        return span
    last = entry.attempt - bool(entry.due_ms)
    traces = [
        ids.child_ref(ref, step.id, attempt).trace_id
        for attempt in range(max(1, last - LINKS_MAX + 1), last + 1)
    ]
    links = tuple(SpanLink(trace, ids.root_span(trace), "child") for trace in traces)
    attributes = {
        **span.attributes,
        names.CHILD_RUN: child_of(run, step.id, last),
        names.CHILD_WORKFLOW: step.workflow,
    }
    return replace(span, attributes=attributes, links=(*span.links, *links))
