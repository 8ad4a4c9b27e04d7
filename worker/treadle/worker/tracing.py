"""Where the spans of a handler belong: under the span of its execution.

That span is not open anywhere: the engine's projector writes it when the execution is over, from
what is stored. Its id is known before, so whatever a handler traces is its child.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from treadle.sdk.messages import Task
from treadle.sdk.tracing import place as places
from treadle.sdk.tracing.ids import TraceRef, attempt_place, parse_ref

if TYPE_CHECKING:
    from treadle.worker.held import HeldTask


class _ExecutionSpan(NonRecordingSpan):
    """The span of an execution. Its ids are made when something asks: most handlers do not."""

    def __init__(self, ref: TraceRef, step: str, task: Task) -> None:
        self._ref = ref
        self._step = step
        self._task = task
        self._named: SpanContext | None = None

    def get_span_context(self) -> SpanContext:
        if self._named is None:
            ref, task = self._ref, self._task
            trace_id, span_id = attempt_place(ref, self._step, task.iteration, task.attempt)
            flags = TraceFlags(TraceFlags.SAMPLED if ref.is_sampled else TraceFlags.DEFAULT)
            self._named = SpanContext(
                int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flags
            )
        return self._named

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.get_span_context()!r})"


def enter(held: HeldTask) -> None:
    """Make an execution and its span the current ones, for as long as this asyncio task runs."""
    places.enter(held)
    if not held.task.trace:
        return
    ref = parse_ref(held.task.trace)
    if ref is not None:
        context.attach(trace.set_span_in_context(_ExecutionSpan(ref, held.address.step, held.task)))
