"""The spans of a run, one by one: names, places, attributes.

A flat tree: run, steps, executions, and below an execution what it did. The executions of a long
loop are in segments, each a trace of its own whose root stands for the step.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from treadle.sdk.definition import (
    AgentLoopStep,
    ApprovalStep,
    ChoiceStep,
    EventStep,
    MapStep,
    RespondStep,
    SignalStep,
    SleepStep,
    Step,
    SubWorkflowStep,
)
from treadle.sdk.messages import (
    ChunkDone,
    RunRequested,
    Settled,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    TaskLost,
)
from treadle.sdk.run import RunDocument, StepEntry
from treadle.sdk.spending import NOTHING, Spent, plus
from treadle.sdk.subjects import parse_chunk, step_of
from treadle.sdk.tracing import ids, names
from treadle.sdk.tracing.span import Span, SpanLink, SpanPart, Value

HASH_CHARS = 12
SHORT_WAITS = ("loop delay", "retry", "parked")
"""Reasons of a wait that are in its name; others may be long, or all different."""

_VERDICTS: dict[type[Settled], str] = {
    StepContinued: "continue",
    StepWaiting: "wait",
    StepCompleted: "complete",
    StepFailed: "fail",
    TaskLost: "lost",
}


class Pen(NamedTuple):
    """Draws the spans of one run."""

    run: str
    workflow: str
    ref: ids.TraceRef
    request: RunRequested
    live: bool

    # ---------------------------------------------------------------- the run

    def started(self, at_us: int) -> Span:
        """Return what makes a run visible before its end: its root, or a mark below it."""
        if self.live:
            return self._root(at_us, at_us, {})
        return self._mark("started", names.RUN_STARTED, at_us, at_us, {})

    def waited(self, what: str, start_us: int, end_us: int) -> Span:
        """Return the wait of a run that was queued, or scheduled."""
        part = "schedule" if what == "schedule" else "lane"
        return self._mark(part, f"wait {what}", start_us, end_us, {names.WAIT_REASON: what})

    def ended(self, run: RunDocument, start_us: int) -> Span:
        """Return the run's span; in live mode the one below it that has its times."""
        spent = NOTHING
        for entry in run.steps.values():
            spent = plus(spent, entry.spent)
        more: dict[str, Value] = {names.RUN_STATUS: run.status, **usage(spent)}
        end_us = max(start_us, run.ended_ms * 1_000)
        error = text = ""
        if run.status != "completed" and run.failure is not None:
            error, text = run.failure.type, run.failure.message
        if self.live:
            span = self._mark("completed", names.RUN_COMPLETED, start_us, end_us, more)
        else:
            span = self._root(start_us, end_us, more)
        return _failed(span, error, text)

    def running(self, start_us: int, now_us: int) -> Span:
        """Return the run's span before its end."""
        return self._root(start_us, now_us, {names.RUN_STATUS: "running"})

    def _root(self, start_us: int, end_us: int, more: dict[str, Value]) -> Span:
        trace_id = self.ref.trace_id
        parent_id = ""
        links: tuple[SpanLink, ...] = ()
        if self.request.caller:
            _, caller_trace, caller_span, _ = self.request.caller.split("-", 3)
            if caller_trace == trace_id:
                parent_id = caller_span
            else:
                state = self.request.trace_state
                links = (SpanLink(caller_trace, caller_span, "caller", state),)
        source = ids.parse_ref(self.request.fork.trace) if self.request.fork else None
        if source is not None:
            root = ids.root_span(source.trace_id)
            links = (*links, SpanLink(source.trace_id, root, "forked_from"))
        return Span(
            trace_id=trace_id,
            span_id=ids.root_span(trace_id),
            parent_id=parent_id,
            name=f"{names.INVOKE_WORKFLOW} {self.workflow}",
            start_us=start_us,
            end_us=end_us,
            attributes=self._common()
            | {
                names.OPERATION: names.INVOKE_WORKFLOW,
                names.AGENT: self.workflow,
                names.SESSION: self._session,
                **more,
            },
            links=links,
        )

    def _mark(
        self, part: str, name: str, start_us: int, end_us: int, more: dict[str, Value]
    ) -> Span:
        trace_id = self.ref.trace_id
        return Span(
            trace_id=trace_id,
            span_id=ids.part_span(trace_id, "", part),
            parent_id=ids.root_span(trace_id),
            name=name,
            start_us=start_us,
            end_us=end_us,
            attributes=self._common() | more,
        )

    # ---------------------------------------------------------------- steps

    def step(
        self,
        step: Step,
        entry: StepEntry,
        end_us: int,
        *,
        is_end: bool,
        last: int = 0,
        branch: str = "",
    ) -> Span:
        """Return a step's span: at its end, or in live mode as it begins; ``branch`` is the one
        that a choice took.

        ``last`` is its last iteration: beyond the first segment the span links to the next one.
        """
        trace_id = self.ref.trace_id
        span_id, parent_id = ids.step_span(trace_id, step.id), ids.root_span(trace_id)
        name, attributes = _kind(step), self._common(step)
        if isinstance(step, AgentLoopStep):
            attributes |= self._agent(step)
        attributes[names.STEP_KIND] = step.__struct_config__.tag or ""
        if is_end:
            attributes[names.STEP_STATUS] = entry.status
            if branch:
                attributes[names.STEP_BRANCH] = branch
            attributes |= usage(entry.spent)
            if isinstance(step, AgentLoopStep):
                attributes[names.ITERATIONS] = attributes[names.TURNS] = entry.iterations
            if self.live:
                parent_id, name = span_id, f"{step.id} completed"
                span_id = ids.part_span(trace_id, step.id, "completed")
        start_us = entry.started_ms * 1_000
        span = Span(
            trace_id=trace_id,
            span_id=span_id,
            parent_id=parent_id,
            name=name,
            start_us=start_us,
            end_us=max(start_us, end_us),
            attributes=attributes,
            links=(self._segment_link(step, 1, "next"),) if ids.segment_of(last) else (),
        )
        if not is_end or entry.status == "completed" or entry.failure is None:
            return span
        return _failed(span, entry.failure.type, entry.failure.message)

    def segment(self, step: Step, last: int, start_us: int, end_us: int, *, is_last: bool) -> Span:
        """Return the root of the segment that iteration ``last`` ends."""
        trace_id, number = self.ref.trace_id, ids.segment_of(last)
        links = [self._segment_link(step, number - 1, "previous")]
        if not is_last:
            links.append(self._segment_link(step, number + 1, "next"))
        links.append(SpanLink(trace_id, ids.root_span(trace_id), "run"))
        first = number * ids.ITERATIONS_OF_A_SEGMENT
        return Span(
            trace_id=ids.segment_trace(trace_id, step.id, number),
            span_id=self._parent(step, last),
            name=f"{names.INVOKE_AGENT} {step.id} (iterations {first} to {last})",
            start_us=start_us,
            end_us=end_us,
            attributes=self._common(step) | self._agent(step) | {names.SEGMENT: number},
            links=tuple(links),
        )

    def _segment_link(self, step: Step, number: int, relation: str) -> SpanLink:
        trace_id = ids.segment_trace(self.ref.trace_id, step.id, number)
        first = number * ids.ITERATIONS_OF_A_SEGMENT
        return SpanLink(trace_id, self._parent(step, first), relation)

    # ---------------------------------------------------------------- executions

    def execution(
        self, step: Step, event: Settled, queued_us: int, at_us: int, more: dict[str, Value]
    ) -> Span:
        """Return the span of one execution."""
        trace_id, span_id = ids.attempt_place(self.ref, step.id, event.iteration, event.attempt)
        name = f"attempt {event.attempt}"
        if chunk := parse_chunk(step.id):
            name = _chunk_name(chunk[1], event.attempt)
        elif isinstance(step, AgentLoopStep):
            name = f"iteration {event.iteration}"
            name += f" (attempt {event.attempt})" if event.attempt > 1 else ""
        attributes = self._common(step) | {
            names.ITERATION: event.iteration,
            names.ATTEMPT: event.attempt,
            names.TOKEN: event.token,
            names.WORKER: event.worker,
            names.VERDICT: _VERDICTS[type(event)],
            names.MESSAGING_SYSTEM: "nats",
            names.MESSAGING_OPERATION: "process",
            names.MESSAGING_OPERATION_TYPE: "process",
            names.MESSAGING_DESTINATION: event.type,
        }
        if isinstance(event, StepCompleted) and event.chunk is not None:
            attributes |= _items(event.chunk)
        if event.taken_us:
            attributes[names.QUEUE_WAIT_S] = max(0, event.taken_us - queued_us) / 1e6
        span = Span(
            trace_id=trace_id,
            span_id=span_id,
            parent_id=self._parent(step, event.iteration),
            name=f"{name} (worker lost)" if isinstance(event, TaskLost) else name,
            kind="consumer",
            start_us=queued_us,
            end_us=at_us,
            attributes=attributes | more,
        )
        match event:
            case TaskLost(reason=reason):
                return _failed(span, names.WORKER_LOST, reason)
            case StepFailed(failure=failure):
                return _failed(span, failure.type, failure.message)
            case _:
                return span

    def unsettled(
        self, step: Step, iteration: int, attempt: int, start_us: int, end_us: int, error: str
    ) -> Span:
        """Return the span of the execution that was under way when its step ended without it."""
        trace_id, span_id = ids.attempt_place(self.ref, step.id, iteration, attempt)
        is_loop = isinstance(step, AgentLoopStep)
        name = f"iteration {iteration}" if is_loop else f"attempt {attempt}"
        if chunk := parse_chunk(step.id):
            name = _chunk_name(chunk[1], attempt)
        return Span(
            trace_id=trace_id,
            span_id=span_id,
            parent_id=self._parent(step, iteration),
            name=name,
            kind="consumer",
            start_us=start_us,
            end_us=end_us,
            attributes=self._common(step) | {names.ITERATION: iteration, names.ATTEMPT: attempt},
            error=error,
        )

    def queue_wait(self, step: Step, event: Settled, execution: Span) -> Span:
        """Return what an execution waited for a worker."""
        parts = (str(event.iteration), str(event.attempt))
        return Span(
            trace_id=execution.trace_id,
            span_id=ids.part_span(self.ref.trace_id, step.id, "queue", *parts),
            parent_id=execution.span_id,
            name=names.QUEUE_WAIT,
            start_us=execution.start_us,
            end_us=min(max(event.taken_us, execution.start_us), execution.end_us),
            attributes=self._common(step),
        )

    def part(self, step: Step, event: Settled, part: SpanPart) -> Span:
        """Return the span of something that an execution did."""
        by = part.attempt or event.attempt
        trace_id, parent_id = ids.attempt_place(self.ref, step.id, event.iteration, by)
        attributes = self._common(step) | {names.ITERATION: event.iteration, **part.attributes}
        if names.OPERATION in part.attributes:
            del attributes[names.OPENINFERENCE_KIND]  # Known by its operation.
        if by != event.attempt:
            attributes[names.RECORDED_BY] = by
        span = Span(
            trace_id=trace_id,
            span_id=ids.part_span(self.ref.trace_id, step.id, "part", str(part.number)),
            parent_id=parent_id,
            name=part.name,
            kind="client" if part.name.startswith(f"{names.CHAT} ") else "internal",
            start_us=part.start_us,
            end_us=max(part.start_us, part.end_us),
            attributes=attributes,
        )
        return _failed(span, part.error, "") if part.error else span

    def pause(
        self, step: Step, token: int, last: int, what: str, start_us: int, end_us: int
    ) -> Span:
        """Return what comes between two executions; ``last`` is the iteration before."""
        trace_id, _ = ids.attempt_place(self.ref, step.id, last, 1)
        return Span(
            trace_id=trace_id,
            span_id=ids.part_span(self.ref.trace_id, step.id, "pause", str(token)),
            parent_id=self._parent(step, last),
            name=f"wait {what}" if what in SHORT_WAITS else "wait",
            start_us=start_us,
            end_us=end_us,
            attributes=self._common(step) | {names.WAIT_REASON: what},
        )

    # ---------------------------------------------------------------- small

    def _parent(self, step: Step, iteration: int) -> str:
        trace_id, number = self.ref.trace_id, ids.segment_of(iteration)
        if number == 0:
            return ids.step_span(trace_id, step_of(step.id))
        return ids.part_span(trace_id, step.id, "segment", str(number))

    @property
    def _session(self) -> str:
        """What all traces of a run have in common, those of its children included."""
        return self.request.parent.root if self.request.parent else self.run

    def _agent(self, step: Step) -> dict[str, Value]:
        return {
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT: step.id,
            names.CONVERSATION: f"{self.run}/{step.id}",
            # Both said, or a backend takes the conversation for the session of the whole trace.
            names.SESSION: self._session,
            names.OPENINFERENCE_KIND: "AGENT",
        }

    def _common(self, step: Step | None = None) -> dict[str, Value]:
        attributes: dict[str, Value] = {
            names.RUN_ID: self.run,
            names.WORKFLOW: self.workflow,
            names.VERSION: self.request.definition[:HASH_CHARS],
            names.OPENINFERENCE_KIND: "CHAIN",
        }
        if step is not None:
            attributes[names.STEP] = step_of(step.id)
            if chunk := parse_chunk(step.id):
                attributes[names.CHUNK] = chunk[1]
        return attributes


def usage(spent: Spent) -> dict[str, Value]:
    """Return what was spent as attributes; nothing for nothing."""
    if spent == NOTHING:
        return {}
    return {
        names.TOOL_CALLS: spent.tool_calls,
        names.INPUT_TOKENS: spent.input_tokens,
        names.OUTPUT_TOKENS: spent.output_tokens,
        names.COST_USD: spent.cost_usd,
    }


def _chunk_name(number: int, attempt: int) -> str:
    return f"chunk {number} (attempt {attempt})" if attempt > 1 else f"chunk {number}"


def _items(done: ChunkDone) -> dict[str, Value]:
    """Return which items a chunk had, and how many of them failed."""
    items: dict[str, Value] = {names.ITEM_FIRST: done.first, names.ITEMS: done.count}
    if done.failed:
        items[names.ITEMS_FAILED] = done.failed
        items[names.ITEM_FAILURE] = str(done.failure) if done.failure else ""
    return items


def _failed(span: Span, error: str, text: str) -> Span:
    return replace(span, error=error, error_text=text) if error else span


def _kind(step: Step) -> str:
    match step:
        case AgentLoopStep():
            return f"{names.INVOKE_AGENT} {step.id}"
        case SignalStep():
            return f"wait {step.signal}"
        case EventStep():
            return f"wait {step.event}"
        case SubWorkflowStep():
            return f"run {step.workflow}"
        case SleepStep():
            return f"sleep {step.id}"
        case ApprovalStep():
            return f"approval {step.id}"
        case ChoiceStep():
            return f"choice {step.id}"
        case RespondStep():
            return f"respond {step.id}"
        case MapStep():
            return f"map {step.id}"
        case _:
            return f"step {step.id}"
