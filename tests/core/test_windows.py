"""The windows of the protocol, one by one: an engine stops exactly there, and another acts.
Method: the simulated world of ``world.py``; an engine is advanced until a condition holds."""

from __future__ import annotations

from collections.abc import Callable, Generator

import pytest
from tests.core.walks import plan_of
from tests.core.world import World

from treadle.sdk.definition import AgentLoopStep, SignalStep, Step, TaskStep
from treadle.sdk.messages import (
    CancelRequested,
    Ended,
    Parked,
    ResumeRequested,
    SignalReceived,
    Task,
)

LOOP = AgentLoopStep(id="a", type="think", max_iterations=2, on_limit="park")
WORK = TaskStep(id="a", type="work")


def begun(*steps: Step) -> World:
    world = World(plan_of(*steps))
    world.request()
    world.handle_all()
    return world


def newest(world: World) -> str:
    return list(world.unacked)[-1]


def stopped(
    world: World, event_id: str, condition: Callable[[], object]
) -> Generator[None, None, None]:
    """An engine takes the event and stops at the first point at which the condition holds."""
    engine = world.engine(event_id)
    while not condition():
        next(engine)
    return engine


def execute(world: World, step_id: str, verb: str) -> None:
    execution = world.take(step_id)
    assert execution is not None
    world.settle(execution, verb)


def finish(world: World) -> None:
    while world.unacked:
        world.handle_all()
        world.check()
    world.check_rest()


def test_an_engine_killed_between_document_and_register_with_a_signal_in_between() -> None:
    world = World(plan_of(WORK, SignalStep(id="s", signal="go")))
    world.request()
    stopped(world, newest(world), lambda: world.document)
    world.store(SignalReceived(name="go"))
    world.handle(newest(world))
    finish(world)
    execute(world, "a", "complete")
    finish(world)
    assert world.document is not None
    assert (world.document.status, world.document.signals_received) == ("completed", 1)
    world.check_end()


def test_an_engine_killed_between_the_end_of_a_step_and_the_document() -> None:
    world = begun(WORK, TaskStep(id="b", type="work", after=("a",)))
    execute(world, "a", "complete")
    stopped(world, newest(world), lambda: isinstance(world.registers["a"].register, Ended))
    assert "b" not in world.registers
    finish(world)
    assert isinstance(world.registers["b"].register, Task)


def test_an_engine_killed_between_the_document_and_the_next_register() -> None:
    world = begun(WORK, TaskStep(id="b", type="work", after=("a",)))
    execute(world, "a", "complete")
    assert world.document is not None
    stopped(world, newest(world), lambda: world.document and "b" in world.document.steps)
    assert "b" not in world.registers
    finish(world)
    assert isinstance(world.registers["b"].register, Task)


def test_an_engine_paused_before_it_creates_a_register_wakes_after_a_cancel() -> None:
    world = begun(WORK, TaskStep(id="b", type="work", after=("a",)))
    execute(world, "a", "complete")
    paused = stopped(world, newest(world), lambda: world.document and "b" in world.document.steps)
    world.store(CancelRequested())
    world.handle(newest(world))
    assert isinstance(world.registers["b"].register, Ended)
    for _ in paused:
        pass
    finish(world)
    assert world.history["b"] == [world.registers["b"].register]
    world.check_end()


def test_a_completion_decided_by_a_paused_engine_loses_against_a_cancel() -> None:
    world = begun(WORK)
    execute(world, "a", "complete")
    paused = world.engine(newest(world))
    next(paused)
    next(paused)
    world.store(CancelRequested())
    world.handle(newest(world))
    for _ in paused:
        pass
    finish(world)
    assert world.document is not None
    assert world.document.status == "cancelled"
    world.check_end()


def test_an_engine_killed_between_a_resume_and_the_document_while_the_step_moves_on() -> None:
    world = begun(LOOP)
    for _ in range(2):
        execute(world, "a", "continue")
        world.handle_all()
    assert isinstance(world.registers["a"].register, Parked)
    world.store(ResumeRequested(add_iterations=5))
    resume = newest(world)
    stopped(world, resume, lambda: isinstance(world.registers["a"].register, Task))
    execute(world, "a", "continue")
    world.handle(newest(world))
    assert world.document is not None
    assert world.document.status == "parked", "nobody has told it yet"
    finish(world)
    assert world.document.status == "running"
    world.redeliver_all()
    finish(world)
    register = world.registers["a"].register
    assert isinstance(register, Task)
    assert (register.iteration, register.max_iterations) == (3, 7)


def test_a_resume_delivered_again_after_the_next_parking_raises_nothing() -> None:
    world = begun(LOOP)
    for _ in range(2):
        execute(world, "a", "continue")
        world.handle_all()
    world.store(ResumeRequested(add_iterations=1))
    world.handle_all()
    execute(world, "a", "continue")
    world.handle_all()
    parked = world.registers["a"]
    world.redeliver_all()
    finish(world)
    assert world.registers["a"] is parked


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_executors_of_one_token_the_one_that_saved_is_believed(first: int) -> None:
    world = begun(LOOP)
    pair = world.take("a"), world.take("a")
    for execution in pair:
        assert execution is not None
        world.save(execution)
    assert pair[first] is not None
    world.settle(pair[first], "continue")
    world.handle_all()
    register = world.registers["a"].register
    assert isinstance(register, Task)
    # The second saved nothing: it is not believed, and its iteration is executed again.
    expected = (1, 1) if first == 0 else (0, 2)
    assert (register.iteration, register.attempt) == expected
    world.check()


def test_two_engines_on_one_settle_commit_one_iteration() -> None:
    world = begun(LOOP)
    execute(world, "a", "continue")
    pair = world.engine(newest(world)), world.engine(newest(world))
    for _ in range(20):
        for engine in pair:
            next(engine, None)
    finish(world)
    assert len(world.history["a"]) == 2


def test_two_engines_on_one_signal_count_it_once() -> None:
    world = begun(WORK)
    world.store(SignalReceived(name="go"))
    pair = world.engine(newest(world)), world.engine(newest(world))
    for _ in range(20):
        for engine in pair:
            next(engine, None)
    finish(world)
    assert world.document is not None
    assert world.document.signals_received == 1


def test_a_settle_published_twice_commits_one_iteration() -> None:
    world = begun(LOOP)
    execution = world.take("a")
    assert execution is not None
    world.settle(execution, "continue")
    world.settle(execution, "continue")
    finish(world)
    register = world.registers["a"].register
    assert isinstance(register, Task)
    assert (register.iteration, register.attempt) == (1, 1)


@pytest.mark.parametrize("verb", ["continue", "complete", "fail"])
def test_a_zombie_that_settles_after_its_loss_costs_nothing(verb: str) -> None:
    world = begun(LOOP)
    zombie = world.take("a")
    assert zombie is not None
    world.lose("a", zombie.token)
    world.handle_all()
    second = world.registers["a"]
    world.settle(zombie, verb)
    finish(world)
    assert world.registers["a"] is second
