"""A step whose attempts are used up parks its run, if its retries say so, and loses nothing by it.
Method: one register under events (``walks.py``), and whole runs in the simulated world."""

from __future__ import annotations

from tests.core.test_windows import begun, finish
from tests.core.walks import StepWalk
from tests.core.world import World

from treadle.sdk.definition import AgentLoopStep, MapStep, Retry, TaskStep, WorkflowDefinition
from treadle.sdk.limits import LOSSES_MAX
from treadle.sdk.messages import Delayed, Ended, Parked, ResumeRequested, Task
from treadle.sdk.validation import problems_of

RETRY = Retry(max_attempts=2, delay_s=1, jitter=0, on_exhausted="park", non_retryable=("Fatal",))
WORK = TaskStep(id="a", type="work", retry=RETRY)
LOOP = AgentLoopStep(id="a", type="think", max_iterations=5, retry=RETRY)


def exhausted(step: TaskStep | AgentLoopStep) -> StepWalk:
    walk = StepWalk(step)
    assert isinstance(walk.fail(), Delayed)
    walk.due(after_ms=1_000)
    parked = walk.fail("KeyError")
    assert isinstance(parked, Parked)
    return walk


def test_the_last_failure_parks_the_step_with_itself() -> None:
    parked = exhausted(WORK).now
    assert isinstance(parked, Parked)
    assert parked.failure is not None
    assert (parked.reason, parked.failure.type, parked.waits) == (
        "max_attempts",
        "KeyError",
        False,
    )


def test_a_resume_gives_it_its_attempts_again_as_often_as_somebody_asks() -> None:
    walk = exhausted(WORK)
    for attempt in (3, 5):
        task = walk.resume(after_ms=60_000)
        assert isinstance(task, Task)
        assert (task.attempt, task.failures, task.losses) == (attempt, 0, 0)
        assert task.last_failure is not None
        assert isinstance(walk.fail(), Delayed)
        walk.due(after_ms=1_000)
        assert isinstance(walk.fail(), Parked)
    walk.resume()
    assert isinstance(walk.complete(), Ended)


def test_of_a_loop_it_is_the_iteration_that_parks_and_goes_on_with_its_input() -> None:
    walk = StepWalk(LOOP)
    walk.continue_('"one"')
    for _ in range(2):
        walk.fail()
        walk.due(after_ms=1_000)
    parked = walk.now
    assert isinstance(parked, Parked)
    assert parked.task.iteration == 1
    task = walk.resume()
    assert isinstance(task, Task)
    assert (task.iteration, task.input) == (1, parked.task.input)
    assert walk.continue_('"two"').iteration == 2


def test_what_is_not_retryable_fails_at_once() -> None:
    for failing in ({"type": "Fatal"}, {"retryable": False}):
        walk = StepWalk(WORK)
        assert isinstance(walk.fail(**failing), Ended)  # type: ignore[arg-type]


def test_a_task_whose_workers_keep_vanishing_parks_too() -> None:
    walk = StepWalk(WORK)
    for _ in range(LOSSES_MAX + 1):
        walk.lose()
        walk.due(after_ms=60_000)
    parked = walk.now
    assert isinstance(parked, Parked)
    assert parked.failure is not None
    assert parked.failure.type == "worker_lost"
    assert walk.resume().losses == 0


def failed(world: World) -> None:
    for _ in range(2):
        execution = world.take("a")
        assert execution is not None
        world.settle(execution, "fail")
        world.handle_all()
        world.now_ms += 2_000
        world.fire_timers()
        world.handle_all()


def test_the_run_is_parked_with_the_failure_and_goes_on_when_it_is_resumed() -> None:
    world = begun(WORK)
    failed(world)
    run = world.document
    assert run is not None
    assert run.failure is not None
    assert (run.status, run.failed_step, run.failure.type) == ("parked", "a", "max_attempts")
    assert "the last failed with ValueError" in run.failure.message
    world.store(ResumeRequested())
    finish(world)
    execution = world.take("a")
    assert execution is not None
    world.settle(execution, "complete")
    finish(world)
    assert world.document is not None
    assert world.document.status == "completed"


def test_a_map_is_not_parked_with_one_of_its_items() -> None:
    step = MapStep(id="a", type="each", retry=RETRY)
    (problem,) = problems_of(WorkflowDefinition(name="w", steps=(step,)))
    assert problem.path == "steps[0].retry.on_exhausted"
    assert "Set tolerated_failures" in problem.text
