"""From what is stored of a run to its spans.

    request, verdicts, losses, resumes   events, in the order of the stream  --event-->    spans
    ends of steps and of the run         the document as it stands          --document-->  spans

Whatever is over is returned once, with its times. The result depends on nothing but what is given,
so another projector that reads the same log writes the same spans with the same ids.

An execution is believed if its token is above every token that the step's earlier ones had: of two
verdicts of one token the first in the stream counts, as it does for the engine. A zombie's is not
the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from treadle.sdk.definition import (
    AgentLoopStep,
    MapStep,
    PlannerStep,
    Step,
    TaskStep,
    WorkflowDefinition,
    WorkStep,
)
from treadle.sdk.messages import (
    Event,
    LaneEntered,
    LaneGranted,
    ResumeRequested,
    RunRequested,
    Settled,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    TaskLost,
)
from treadle.sdk.planned import Planned, extended, judged, own_of, planned
from treadle.sdk.planners import SEPARATOR
from treadle.sdk.run import RunDocument, StepEntry, is_kept
from treadle.sdk.spending import MICRO, NOTHING, SpendingLimits, Spent, micro_usd, plus, raised
from treadle.sdk.subjects import chunk_id, parse_chunk
from treadle.sdk.tracing import ids, names
from treadle.sdk.tracing.children import with_children
from treadle.sdk.tracing.drawing import Pen, usage
from treadle.sdk.tracing.span import Span, Value

PAUSE_US_MIN = 20_000
"""A pause between two executions that is shorter is the engine at work, and no wait."""


@dataclass
class _Limits:
    iterations: int
    duration_us: int
    spending: SpendingLimits


@dataclass
class _Step:
    """What is known of a step."""

    limits: _Limits
    started_us: int = 0
    """When its first execution was queued, as the first event tells it: a document may be read
    before that event or after it."""
    token: int = 0
    iteration: int = 0
    attempt: int = 1
    """The execution that is under way, or comes next."""
    end_us: int = 0
    """When its last execution was over."""
    pause: str = ""
    """What comes between the last execution and the next; empty if nothing has to."""
    committed: Spent = NOTHING
    told: int = -1
    """Highest number of the parts that were told."""
    segment_us: int = 0
    has_verdict: bool = False
    """True when nothing is under way: the last execution has ended the step, or it waits."""
    is_begun: bool = False
    """In live mode: it was written as it began."""
    is_closed: bool = False

    @property
    def last(self) -> int:
        """The iteration of its last execution."""
        return max(0, self.iteration - (self.attempt == 1))


@dataclass
class RunFold:
    """The spans of one run, as far as it has come.

    With ``live`` the run and its steps are written as they begin, and a span with their times
    below each as they end.
    """

    run: str
    definition: WorkflowDefinition
    """With what the run's planners have planned so far."""
    live: bool = False
    is_over: bool = False
    """True when the run has ended and its spans are written."""
    plans: Mapping[str, Planned] = field(default_factory=dict[str, Planned])
    """What they have planned, by planner."""
    _outputs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    _candidates: dict[str, list[bytes]] = field(default_factory=dict[str, list[bytes]])
    """By planner: every plan that was told, because an engine may have taken a later one first."""
    _pen: Pen | None = None
    _requested_us: int = 0
    _lane_us: int = 0
    """When a scheduled run has entered its lane."""
    _steps: dict[str, _Step] = field(default_factory=dict[str, _Step])

    @property
    def is_sampled(self) -> bool:
        """True when the run has a trace that is exported."""
        return self._pen is not None and self._pen.ref.is_sampled

    @property
    def trace_id(self) -> str:
        """The run's own trace; empty before its request."""
        return "" if self._pen is None else self._pen.ref.trace_id

    # ---------------------------------------------------------------- events

    def event(self, event: Event, at_us: int) -> list[Span]:
        """Return the spans of what an event says is over; ``at_us`` is when it was stored."""
        if isinstance(event, RunRequested):
            return self._request(event, at_us)
        if self._pen is None:
            return []
        match event:
            case StepContinued() | StepWaiting() | StepCompleted() | StepFailed() | TaskLost():
                return self._settled(self._pen, event, at_us)
            case ResumeRequested():
                self._resume(event)
            case LaneGranted(lane=lane):
                return [self._pen.waited(f"lane {lane}", self._entered_us(), at_us)]
            case LaneEntered():
                self._lane_us = at_us
            case _:
                pass
        return []

    def _request(self, event: RunRequested, at_us: int) -> list[Span]:
        ref = ids.parse_ref(event.trace)
        if self._requested_us or ref is None:
            return []  # The first request is the run.
        self._requested_us = at_us
        self._pen = Pen(self.run, self.definition.name, ref, event, self.live)
        return [self._pen.started(at_us)]

    def _settled(self, pen: Pen, event: Settled, at_us: int) -> list[Span]:
        step = self._step_of(event.step)
        if step is None:
            return []
        event = judged(step, event)
        if isinstance(step, PlannerStep) and isinstance(event, StepCompleted):
            self._candidates.setdefault(step.id, []).append(bytes(event.output))
            if step.id not in self._outputs:
                self._extend(step.id, bytes(event.output))
        state = self._state(step)
        if event.token <= state.token or state.is_closed or self._is_stopped(event.step):
            return []
        state.started_us = state.started_us or event.queued_us or at_us
        spans: list[Span] = []
        queued_us = min(event.queued_us or max(state.end_us, state.started_us), at_us)
        if state.pause and queued_us - state.end_us >= PAUSE_US_MIN:
            place = (state.token, state.last, state.pause)
            spans.append(pen.pause(step, *place, state.end_us, queued_us))
        if ids.segment_of(event.iteration) > ids.segment_of(state.last):
            spans.extend(_left(pen, step, state))
            state.segment_us = queued_us
        state.token, state.end_us = event.token, at_us
        execution = pen.execution(step, event, queued_us, at_us, _told(step, state, event, at_us))
        spans.append(execution)
        if event.taken_us:
            spans.append(pen.queue_wait(step, event, execution))
        if not isinstance(event, TaskLost):
            for part in event.parts:
                if part.number > state.told:
                    state.told = part.number
                    spans.append(pen.part(step, event, part))
        _move(step, state, event)
        return spans

    def _extend(self, planner: str, output: bytes) -> None:
        self._outputs[planner] = output
        own = own_of(self.definition, self.plans)
        self.definition, self.plans = extended(own, self._outputs)

    def _resume(self, event: ResumeRequested) -> None:
        for name, state in self._steps.items():
            if event.step not in ("", name) or not state.started_us:
                continue  # A step that was never executed is not parked.
            limits = state.limits
            limits.iterations = max(limits.iterations, event.max_iterations) + event.add_iterations
            limits.spending = raised(limits.spending, event.max_spending, event.add_spending)
            if limits.duration_us:
                to_us = max(limits.duration_us, event.max_duration_ms * 1_000)
                limits.duration_us = to_us + event.add_duration_ms * 1_000
            if state.pause in ("", "loop delay"):
                state.pause = "parked"

    # ---------------------------------------------------------------- the document

    def document(self, run: RunDocument) -> list[Span]:
        """Return the spans of what the run's document says has begun or is over."""
        pen = self._pen
        if pen is None or self.is_over:
            return []
        spans: list[Span] = []
        for name, entry in run.steps.items():
            step = self._step_of(name)
            if step is None:
                continue
            if entry.status == "skipped" or is_kept(run, name):
                continue  # It had no time here.
            state = self._state(step)
            if self.live and not state.is_begun:
                state.is_begun = True
                spans.append(
                    with_children(pen.step(step, entry, 0, is_end=False), pen.ref, step, run)
                )
            if entry.ended_ms and not state.is_closed:
                state.is_closed = True
                spans.extend(self._stopped(pen, run, step, entry))
                closed = _closed(pen, step, state, entry, run.chosen.get(step.id, ""))
                spans.extend((*closed[:-1], with_children(closed[-1], pen.ref, step, run)))
        if run.is_terminal:
            self.is_over = True
            spans.extend(self._scheduled(pen, run, run.ended_ms * 1_000))
            spans.append(pen.ended(run, self._requested_us))
        return spans

    def unfinished(self, run: RunDocument | None, now_us: int) -> list[Span]:
        """Return the run and its steps that are under way, as if they ended now."""
        pen = self._pen
        if pen is None:
            return []
        spans = [pen.running(self._requested_us, now_us)]
        if run is not None:
            spans.extend(self._scheduled(pen, run, now_us))
        for name, entry in (run.steps if run else {}).items():
            step = self._step_of(name)
            if run is None or step is None or entry.ended_ms:
                continue
            span = pen.step(step, entry, now_us, is_end=False)
            spans.append(with_children(span, pen.ref, step, run))
            state = self._state(step)
            if entry.status == "active" and isinstance(step, WorkStep):
                place = (state.iteration, state.attempt)
                start_us = state.end_us or entry.started_ms * 1_000
                spans.append(pen.unsettled(step, *place, start_us, now_us, ""))
        return spans

    # ---------------------------------------------------------------- chunks of maps

    def _is_stopped(self, name: str) -> bool:
        """True for a chunk of a map that is over."""
        found = parse_chunk(name)
        return found is not None and found[0] in self._steps and self._steps[found[0]].is_closed

    def _stopped(self, pen: Pen, run: RunDocument, step: Step, entry: StepEntry) -> list[Span]:
        """Return the executions that were under way when a map was stopped."""
        spans: list[Span] = []
        error = entry.failure.type if entry.failure else "cancelled"
        under_way = run.maps[step.id].under_way if step.id in run.maps else ()
        for first, last in under_way:
            for number in range(first, last + 1):
                chunk = self._step_of(chunk_id(step.id, number))
                assert chunk is not None
                state = self._state(chunk)
                if state.has_verdict:
                    continue
                start_us = state.end_us or entry.started_ms * 1_000
                end_us = max(start_us, entry.ended_ms * 1_000)
                spans.append(pen.unsettled(chunk, 0, state.attempt, start_us, end_us, error))
        return spans

    # ---------------------------------------------------------------- small

    def _scheduled(self, pen: Pen, run: RunDocument, most_us: int) -> list[Span]:
        """Return the time in which a scheduled run had not begun."""
        if not run.starts_ms:
            return []
        end_us = max(self._requested_us, min(run.starts_ms * 1_000, most_us))
        return [pen.waited("schedule", self._requested_us, end_us)]

    def _entered_us(self) -> int:
        return self._lane_us or self._requested_us

    def _step_of(self, name: str) -> Step | None:
        """Return the step of that name; of a chunk of a map, a task with its name."""
        found = parse_chunk(name)
        wanted = found[0] if found else name
        step = self._known(wanted)
        if step is None and self._candidates and self._switch(wanted):
            step = self._known(wanted)
        if found and isinstance(step, MapStep):
            return TaskStep(id=name, type=step.type)
        return step

    def _known(self, wanted: str) -> Step | None:
        return next((step for step in self.definition.steps if step.id == wanted), None)

    def _switch(self, wanted: str) -> bool:
        """Take the plan that has a step of this name: what has events is what was taken."""
        for planner, outputs in self._candidates.items():
            step = self._known(planner)
            if not wanted.startswith(f"{planner}{SEPARATOR}") or not isinstance(step, PlannerStep):
                continue
            for output in outputs:
                if wanted in planned(step, output).names:
                    self._extend(planner, output)
                    return True
        return False

    def _state(self, step: Step) -> _Step:
        state = self._steps.get(step.id)
        if state is None:
            state = self._steps[step.id] = _Step(_limits_of(step))
        return state


def _move(step: Step, state: _Step, event: Settled) -> None:
    match event:
        case StepContinued(delay_ms=delay_ms):
            own_s = step.loop_delay_s if isinstance(step, AgentLoopStep) else 0
            is_delayed = delay_ms > 0 or (delay_ms < 0 and own_s > 0)
            state.pause = "loop delay" if is_delayed else ""
        case StepWaiting():
            state.pause = event.reason or "a message"
            state.limits.iterations += event.uncounted
        case StepFailed():
            state.pause = "retry"
        case _:
            state.pause = ""
    state.has_verdict = isinstance(event, StepWaiting | StepCompleted)
    if isinstance(event, StepContinued | StepWaiting | StepCompleted):
        state.committed = plus(state.committed, event.spent)
        state.iteration, state.attempt = event.iteration + 1, 1
    else:
        state.iteration, state.attempt = event.iteration, event.attempt + 1


def _closed(pen: Pen, step: Step, state: _Step, entry: StepEntry, branch: str) -> list[Span]:
    spans: list[Span] = []
    ended_us = max(entry.ended_ms * 1_000, state.end_us)
    error = entry.failure.type if entry.failure else ""
    last = state.last
    was_under_way = entry.status == "cancelled" or error in ("max_duration", "run_timeout")
    if was_under_way and not state.has_verdict and isinstance(step, WorkStep):
        # Whatever was traced below it needs its parent.
        start_us = state.end_us or entry.started_ms * 1_000
        place = (state.iteration, state.attempt)
        spans.append(pen.unsettled(step, *place, start_us, ended_us, error or "cancelled"))
        if ids.segment_of(state.iteration) > ids.segment_of(last):
            spans.extend(_left(pen, step, state))
            state.segment_us = start_us
        last = state.iteration
    if ids.segment_of(last):
        spans.append(pen.segment(step, last, state.segment_us, ended_us, is_last=True))
    spans.append(pen.step(step, entry, ended_us, is_end=True, last=last, branch=branch))
    return spans


def _left(pen: Pen, step: Step, state: _Step) -> list[Span]:
    """Return the root of the segment that another follows; the first one's is the step's span."""
    if not ids.segment_of(state.last):
        return []
    return [pen.segment(step, state.last, state.segment_us, state.end_us, is_last=False)]


def _limits_of(step: Step) -> _Limits:
    if not isinstance(step, AgentLoopStep):
        return _Limits(1, 0, SpendingLimits())
    return _Limits(
        step.max_iterations,
        round(step.max_duration_s * 1e6),
        SpendingLimits(
            tool_calls=step.max_tool_calls,
            input_tokens=step.max_input_tokens,
            output_tokens=step.max_output_tokens,
            total_tokens=step.max_total_tokens,
            cost_micro_usd=micro_usd(step.max_cost_usd),
        ),
    )


def _told(step: Step, state: _Step, event: Settled, at_us: int) -> dict[str, Value]:
    """Return what a loop has used with this execution, and what its bounds leave it."""
    if not isinstance(step, AgentLoopStep) or isinstance(event, TaskLost):
        return {}
    spent, limits = plus(state.committed, event.spent), state.limits
    have: dict[str, Value] = usage(spent)
    have[names.ITERATIONS_LEFT] = max(0, limits.iterations - event.iteration - 1)
    if limits.duration_us:
        left_us = limits.duration_us - (at_us - state.started_us)
        have[names.DURATION_LEFT_S] = max(0, left_us) / 1e6
    bounds = limits.spending
    if bounds.tool_calls:
        have[names.TOOL_CALLS_LEFT] = max(0, bounds.tool_calls - spent.tool_calls)
    if bounds.total_tokens:
        have[names.TOKENS_LEFT] = max(0, bounds.total_tokens - spent.total_tokens)
    if bounds.cost_micro_usd:
        have[names.COST_LEFT_USD] = max(0, bounds.cost_micro_usd - spent.cost_micro_usd) / MICRO
    return have
