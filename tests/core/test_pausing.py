"""A paused run starts nothing, and a resume loses nothing. Method: the simulated world of
``world.py`` in which one engine handles whatever happens, drawn by hypothesis; windows by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.names import STEP_IDS
from tests.core.test_windows import begun, finish, newest
from tests.core.turns import check_all_begun, check_pause
from tests.core.walks import RunWalk, plan_of
from tests.core.world import World

from treadle.engine.core import Plan, StepEnded
from treadle.engine.core.bounds import task_of
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
    TaskStep,
    WorkflowDefinition,
    content_hash,
)
from treadle.sdk.messages import (
    CancelRequested,
    Ended,
    Failure,
    MessageSent,
    Parked,
    PauseRequested,
    ResumeRequested,
    RunSuperseded,
    SignalReceived,
    Task,
)
from treadle.sdk.run import RunDocument

LOOP = AgentLoopStep(id="a", type="think", max_iterations=9)
UNTOLD = ("task", "agent_loop", "signal", "sleep", "approval", "choice", "event", "respond")
"""Kinds of steps that a fact ends, whatever is in their registers."""
PAUSE, RESUME = PauseRequested(reason="the shop is closed"), ResumeRequested()


def send(world: World, *events: Any) -> None:
    for event in events:
        world.store(event)
    world.handle_all()


def execute(world: World, verb: str, step: str = "a") -> None:
    execution = world.take(step)
    assert execution is not None
    world.settle(execution, verb)
    world.handle_all()


def held(world: World, step: str = "a") -> Parked:
    register = world.registers[step].register
    assert isinstance(register, Parked)
    assert register.paused
    return register


def document(world: World) -> RunDocument:
    assert world.document is not None
    return world.document


def status(world: World) -> str:
    return document(world).status


# ------------------------------------------------------------------ what always holds

happenings = st.lists(
    st.sampled_from(("continue", "wait", "complete", "fail", "lose", "message", "time"))
    | st.sampled_from((SignalReceived(name="go"), SignalReceived(name="stop")))
    | own.answers,
    max_size=12,
)


def happen(world: World, what: Any) -> None:
    match what:
        case "time":
            world.now_ms += 700_000
            world.fire_timers()
        case "message":
            for step in world.registers:
                world.send(step, f"m{len(world.log)}")
        case str():
            for step, placed in list(world.registers.items()):
                if isinstance(placed.register, Task):
                    execution = world.take(step)
                    assert execution is not None
                    if what == "lose":
                        world.lose(step, placed.sequence)
                    else:
                        world.settle(execution, what)
        case _:
            world.store(what)
    world.handle_all()


@given(
    plan=own.plans(("agent_loop", "agent_loop", "task", "signal", "sleep", *own.FLOW_KINDS)),
    before=happenings,
    meanwhile=happenings,
)
def test_a_paused_run_starts_nothing_and_goes_on_where_it_was(
    plan: Plan, before: list[Any], meanwhile: list[Any]
) -> None:
    world = World(plan)
    world.request()
    world.handle_all()
    for what in before:
        happen(world, what)
    assert world.document is not None
    if world.document.is_terminal:
        return
    send(world, PAUSE)
    given_out = dict(world.given_out)
    for what in meanwhile:
        happen(world, what)
        assert world.given_out == given_out, "nothing is given out"
        world.check_rest()
    held_tasks = {
        step: placed.register.task
        for step, placed in world.registers.items()
        if isinstance(placed.register, Parked) and placed.register.paused
    }
    send(world, RESUME)
    world.check_rest()
    if world.document.is_terminal:
        return
    for step, task in held_tasks.items():
        register = world.registers[step].register
        assert isinstance(register, Task)
        assert (register.iteration, register.attempt, register.input) == (
            task.iteration,
            task.attempt,
            task.input,
        )


@given(
    plan=own.plans(UNTOLD),
    failing=st.sets(st.sampled_from(STEP_IDS)),
    picks=st.lists(st.integers(0, 9), max_size=12),
    others=st.lists(st.sampled_from((PAUSE, PAUSE, RESUME)) | st.integers(0, 9), max_size=20),
)
def test_a_run_gets_to_the_same_end_with_pauses_and_without(
    plan: Plan, failing: set[str], picks: list[Any], others: list[Any]
) -> None:
    plain, paused = walked(plan, failing, picks), walked(plan, failing, others)
    assert paused.status == plain.status
    if plain.status == "completed":
        assert paused.chosen == plain.chosen
        assert {step_id: entry.status for step_id, entry in paused.steps.items()} == {
            step_id: entry.status for step_id, entry in plain.steps.items()
        }


def walked(plan: Plan, failing: set[str], happens: list[Any]) -> RunDocument:
    """Return the end of a run: who is told to end by a number, and afterwards the first one."""
    walk = RunWalk(plan)
    left = iter(happens)
    for _ in range(100):
        if walk.run.is_terminal:
            return walk.run
        active = [name for name, entry in walk.run.steps.items() if entry.status == "active"]
        what = next(left, 0 if active else RESUME)
        if not isinstance(what, int):
            before = walk.run
            walk.send(what)
            check_pause(plan, before, walk.run)
        elif active:
            step_id = active[what % len(active)]
            outcome: Any = "failed" if step_id in failing else "completed"
            before = walk.run
            walk.send(StepEnded(step_id, outcome, 1, Failure("ValueError")))
            check_pause(plan, before, walk.run)
        check_all_begun(plan, walk.run)
    raise AssertionError(f"the run does not end: {walk.run}")


@given(st.permutations(["pause", "resume", "pause again"]))
def test_a_pause_and_a_resume_count_in_the_order_in_which_they_were_stored(
    order: list[str],
) -> None:
    walk = RunWalk(plan_of(TaskStep(id="a", type="work")))
    sequences = {"pause": 11, "resume": 12, "pause again": 13}
    walk.sequence = 20
    for what in [*order, *order]:
        walk.send(PAUSE if what != "resume" else RESUME, sequence=sequences[what])
    assert walk.run.pause is not None
    assert (walk.run.status, walk.run.pause.event, walk.run.pause.resumed) == (
        "paused",
        "e13",
        "e12",
    )


# ------------------------------------------------------------------ what is held, one by one


def test_the_verdict_of_an_execution_under_way_is_stored_and_the_next_iteration_is_held() -> None:
    world = begun(LOOP)
    send(world, PAUSE)
    assert isinstance(world.registers["a"].register, Task), "it may finish"
    execute(world, "continue")
    assert (held(world).task.iteration, status(world)) == (1, "paused")


def test_the_last_verdict_ends_a_paused_run() -> None:
    world = begun(LOOP)
    send(world, PAUSE)
    execute(world, "complete")
    assert status(world) == "completed"


@pytest.mark.parametrize("how", ["fail", "lose"])
def test_a_retry_is_held(how: str) -> None:
    retry = Retry(max_attempts=3, delay_s=0.2, jitter=0)
    world = begun(TaskStep(id="a", type="work", retry=retry))
    send(world, PAUSE)
    happen(world, how)
    happen(world, "time")
    assert held(world).task.attempt == 2
    send(world, RESUME)
    execute(world, "complete")
    assert status(world) == "completed"


def test_a_step_whose_turn_comes_begins_with_the_resume() -> None:
    first = TaskStep(id="a", type="work")
    loop = AgentLoopStep(id="b", type="think", after=("a",), max_iterations=9, max_duration_s=60)
    world = begun(first, loop)
    send(world, PAUSE)
    execute(world, "complete")
    assert (set(document(world).steps), status(world)) == ({"a"}, "paused")
    world.now_ms += 1_000_000
    send(world, RESUME)
    register = world.registers["b"].register
    assert isinstance(register, Task)
    assert (register.started_ms, register.deadline_ms) == (world.now_ms, world.now_ms + 60_000)


def test_signals_and_messages_are_counted_and_start_nothing() -> None:
    world = begun(LOOP, SignalStep(id="b", signal="go"), TaskStep(id="c", type="w", after=("b",)))
    execute(world, "wait")
    send(world, PAUSE, SignalReceived(name="go"), MessageSent(step="a", id="m1"))
    assert document(world).steps["b"].status == "completed"
    assert held(world, "a").task.iteration == 1
    assert "c" not in document(world).steps
    send(world, RESUME)
    assert all(isinstance(world.registers[step].register, Task) for step in "ac")
    world.check_rest()


def test_the_time_a_step_was_held_does_not_count_towards_its_duration() -> None:
    world = begun(AgentLoopStep(id="a", type="think", max_iterations=9, max_duration_s=60))
    before = world.registers["a"].register
    assert isinstance(before, Task)
    send(world, PAUSE)
    execute(world, "continue")
    world.now_ms += 1_000_000
    world.fire_timers()
    world.handle_all()
    send(world, RESUME)
    after = world.registers["a"].register
    assert isinstance(after, Task)
    assert after.deadline_ms == before.deadline_ms + 1_000_000


def test_a_step_parked_at_a_bound_stays_so_when_a_pause_ends() -> None:
    world = begun(AgentLoopStep(id="a", type="think", max_iterations=1, on_limit="park"))
    execute(world, "continue")
    send(world, PAUSE)
    assert status(world) == "paused"
    send(world, RESUME)
    assert status(world) == "parked"
    send(world, PAUSE, ResumeRequested(add_iterations=1))
    assert (status(world), world.registers["a"].register.__class__) == ("running", Task)


def test_one_step_cannot_be_moved_on_alone_in_a_paused_run_but_its_bound_is_raised() -> None:
    world = begun(AgentLoopStep(id="a", type="think", max_iterations=1, on_limit="park"))
    execute(world, "continue")
    send(world, PAUSE, ResumeRequested(step="a", add_iterations=1))
    assert (held(world).task.max_iterations, status(world)) == (2, "paused")
    send(world, RESUME)
    assert isinstance(world.registers["a"].register, Task)


def test_a_cancel_ends_a_paused_run_and_undoes_what_is_to_be_undone() -> None:
    world = begun(
        TaskStep(id="a", type="work", compensate="undo"),
        TaskStep(id="b", type="work", after=("a",)),
        TaskStep(id="undo", type="work"),
    )
    execute(world, "complete")
    send(world, PAUSE, CancelRequested())
    assert isinstance(world.registers["undo"].register, Task)
    happen(world, "complete")
    assert status(world) == "cancelled"


def test_the_compensations_of_a_paused_run_that_fails_wait_for_the_resume() -> None:
    world = begun(
        TaskStep(id="a", type="work", compensate="undo"),
        TaskStep(id="b", type="work", after=("a",)),
        TaskStep(id="undo", type="work"),
    )
    execute(world, "complete")
    send(world, PAUSE)
    happen(world, "fail")
    assert (document(world).undoing, status(world)) == ("failed", "paused")
    assert "undo" not in document(world).steps
    send(world, RESUME)
    assert status(world) == "running"
    happen(world, "complete")
    assert status(world) == "failed"


def test_a_pause_between_two_compensations_holds_the_second() -> None:
    world = begun(
        TaskStep(id="a", type="work", compensate="undo-a"),
        TaskStep(id="b", type="work", after=("a",), compensate="undo-b"),
        TaskStep(id="c", type="work", after=("b",)),
        TaskStep(id="undo-a", type="work"),
        TaskStep(id="undo-b", type="work"),
    )
    execute(world, "complete")
    execute(world, "complete", "b")
    send(world, CancelRequested(), PAUSE, RESUME, PAUSE)
    assert "undo-a" not in document(world).steps
    execute(world, "complete", "undo-b")
    assert "undo-a" not in document(world).steps
    send(world, RESUME)
    execute(world, "complete", "undo-a")
    assert status(world) == "cancelled"


def test_a_later_start_that_takes_the_place_of_a_paused_run_lets_it_undo() -> None:
    world = begun(
        TaskStep(id="a", type="work", compensate="undo"),
        TaskStep(id="b", type="work", after=("a",)),
        TaskStep(id="undo", type="work"),
    )
    execute(world, "complete")
    send(world, PAUSE, RunSuperseded(request=document(world).place, by="r2"))
    assert isinstance(world.registers["undo"].register, Task)
    happen(world, "complete")
    assert status(world) == "cancelled"


def test_what_is_over_by_itself_does_not_begin_while_the_run_is_paused() -> None:
    for step in (
        SleepStep(id="b", after=("a",), duration_s=0.2),
        SleepStep(id="b", after=("a",), expression="0"),
        ChoiceStep(id="b", after=("a",), branches=(Branch("yes", "true"),), default="no"),
        RespondStep(id="b", after=("a",)),
        SignalStep(id="b", after=("a",), signal="go"),
        ApprovalStep(id="b", after=("a",), timeout_s=1),
        EventStep(id="b", after=("a",), event="paid", timeout_s=1),
    ):
        world = begun(SleepStep(id="a", duration_s=60), step)
        send(world, SignalReceived(name="go"), PAUSE)
        happen(world, "time")
        happen(world, "time")
        assert document(world).steps["a"].status == "completed", "a sleep that ends is over"
        assert (set(document(world).steps), status(world)) == ({"a"}, "paused")
        send(world, RESUME)
        entry = document(world).steps["b"]
        assert entry.started_ms == world.now_ms, "its time counts from the resume"


def test_a_wait_that_was_under_way_may_end_by_its_timeout_and_what_handles_that_is_held() -> None:
    world = begun(ApprovalStep(id="a", timeout_s=60, on_failure="b"), TaskStep(id="b", type="work"))
    send(world, PAUSE)
    happen(world, "time")
    assert document(world).steps["a"].status == "failed"
    assert (set(document(world).steps), status(world)) == ({"a"}, "paused")
    send(world, RESUME)
    happen(world, "complete")
    assert status(world) == "completed"


def test_a_paused_run_ends_when_nothing_is_left_but_what_is_skipped() -> None:
    world = begun(TaskStep(id="a", type="work", on_failure="b"), TaskStep(id="b", type="work"))
    send(world, PAUSE)
    execute(world, "complete")
    assert (status(world), document(world).steps["b"].status) == ("completed", "skipped")


def test_a_run_with_a_declared_result_does_not_end_before_what_is_held() -> None:
    steps = (SleepStep(id="a", duration_s=60), RespondStep(id="b", after=("a",)))
    definition = WorkflowDefinition(name="w", steps=steps, output_schema={})
    world = World(Plan(definition, content_hash(definition)))
    world.request()
    world.handle_all()
    send(world, PAUSE)
    happen(world, "time")
    assert status(world) == "paused"
    send(world, RESUME)
    assert status(world) == "completed"


# ------------------------------------------------------------------ windows


def test_a_register_that_a_late_engine_held_after_the_resume_does_not_stay_so() -> None:
    world = begun(LOOP)
    send(world, PAUSE)
    execution = world.take("a")
    assert execution is not None
    world.settle(execution, "continue")
    late = world.engine(newest(world))
    for _ in range(3):
        next(late)  # It knows of the pause, has decided to hold the step, and has not stored it.
    world.store(RESUME)
    world.handle(newest(world))
    for _ in late:
        pass
    register = world.registers["a"].register
    assert isinstance(register, Task)
    assert task_of(register).iteration == 1
    finish(world)


def test_an_ended_register_is_not_touched_by_a_pause() -> None:
    world = begun(LOOP)
    execute(world, "complete")
    send(world, PAUSE, RESUME)
    assert isinstance(world.registers["a"].register, Ended)
