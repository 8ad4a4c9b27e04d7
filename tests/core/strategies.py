"""What the properties of the core are tried on: definitions, registers, events, moments.

Definitions are sound (``validation.py`` refuses others), registers are values the core can
write. Events are any well-typed ones: what a worker or client sends is not under our control.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st
from tests.core import mapping, planning
from tests.core.child_strategies import child_facts, sub_workflow_steps
from tests.core.names import ERRORS, EVENTS, SIGNALS, STEP_IDS, raws
from tests.core.waits import answers, matches

from treadle.engine.core import Moment, Plan, StepEnded, StepParked, StepResumed
from treadle.sdk.definition import (
    AgentLoopStep,
    ApprovalStep,
    Branch,
    ChoiceStep,
    EventStep,
    RespondStep,
    Retry,
    SignalStep,
    SleepStep,
    Step,
    TaskStep,
    WorkflowDefinition,
    content_hash,
)
from treadle.sdk.messages import (
    CancelRequested,
    Delayed,
    Ended,
    Failure,
    Inline,
    LiveRegister,
    MessageSent,
    Parked,
    PauseRequested,
    Register,
    ResumeRequested,
    RunRequested,
    SettleEvent,
    SignalReceived,
    Sleeping,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    Task,
    TaskDue,
    TaskEvent,
    TaskLost,
    TimerFired,
)
from treadle.sdk.spending import NOTHING, UNLIMITED, SpendingLimits, Spent

RUN = "r1"
EPOCH_MS = 1_700_000_000_000

times_ms = st.integers(EPOCH_MS - 10_000, EPOCH_MS + 10_000_000)
durations_ms = st.one_of(st.just(0), st.integers(1, 100_000))
anything = st.one_of(st.integers(-2, 30), st.integers(-(2**80), 2**80))


def seconds(most: float = 100) -> st.SearchStrategy[float]:
    """Durations as authors write them: none, some milliseconds, some time."""
    return st.one_of(st.just(0.0), st.integers(1, round(most * 1000)).map(lambda ms: ms / 1000))


# ------------------------------------------------------------------ definitions


@st.composite
def retries(draw: st.DrawFn) -> Retry:
    """Sound retry policies."""
    delay_s = draw(seconds())
    return Retry(
        max_attempts=draw(st.integers(1, 4)),
        backoff=draw(st.sampled_from(("fixed", "linear", "exponential"))),
        delay_s=delay_s,
        max_delay_s=delay_s + draw(seconds()),
        multiplier=draw(st.floats(1, 100)),
        jitter=draw(st.floats(0, 1)),
        non_retryable=draw(st.sampled_from(((), ("Fatal",)))),
        on_exhausted=draw(st.sampled_from(("fail", "fail", "park"))),
    )


def task_steps(step_id: str = "a", after: tuple[str, ...] = ()) -> st.SearchStrategy[TaskStep]:
    """Steps that workers execute once."""
    return st.builds(
        TaskStep,
        id=st.just(step_id),
        after=st.just(after),
        type=st.just("work"),
        timeout_s=seconds(),
        retry=retries(),
    )


def loop_steps(
    step_id: str = "a", after: tuple[str, ...] = (), *, on_limit: str = ""
) -> st.SearchStrategy[AgentLoopStep]:
    """Agent loops, short ones."""
    limits = (on_limit,) if on_limit else ("fail", "wrap_up", "park")
    return st.builds(
        AgentLoopStep,
        id=st.just(step_id),
        after=st.just(after),
        type=st.just("think"),
        max_iterations=st.integers(1, 5),
        max_duration_s=seconds(),
        loop_delay_s=seconds(),
        timeout_s=seconds(),
        retry=retries(),
        on_limit=st.sampled_from(limits),
        max_tool_calls=st.sampled_from((0, 0, 3, 9)),
        max_output_tokens=st.sampled_from((0, 0, 0, 5)),
        max_cost_usd=st.sampled_from((0.0, 0.0, 0.0, 0.000004)),
    )


def signal_steps(step_id: str = "a", after: tuple[str, ...] = ()) -> st.SearchStrategy[SignalStep]:
    """Steps that wait for a signal; names repeat, so that steps compete."""
    return st.builds(
        SignalStep,
        id=st.just(step_id),
        after=st.just(after),
        signal=st.sampled_from(SIGNALS),
        timeout_s=seconds(),
    )


def work_steps() -> st.SearchStrategy[TaskStep | AgentLoopStep]:
    """Any step with a register."""
    return st.one_of(task_steps(), loop_steps())


KINDS = ("task", "task", "agent_loop", "signal")
FLOW_KINDS = (
    *KINDS,
    "task",
    "sleep",
    "approval",
    "choice",
    "event",
    "respond",
    "map",
    "sub_workflow",
)
CONDITIONS = ("", "", "", "true", "false", 'input["missing"]')
_retries = st.sampled_from(
    (Retry(), Retry(max_attempts=2), Retry(max_attempts=2, on_exhausted="park"))
)
_timeouts_s = st.sampled_from((0.0, 0.0, 0.0, 0.5, 600.0))
_times = st.fixed_dictionaries(
    {"timeout_s": _timeouts_s, "on_timeout": st.sampled_from(("fail", "complete"))}
)


@st.composite
def plans(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> Plan:
    """Workflows of one to six steps with any edges that make no cycle, written in any order."""
    steps: list[Step] = []
    for step_id in STEP_IDS[: draw(st.integers(1, len(STEP_IDS)))]:
        # Each bit says whether the step waits for that earlier one.
        edges = draw(st.integers(0, 2 ** len(steps) - 1))
        after = tuple(step.id for i, step in enumerate(steps) if edges >> i & 1)
        match draw(st.sampled_from(kinds)):
            case "task":
                steps.append(TaskStep(id=step_id, after=after, type="work", retry=draw(_retries)))
            case "agent_loop":
                loop = AgentLoopStep(
                    id=step_id,
                    after=after,
                    type="think",
                    max_iterations=draw(st.integers(1, 3)),
                    max_duration_s=draw(_timeouts_s),
                    retry=draw(_retries),
                    on_limit=draw(st.sampled_from(("park", "park", "fail", "wrap_up"))),
                    max_tool_calls=draw(st.sampled_from((0, 0, 0, 2, 4))),
                )
                steps.append(loop)
            case "event":
                event = draw(st.sampled_from(EVENTS))
                steps.append(EventStep(id=step_id, after=after, event=event, **draw(_times)))
            case "approval":
                by = draw(st.sampled_from(((), ("ada",))))
                steps.append(ApprovalStep(id=step_id, after=after, approvers=by, **draw(_times)))
            case "choice":
                conditions = draw(st.lists(st.sampled_from(CONDITIONS[3:]), min_size=1, max_size=2))
                branches = tuple(Branch(f"b{i}", when) for i, when in enumerate(conditions))
                steps.append(ChoiceStep(id=step_id, after=after, branches=branches, default="no"))
            case "respond":
                steps.append(RespondStep(id=step_id, after=after))
            case "map":
                steps.append(draw(mapping.map_steps(step_id, after)))
            case "planner":
                steps.append(draw(planning.planner_steps(step_id, after)))
            case "sub_workflow":
                steps.append(draw(sub_workflow_steps(step_id, after)))
            case "sleep":
                lengths = st.sampled_from((0.2, 5.0, 1e6))
                told = st.sampled_from(("0", "0.2 + 1", "'2026-01-01T00:00:00Z'", "-1", "true"))
                length = draw(
                    st.fixed_dictionaries({"duration_s": lengths})
                    | st.fixed_dictionaries({"expression": told})
                    | st.sampled_from(({"cron": "@every 1m"}, {"cron": "0 0 29 2 */7"}))
                )
                steps.append(SleepStep(id=step_id, after=after, **length))
            case _:
                signal = draw(st.sampled_from(SIGNALS))
                steps.append(SignalStep(id=step_id, after=after, signal=signal, **draw(_times)))
    if "sleep" in kinds:
        steps = [
            draw(mapping.turns(step, steps[i + 1 :], CONDITIONS)) for i, step in enumerate(steps)
        ]
        for step in draw(st.lists(st.sampled_from(steps), max_size=2, unique_by=id)):
            undo = f"undo-{step.id}"
            steps[steps.index(step)] = msgspec.structs.replace(step, compensate=undo)
            steps.append(TaskStep(id=undo, type="work"))
    if draw(st.booleans()):
        steps.reverse()
    timeout_s = draw(st.sampled_from((0.0, 0.0, 0.0, 0.0, 0.5, 600.0)))
    result = {"type": ["object", "null"]} if "choice" in kinds and draw(st.booleans()) else None
    definition = WorkflowDefinition(
        name="w",
        steps=tuple(steps),
        timeout_s=timeout_s,
        output_schema=result,
        max_tool_calls=draw(st.sampled_from((0, 0, 1, 3))),
    )
    return Plan(definition, content_hash(definition))


# ------------------------------------------------------------------ registers


def spent_below(tool_calls: int) -> st.SearchStrategy[Spent]:
    """What committed iterations have used, below a bound; 0 is none."""
    calls = st.integers(0, tool_calls - 1 if tool_calls else 20)
    return st.just(NOTHING) | st.builds(Spent, tool_calls=calls, output_tokens=st.integers(0, 4))


told = st.just(NOTHING) | st.builds(
    Spent, tool_calls=st.integers(0, 6), output_tokens=anything, cost_micro_usd=st.integers(0, 3)
)
"""What an execution says it has used."""


@st.composite
def tasks(draw: st.DrawFn, step: TaskStep | AgentLoopStep) -> Task:
    """Tasks of a step, as the core can write them."""
    is_loop = isinstance(step, AgentLoopStep)
    started_ms = draw(times_ms)
    iteration = draw(st.integers(0, step.max_iterations - 1)) if is_loop else 0
    failures = draw(st.integers(0, step.retry.max_attempts - 1))
    losses = draw(st.integers(0, 10))
    duration_ms = round(step.max_duration_s * 1000) if is_loop else 0
    return Task(
        parent=f"e{draw(st.integers(1, 50))}",
        workflow="w",
        definition="h",
        loop=is_loop,
        iteration=iteration,
        attempt=1 + failures + losses,
        failures=failures,
        losses=losses,
        input=Inline(draw(raws)),
        checkpoint=draw(st.integers(-1, 100)),
        started_ms=started_ms,
        deadline_ms=started_ms + duration_ms if duration_ms else 0,
        timeout_ms=round(step.timeout_s * 1000),
        max_iterations=step.max_iterations if is_loop else 1,
        seen=draw(st.integers(0, 60)) if is_loop else 0,
        limits=SpendingLimits(tool_calls=step.max_tool_calls) if is_loop else UNLIMITED,
        spent=draw(spent_below(step.max_tool_calls if is_loop else 0)),
        wrap_up=draw(st.sampled_from(("", "", "max_iterations", "max_duration")))
        if is_loop and step.on_limit == "wrap_up"
        else "",
    )


@st.composite
def live_registers(draw: st.DrawFn, step: TaskStep | AgentLoopStep) -> LiveRegister:
    """Values that can still move."""
    task = draw(tasks(step))
    kind = draw(st.sampled_from((Task, Delayed, Sleeping, Parked)))
    if kind is Task:
        return task
    if kind is Parked and draw(st.booleans()):
        parked_ms = draw(times_ms)
        return Parked(parent="e51", task=task, reason="paused", parked_ms=parked_ms, paused=True)
    if kind is Parked:
        reason = draw(st.sampled_from(("max_iterations", "max_duration")))
        waits = draw(st.booleans()) if task.loop and not task.wrap_up else False
        return Parked(
            parent="e51",
            task=task,
            reason="a person" if waits else reason,
            parked_ms=draw(times_ms),
            waits=waits,
            due_ms=draw(st.just(0) | times_ms) if waits else 0,
            seen=draw(st.integers(0, 60)) if waits else 0,
        )
    return kind(parent="e51", task=task, due_ms=draw(times_ms))


@st.composite
def ended_registers(draw: st.DrawFn) -> Ended:
    """Values that never move again."""
    return Ended(
        parent="e51",
        outcome=draw(st.sampled_from(("completed", "failed", "cancelled"))),
        iterations=draw(st.integers(0, 5)),
        output=draw(raws),
        failure=draw(st.none() | failures()),
    )


def registers(step: TaskStep | AgentLoopStep) -> st.SearchStrategy[Register]:
    """Any value of a step's register."""
    return st.one_of(live_registers(step), ended_registers())


# ------------------------------------------------------------------ events


def failures() -> st.SearchStrategy[Failure]:
    """What handlers fail with."""
    return st.builds(
        Failure,
        type=st.sampled_from(ERRORS),
        message=st.just("it broke"),
        retryable=st.sampled_from((True, True, True, False)),
        retry_after_ms=st.one_of(st.just(0), st.integers(0, 100_000), anything),
    )


def settles(
    token: st.SearchStrategy[int],
) -> st.SearchStrategy[SettleEvent]:
    """Verdicts of an execution that held ``token``."""
    common = {"step": st.just("a"), "type": st.just("work"), "token": token, "head": anything}
    common |= {"spent": told, "seen": anything, "takes_messages": st.booleans()}
    return st.one_of(
        st.builds(StepContinued, **common, output=raws, delay_ms=anything),
        st.builds(StepWaiting, **common, output=raws, due_ms=st.just(0) | times_ms | anything),
        st.builds(StepCompleted, **common, output=raws),
        st.builds(StepFailed, **common, failure=failures()),
    )


def task_events(
    token: st.SearchStrategy[int],
) -> st.SearchStrategy[TaskEvent]:
    """Everything about one dispatch of a step."""
    common = {"step": st.just("a"), "type": st.just("work"), "token": token}
    return st.one_of(settles(token), st.builds(TaskLost, **common), st.builds(TaskDue, **common))


resumes = st.builds(
    ResumeRequested,
    step=st.sampled_from(("", "a", "b")),
    max_iterations=anything,
    add_iterations=anything,
    max_duration_ms=anything,
    add_duration_ms=anything,
    max_spending=st.just(UNLIMITED) | st.builds(SpendingLimits, tool_calls=anything),
    add_spending=st.just(UNLIMITED) | st.builds(SpendingLimits, tool_calls=anything),
)
messages = st.builds(
    MessageSent,
    step=st.sampled_from(("a", "a", "b", "unknown")),
    kind=st.sampled_from(("steer", "follow_up", "reply")),
    id=st.sampled_from(("m1", "m2")),
    payload=raws,
)
timers = st.builds(
    TimerFired,
    kind=st.sampled_from(("step_deadline", "run_deadline", "wake")),
    step=st.sampled_from((*STEP_IDS, "unknown", "")),
    due_ms=times_ms,
)


def register_events(
    token: st.SearchStrategy[int],
) -> st.SearchStrategy[TaskEvent | TimerFired | ResumeRequested | MessageSent]:
    """Everything a register may meet."""
    return st.one_of(task_events(token), timers, resumes, messages)


@st.composite
def facts(draw: st.DrawFn) -> StepEnded | StepParked | StepResumed:
    """What registers tell documents, true or not, of known steps or not."""
    step = draw(st.sampled_from((*STEP_IDS, "unknown", *mapping.CHUNKS)))
    event, position = f"e{draw(st.integers(1, 99))}", draw(st.integers(1, 99))
    match draw(
        st.sampled_from(("completed", "completed", "failed", "cancelled", "park", "resume"))
    ):
        case "park":
            return StepParked(step, "max_iterations", draw(st.integers(0, 5)), event, position)
        case "resume":
            return StepResumed(step, event, position)
        case outcome:
            failure = draw(failures()) if outcome == "failed" else None
            ended = StepEnded(step, outcome, draw(st.integers(0, 5)), failure, event, position)
            return draw(mapping.told(ended))


signals = st.builds(
    SignalReceived,
    name=st.sampled_from((*SIGNALS, "unheard")),
    payload=raws,
    id=st.sampled_from(("", "", "s1", "s2")),
    fork=st.sampled_from(("", "", "", "another")),
)
run_events = st.one_of(
    facts(),
    facts(),
    facts(),
    child_facts(RUN, STEP_IDS, failures()),
    child_facts(RUN, STEP_IDS, failures()),
    signals,
    signals,
    answers,
    matches,
    timers,
    st.builds(CancelRequested, reason=st.just("asked"), now=st.booleans()),
    st.builds(PauseRequested, reason=st.just("held")),
    resumes,
    st.just(RunRequested(workflow="w", definition="h")),
)


@st.composite
def moments(draw: st.DrawFn, *, letter: str = "e") -> Moment:
    """When and by what: any event that is not among the registers' parents."""
    sequence = draw(st.integers(52, 99))
    return Moment(RUN, f"{letter}{sequence}", draw(times_ms), sequence)
