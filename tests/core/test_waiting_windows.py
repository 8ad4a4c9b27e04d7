"""The windows of messages and waiting, one by one: an engine stops exactly there, and another
acts. Method: the simulated world of ``world.py``; an engine is advanced until a condition holds."""

from __future__ import annotations

import pytest
from tests.core.test_windows import begun, finish, newest, stopped
from tests.core.world import Execution, World

from treadle.engine.core.bounds import task_of
from treadle.sdk.definition import AgentLoopStep
from treadle.sdk.messages import CancelRequested, Ended, Parked, ResumeRequested, Task

LOOP = AgentLoopStep(id="a", type="think", max_iterations=9)


def execute(world: World, verb: str, *, reads: bool = True) -> Execution:
    """A worker executes the task, after it took note of what is there."""
    execution = world.take("a")
    assert execution is not None
    if reads:
        world.read(execution)
    world.settle(execution, verb)
    return execution


def waiting(verb: str = "wait") -> World:
    world = begun(LOOP)
    execute(world, verb)
    world.handle_all()
    assert is_parked(world)
    return world


def is_parked(world: World) -> bool:
    return isinstance(world.registers["a"].register, Parked)


def standing(world: World) -> tuple[type, int]:
    register = world.registers["a"].register
    assert not isinstance(register, Ended)
    return type(register), task_of(register).iteration


def status(world: World) -> str:
    assert world.document is not None
    return world.document.status


def test_a_message_stored_before_the_completion_keeps_the_step_going() -> None:
    world = begun(LOOP)
    execution = world.take("a")
    assert execution is not None
    world.read(execution)
    world.send("a", "m1")
    world.settle(execution, "complete")
    # The completion is handled first: the message itself is in another engine's hands.
    world.handle(newest(world))
    assert standing(world) == (Task, 1)
    finish(world)
    execute(world, "complete")
    finish(world)
    assert isinstance(world.registers["a"].register, Ended)


def test_a_message_that_comes_while_an_engine_is_about_to_let_the_step_wait() -> None:
    world = begun(LOOP)
    execute(world, "wait")
    settle = newest(world)
    # It has looked for messages, and has not stored the register.
    paused = world.engine(settle)
    for _ in range(3):
        next(paused)
    assert not is_parked(world)
    world.send("a", "m1")
    world.handle(newest(world))
    for _ in paused:
        pass
    assert standing(world) == (Task, 1)
    finish(world)


def test_a_message_that_comes_while_the_step_waits_and_its_engine_dies() -> None:
    world = begun(LOOP)
    execute(world, "wait")
    # Killed before it looked for messages again, and before the document heard of it.
    stopped(world, newest(world), lambda: is_parked(world))
    world.send("a", "m1")
    world.handle(newest(world))
    assert standing(world) == (Task, 1)
    finish(world)
    assert status(world) == "running"


def test_an_engine_killed_after_it_stored_that_the_step_waits_while_the_message_was_handled() -> (
    None
):
    world = begun(LOOP)
    execute(world, "wait")
    settle = newest(world)
    paused = world.engine(settle)
    for _ in range(3):
        next(paused)
    world.send("a", "m1")
    world.handle(newest(world))
    while not is_parked(world):
        next(paused)
    paused.close()
    # The message is acked: only the wait itself, delivered again, can find it.
    world.handle(settle)
    assert standing(world) == (Task, 1)
    finish(world)


def test_an_engine_killed_between_the_waking_and_the_document_while_the_step_moves_on() -> None:
    world = waiting()
    world.send("a", "m1")
    message = newest(world)
    stopped(world, message, lambda: not is_parked(world))
    execute(world, "continue")
    world.handle(newest(world))
    assert status(world) == "parked", "nobody has told it yet"
    finish(world)
    assert (status(world), standing(world)) == ("running", (Task, 2))


def test_an_engine_that_tells_late_that_the_step_waits() -> None:
    world = begun(LOOP)
    execute(world, "wait")
    late = stopped(world, newest(world), lambda: is_parked(world))
    next(late)  # It has looked: there is no message.
    world.send("a", "m1")
    message = newest(world)
    stopped(world, message, lambda: not is_parked(world))  # Killed before it told the document.
    execute(world, "continue")
    world.handle(newest(world))
    world.handle(message)
    for _ in late:
        pass
    finish(world)
    assert (status(world), standing(world)) == ("running", (Task, 2))


def test_a_message_delivered_again_wakes_no_later_wait() -> None:
    world = waiting()
    world.send("a", "m1")
    finish(world)
    execute(world, "wait")
    finish(world)
    assert standing(world) == (Parked, 2)
    parked = world.registers["a"]
    world.redeliver_all()
    finish(world)
    assert world.registers["a"] is parked


def test_two_engines_on_one_message_wake_the_step_once() -> None:
    world = waiting()
    world.send("a", "m1")
    pair = world.engine(newest(world)), world.engine(newest(world))
    for _ in range(20):
        for engine in pair:
            next(engine, None)
    finish(world)
    assert standing(world) == (Task, 1)
    assert len(world.history["a"]) == 3


@pytest.mark.parametrize("other", ["resume", "timer", "message"])
def test_a_message_and_something_else_wake_a_step_once(other: str) -> None:
    world = waiting("nap")
    world.send("a", "m1")
    message = newest(world)
    if other == "resume":
        world.store(ResumeRequested())
    elif other == "timer":
        world.now_ms += 30_000
        world.fire_timers()
    else:
        world.send("a", "m2")
    pair = world.engine(message), world.engine(newest(world))
    for _ in range(20):
        for engine in pair:
            next(engine, None)
    finish(world)
    assert (standing(world), status(world)) == ((Task, 1), "running")
    assert len(world.history["a"]) == 3


def test_a_message_that_loses_against_a_cancel_wakes_nothing() -> None:
    world = waiting()
    world.send("a", "m1")
    paused = world.engine(newest(world))
    for _ in range(3):
        next(paused)
    world.store(CancelRequested())
    world.handle(newest(world))
    for _ in paused:
        pass
    finish(world)
    world.check_end()


def test_a_step_that_does_not_read_waits_for_what_comes_after_its_verdict() -> None:
    world = begun(LOOP)
    world.send("a", "m1")
    world.handle_all()
    execute(world, "wait", reads=False)
    finish(world)
    assert standing(world) == (Parked, 1)
    world.send("a", "m2")
    finish(world)
    assert standing(world) == (Task, 1)


def test_a_message_to_a_step_that_has_not_started_waits_for_it() -> None:
    after = AgentLoopStep(id="b", type="think", max_iterations=9, after=("a",))
    world = begun(LOOP, after)
    world.send("b", "early")
    world.handle_all()
    execute(world, "complete")
    world.handle_all()
    execution = world.take("b")
    assert execution is not None
    world.settle(execution, "wait")
    world.read(execution)
    assert execution.seen == world.newest("b") > 0
    finish(world)
