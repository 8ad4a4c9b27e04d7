"""A paused run starts nothing, and a resume loses nothing. Method: the simulated world of
``world.py`` in which one engine handles whatever happens, drawn by hypothesis; windows by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.test_windows import begun, finish, newest
from tests.core.walks import RunWalk, plan_of
from tests.core.world import World

from treadle.engine.core import Plan
from treadle.engine.core.bounds import task_of
from treadle.sdk.definition import AgentLoopStep, Retry, SignalStep, TaskStep
from treadle.sdk.messages import (
    CancelRequested,
    Ended,
    MessageSent,
    Parked,
    PauseRequested,
    ResumeRequested,
    SignalReceived,
    Task,
)

LOOP = AgentLoopStep(id="a", type="think", max_iterations=9)
PAUSE, RESUME = PauseRequested(reason="the shop is closed"), ResumeRequested()


def send(world: World, *events: Any) -> None:
    for event in events:
        world.store(event)
    world.handle_all()


def execute(world: World, verb: str) -> None:
    execution = world.take("a")
    assert execution is not None
    world.settle(execution, verb)
    world.handle_all()


def held(world: World, step: str = "a") -> Parked:
    register = world.registers[step].register
    assert isinstance(register, Parked)
    assert register.paused
    return register


def status(world: World) -> str:
    assert world.document is not None
    return world.document.status


# ------------------------------------------------------------------ what always holds

happenings = st.lists(
    st.sampled_from(("continue", "wait", "complete", "fail", "lose", "message", "time"))
    | st.sampled_from((SignalReceived(name="go"), SignalReceived(name="stop"))),
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
    plan=own.plans(("agent_loop", "agent_loop", "task", "signal", "sleep")),
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


def test_a_step_whose_turn_comes_is_held_before_its_first_execution() -> None:
    first = TaskStep(id="a", type="work")
    world = begun(first, TaskStep(id="b", type="work", after=("a",)))
    send(world, PAUSE)
    execute(world, "complete")
    assert held(world, "b").task.attempt == 1
    send(world, RESUME)
    assert isinstance(world.registers["b"].register, Task)


def test_signals_and_messages_are_counted_and_start_nothing() -> None:
    world = begun(LOOP, SignalStep(id="b", signal="go"), TaskStep(id="c", type="w", after=("b",)))
    execute(world, "wait")
    send(world, PAUSE, SignalReceived(name="go"), MessageSent(step="a", id="m1"))
    assert world.document is not None
    assert world.document.steps["b"].status == "completed"
    assert held(world, "a").task.iteration == 1
    assert held(world, "c").task.iteration == 0
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
    assert (held(world, "undo").task.attempt, status(world)) == (1, "paused")
    send(world, RESUME)
    happen(world, "complete")
    assert status(world) == "failed"


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
