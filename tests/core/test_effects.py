"""What has to be true outside is a function of the state, whatever led there and how often it
is asked. Method: states reached by any events; each command by example."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.moves import moves
from tests.core.walks import RunWalk, StepWalk, plan_of

from treadle.engine.core import (
    Moment,
    Placed,
    Plan,
    RunEvent,
    StepEnded,
    StepParked,
    StepResumed,
    advance,
    effects,
)
from treadle.engine.core.effects import (
    ClearTimers,
    Command,
    CreateRegister,
    EndRegister,
    NotifyCancel,
    SetTimer,
)
from treadle.sdk.definition import AgentLoopStep, Retry, SignalStep, Step, TaskStep
from treadle.sdk.messages import (
    CancelRequested,
    Delayed,
    Ended,
    Failure,
    Inline,
    LiveRegister,
    Parked,
    Register,
    Sleeping,
    Task,
    TimerFired,
)
from treadle.sdk.run import RunDocument

events = st.lists(st.tuples(own.run_events, st.sampled_from((0, 0, 1, 5_000))), max_size=15)
INPUT = Inline(msgspec.Raw(b'"in"'))
LOOP = AgentLoopStep(id="a", type="think", max_iterations=3)


def task(step_id: str, *after: str) -> TaskStep:
    return TaskStep(id=step_id, type="work", after=after)


def commands_of(walk: RunWalk) -> tuple[Command, ...]:
    return effects.of_document(walk.plan, walk.run)


# ------------------------------------------------------------------ of a document


@given(own.plans(), events)
def test_the_same_document_asks_for_the_same_also_after_it_was_stored(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    walk = RunWalk(plan)
    for event, after_ms in sent:
        walk.send(event, after_ms=after_ms)
    stored = msgspec.json.decode(msgspec.json.encode(walk.run), type=RunDocument)
    assert effects.of_document(plan, stored) == commands_of(walk)


@given(own.plans(), events)
def test_a_redo_covers_every_active_step_and_an_end_every_step_under_way(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    walk = RunWalk(plan)
    under_way = set(walk.run.steps)
    for event, after_ms in sent:
        if not walk.run.is_terminal:
            under_way = {i for i, e in walk.run.steps.items() if e.status in ("active", "parked")}
        walk.send(event, after_ms=after_ms)
    work = {step.id for step in plan.definition.steps if not isinstance(step, SignalStep)}
    created = {c.step for c in commands_of(walk) if isinstance(c, CreateRegister)}
    ended = {c.step for c in commands_of(walk) if isinstance(c, EndRegister)}
    if walk.run.is_terminal:
        reported = {i for i in under_way if walk.status(i) in ("completed", "failed")}
        assert ended == (under_way - reported) & work
        assert created == set()
    else:
        active = {i for i in walk.run.steps if walk.status(i) == "active"}
        assert created == active & work
        assert ended == set()


@given(own.plans(), events)
def test_after_a_cancel_nothing_is_asked_for_that_starts_or_waits(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    walk = RunWalk(plan)
    walk.send(CancelRequested())
    for event, after_ms in sent:
        walk.send(event, after_ms=after_ms)
        assert not [c for c in commands_of(walk) if isinstance(c, CreateRegister | SetTimer)]


@given(own.plans(), events)
def test_a_timer_that_may_be_set_is_cleared_at_the_end(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    walk = RunWalk(plan)
    timers = 0
    for event, after_ms in sent:
        timers += sum(isinstance(command, SetTimer) for command in commands_of(walk))
        walk.send(event, after_ms=after_ms)
    if walk.run.is_terminal and timers:
        assert ClearTimers() in commands_of(walk)


def test_an_active_task_has_a_register_and_a_waiting_one_has_none() -> None:
    walk = RunWalk(plan_of(task("a"), task("b", "a")))
    assert commands_of(walk) == (CreateRegister("a"),)
    walk.send(StepEnded("a", "completed", 1))
    assert commands_of(walk) == (CreateRegister("b"),)


def test_a_run_with_a_timeout_has_a_timer_until_it_ends() -> None:
    walk = RunWalk(plan_of(task("a"), timeout_s=2.5))
    fired = TimerFired(kind="run_deadline", due_ms=own.EPOCH_MS + 2_500)
    timer = SetTimer("run", own.EPOCH_MS + 2_500, fired)
    assert commands_of(walk) == (timer, CreateRegister("a"))
    walk.send(StepEnded("a", "completed", 1))
    assert commands_of(walk) == (ClearTimers(),)


@pytest.mark.parametrize("timeout_ms", [500, 2_500])
def test_a_step_that_waits_for_a_signal_has_a_timer_from_when_it_started(timeout_ms: int) -> None:
    signal = SignalStep(id="a", signal="go", after=("b",), timeout_s=timeout_ms / 1000)
    walk = RunWalk(plan_of(task("b"), signal))
    walk.send(StepEnded("b", "completed", 1), after_ms=1_000)
    due_ms = own.EPOCH_MS + 1_000 + timeout_ms
    fired = TimerFired(kind="step_deadline", step="a", due_ms=due_ms)
    assert commands_of(walk) == (SetTimer("d-a", due_ms, fired),)


def test_a_signal_step_without_a_timeout_asks_for_nothing() -> None:
    assert commands_of(RunWalk(plan_of(SignalStep(id="a", signal="go")))) == ()


def test_a_parked_step_asks_for_nothing_and_a_resumed_one_has_its_register() -> None:
    walk = RunWalk(plan_of(LOOP))
    walk.send(StepParked("a", "max_iterations", 3, "e5", 20))
    assert commands_of(walk) == ()
    walk.send(StepResumed("a", "e6", 21))
    assert commands_of(walk) == (CreateRegister("a"),)


def test_the_end_of_a_run_ends_the_registers_of_its_steps_and_tells_the_workers() -> None:
    loop = AgentLoopStep(id="l", type="think", max_iterations=3, on_limit="park")
    signal = SignalStep(id="s", signal="go")
    walk = RunWalk(plan_of(task("a"), task("b"), task("c", "a"), loop, signal))
    walk.send(StepEnded("b", "completed", 1))
    walk.send(StepParked("l", "max_iterations", 3, "e5", 20))
    walk.send(CancelRequested(reason="asked"))
    failure = Failure("cancelled", "the run ended: cancelled", retryable=False)
    assert commands_of(walk) == (
        EndRegister("a", failure),
        EndRegister("l", failure),
        NotifyCancel("cancelled"),
        ClearTimers(),
    )


def test_a_failed_run_tells_the_other_steps_the_reason() -> None:
    walk = RunWalk(plan_of(task("a"), task("b")))
    walk.send(StepEnded("a", "failed", 1, Failure("ValueError", "it broke")))
    failure = Failure("cancelled", "the run ended: ValueError", retryable=False)
    assert commands_of(walk) == (EndRegister("b", failure), NotifyCancel("ValueError"))


def test_a_run_whose_steps_all_ended_ends_quietly() -> None:
    walk = RunWalk(plan_of(task("a"), task("b", "a")))
    walk.send(StepEnded("a", "failed", 1, Failure("ValueError")))
    assert commands_of(walk) == ()


@pytest.mark.parametrize(
    ("step", "may"),
    [
        (task("a"), False),
        (TaskStep(id="a", type="work", timeout_s=5), False),
        (TaskStep(id="a", type="work", retry=Retry(max_attempts=2)), True),
        (LOOP, True),
        (SignalStep(id="a", signal="go"), False),
        (SignalStep(id="a", signal="go", timeout_s=0.5), True),
    ],
)
def test_timers_are_cleared_for_workflows_that_may_have_set_one(step: Step, may: bool) -> None:
    assert plan_of(step).may_set_timers is may
    assert plan_of(step, timeout_s=0.5).may_set_timers is True
    walk = RunWalk(plan_of(step))
    walk.send(CancelRequested())
    assert (ClearTimers() in commands_of(walk)) is may


# ------------------------------------------------------------------ of a register


@given(own.work_steps(), moves())
def test_a_register_that_waits_for_time_always_has_its_timer(
    step: TaskStep | AgentLoopStep, moves: list[tuple[str, dict[str, object]]]
) -> None:
    walk = StepWalk(step)
    for verb, arguments in moves:
        getattr(walk, verb)(**arguments)
    register = walk.now
    timers = effects.of_register("a", step.type, register)
    if isinstance(register, Ended):
        assert timers == ()
        return
    live = register if isinstance(register, Task) else register.task
    # The time of a step that is parked stands still.
    deadline_ms = 0 if isinstance(register, Parked) else live.deadline_ms
    fired = TimerFired(kind="step_deadline", step="a", type=step.type, due_ms=deadline_ms)
    expected = [SetTimer("d-a", deadline_ms, fired)] if deadline_ms else []
    if isinstance(register, Sleeping | Parked) and register.due_ms:
        fired = TimerFired(kind="wake", step="a", type=step.type, due_ms=register.due_ms)
        expected.append(SetTimer("w-a", register.due_ms, fired))
    assert timers == tuple(expected)
    assert len({timer.id for timer in timers}) == len(timers), "one replaces no other"
    # Firing each moves the step: no register waits for a timer that would change nothing.
    for timer in timers:
        moment = Moment(own.RUN, "t999999", timer.due_ms, 999_999)
        assert (
            advance(step, Placed(walk.placed.sequence, register), timer.event, moment)
            is not register
        )


def test_a_loop_with_max_duration_has_a_deadline_until_it_is_parked() -> None:
    walk = StepWalk(msgspec.structs.replace(LOOP, max_duration_s=10, on_limit="park"))
    due_ms = own.EPOCH_MS + 10_000
    fired = TimerFired(kind="step_deadline", step="a", type="think", due_ms=due_ms)
    expected = SetTimer("d-a", due_ms, fired)
    assert effects.of_register("a", "think", walk.now) == (expected,)
    walk.continue_(delay_ms=60_000)
    assert isinstance(walk.now, Sleeping)
    assert effects.of_register("a", "think", walk.now)[0] == expected
    walk.deadline(after_ms=10_000)
    assert isinstance(walk.now, Parked)
    assert effects.of_register("a", "think", walk.now) == ()


def test_a_timer_for_later_replaces_the_one_of_its_step_and_kind() -> None:
    task_ = StepWalk(LOOP).now
    one, other = (
        effects.of_register("a", "think", Sleeping(parent="e1", task=task_, due_ms=due_ms))
        for due_ms in (100, 200)
    )
    assert one[0].id == other[0].id == "w-a"
    assert one[0].due_ms < other[0].due_ms


# ------------------------------------------------------------------ the first task


def test_the_first_task_of_a_loop_carries_its_bounds() -> None:
    loop = AgentLoopStep(
        id="a",
        type="think",
        max_iterations=7,
        max_duration_s=2.5,
        timeout_s=0.25,
        budget_warn_at=3,
        budget_force_at=5,
    )
    walk = RunWalk(plan_of(task("b"), msgspec.structs.replace(loop, after=("b",))))
    walk.send(StepEnded("b", "completed", 1), after_ms=100)
    assert effects.first_task(walk.plan, walk.run, loop, INPUT) == Task(
        parent="e2",
        workflow="w",
        definition=walk.plan.hash,
        loop=True,
        input=INPUT,
        started_ms=own.EPOCH_MS + 100,
        deadline_ms=own.EPOCH_MS + 2_600,
        timeout_ms=250,
        max_iterations=7,
        budget_warn_at=3,
        budget_force_at=5,
    )


def test_a_loop_without_max_duration_has_no_deadline() -> None:
    walk = RunWalk(plan_of(LOOP))
    assert effects.first_task(walk.plan, walk.run, LOOP, INPUT).deadline_ms == 0


def test_the_first_task_of_a_task_step_is_one_iteration() -> None:
    step = TaskStep(id="a", type="work", timeout_s=1.5)
    walk = RunWalk(plan_of(step))
    assert effects.first_task(walk.plan, walk.run, step, INPUT) == Task(
        parent="e1",
        workflow="w",
        definition=walk.plan.hash,
        input=INPUT,
        started_ms=own.EPOCH_MS,
        timeout_ms=1_500,
    )


# ------------------------------------------------------------------ closing a register

CLOSING = Failure("cancelled", "the run ended: cancelled", retryable=False)


@given(own.loop_steps().flatmap(own.registers), own.moments())
def test_closing_a_register_ends_it_whatever_it_holds(register: Register, moment: Moment) -> None:
    closed = effects.cancelled(register, CLOSING, moment)
    if isinstance(register, Ended):
        assert closed is register
        return
    live = register if isinstance(register, Task) else register.task
    assert closed == Ended(
        parent=moment.id,
        outcome="cancelled",
        iterations=live.iteration,
        attempt=live.attempt,
        failure=CLOSING,
        started_ms=live.started_ms,
        ended_ms=moment.ms,
        spent=live.spent,
    )
    assert effects.cancelled(closed, CLOSING, moment) is closed


def test_a_register_that_does_not_exist_is_closed_before_it_can() -> None:
    closed = effects.cancelled(None, CLOSING, Moment(own.RUN, "end", 5))
    assert closed == Ended(
        parent="end", outcome="cancelled", iterations=0, failure=CLOSING, ended_ms=5
    )


@pytest.mark.parametrize("kind", [Task, Delayed, Sleeping, Parked])
def test_no_worker_gets_a_task_from_a_closed_register(kind: type[LiveRegister]) -> None:
    task_ = StepWalk(LOOP).now
    register = {
        Task: task_,
        Delayed: Delayed(parent="e1", task=task_, due_ms=1),
        Sleeping: Sleeping(parent="e1", task=task_, due_ms=1),
        Parked: Parked(parent="e1", task=task_, reason="max_iterations", parked_ms=1),
    }[kind]
    assert isinstance(effects.cancelled(register, CLOSING, Moment(own.RUN, "end", 5)), Ended)
