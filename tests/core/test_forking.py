"""What a fork takes over, and that it is never begun again. Method: runs drawn by hypothesis in the
simulated world of ``world.py``, forked at any moment; examples by hand for each rule."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.test_pausing import happen, happenings
from tests.core.walks import RunWalk, decided, plan_of
from tests.core.world import World

from treadle.engine.core import Moment, Plan, StepEnded, effects, request
from treadle.engine.core.forking import Taken
from treadle.engine.core.signals import receive
from treadle.sdk.client.fork_plan import depends_on, kept_steps
from treadle.sdk.client.fork_wanted import asked, check_input_of, is_same, retried
from treadle.sdk.definition import MapStep, SignalStep, Step, TaskStep
from treadle.sdk.errors import UserError
from treadle.sdk.messages import Failure, Fork, OutcomeKept, RunRequested, SignalReceived
from treadle.sdk.run import RunDocument


def forked(plan: Plan, run: RunDocument, start: str = "") -> RunDocument:
    """Return the first document of a fork of the run."""
    kept = kept_steps(plan, plan, run, start)
    outcomes: dict[str, Taken] = {}
    for step_id, entry in kept.items():
        assert entry.status in ("completed", "skipped", "failed")
        outcome = OutcomeKept(step=step_id, outcome=entry.status, failure=entry.failure)
        outcomes[step_id] = Taken(outcome)
    fork = Fork(run.run, start, kept=dict.fromkeys(outcomes, 5))
    event = RunRequested(workflow="w", definition=plan.hash, fork=fork)
    moment = Moment("forked", "e9", run.requested_ms + 1_000_000, 9)
    return decided(plan, request(plan, event, moment, "main", kept=outcomes), moment)


@given(
    plan=own.plans(("agent_loop", "task", "signal", "sleep")),
    before=happenings,
    start=st.none() | st.integers(0, 5),
)
def test_a_fork_begins_nothing_that_it_took_over(
    plan: Plan, before: list[Any], start: int | None
) -> None:
    world = World(plan)
    world.request()
    world.handle_all()
    for what in before:
        happen(world, what)
    run = world.document
    assert run is not None
    step = sorted(plan.steps)[start % len(plan.steps)] if start is not None else ""
    kept = kept_steps(plan, plan, run, step)
    behind = depends_on(plan, (step,))
    undone = [
        each.id
        for each in plan.definition.steps
        if each.compensate in run.steps and run.steps[each.compensate].status != "skipped"
    ]
    undone_too = depends_on(plan, undone)
    failed = depends_on(plan, (run.failed_step,))
    for step_id, entry in run.steps.items():
        if entry.status == "completed" and step_id not in (behind | undone_too | failed):
            assert step_id in kept or step_id in plan.compensations, "nothing is repeated in vain"
    assert kept.keys().isdisjoint(behind | undone_too | {run.failed_step})
    new = forked(plan, run, step)
    begun = {
        command.step
        for command in effects.of_document(plan, new)
        if isinstance(command, effects.CreateRegister)
    }
    assert begun.isdisjoint(kept)
    assert all(new.steps[step_id].status == entry.status for step_id, entry in kept.items())


def names(kept: dict[str, Any]) -> set[str]:
    return set(kept)


def walked(*steps: Step) -> RunWalk:
    return RunWalk(plan_of(*steps))


def done(walk: RunWalk, *steps: str, outcome: str = "completed") -> RunDocument:
    for step in steps:
        failure = Failure("ValueError") if outcome == "failed" else None
        walk.send(StepEnded(step, outcome, 1, failure, f"e{walk.sequence}", 50))  # type: ignore[arg-type]
    return walk.run


def work(step_id: str, *after: str, **more: Any) -> TaskStep:
    return TaskStep(id=step_id, type="work", after=after, **more)


def test_a_handled_failure_is_taken_over_and_its_handler_with_it() -> None:
    walk = walked(work("a", on_failure="h"), work("h"), work("b"), work("c", "b"))
    done(walk, "a", outcome="failed")
    done(walk, "h", "b")
    run = done(walk, "c", outcome="failed")
    assert names(kept_steps(walk.plan, walk.plan, run)) == {"a", "h", "b"}
    new = forked(walk.plan, run)
    assert {step for step, entry in new.steps.items() if entry.status == "active"} == {"c"}


def test_a_retry_keeps_what_a_quorum_let_complete_beside_the_failed_step() -> None:
    walk = walked(work("a"), work("b"), work("c", "a", "b", quorum=1), work("d", "b"))
    done(walk, "a", "c")
    run = done(walk, "b", outcome="failed")
    assert run.status == "failed"
    assert names(kept_steps(walk.plan, walk.plan, run)) == {"a", "c"}
    assert names(kept_steps(walk.plan, walk.plan, run, "b")) == {"a"}, "a fork repeats what asks it"


def test_steps_that_a_version_has_otherwise_begin_again_with_what_depends_on_them() -> None:
    walk = walked(work("a"), work("b", "a"), work("c"), work("d", "c"))
    run = done(walk, "a", "b", "c")
    new = plan_of(work("a", timeout_s=5), work("b", "a"), work("c"), work("e", "c"))
    assert names(kept_steps(walk.plan, new, run)) == {"c"}


def test_a_fork_of_a_run_in_which_everything_is_kept_completes_at_once() -> None:
    walk = walked(work("a"), work("b", "a"))
    run = done(walk, "a", "b")
    assert forked(walk.plan, run).status == "completed"


@pytest.mark.parametrize("fork", [None, Fork("source", nonce="n2"), Fork("source")])
def test_a_signal_that_another_fork_took_over_counts_for_no_run_but_its_own(
    fork: Fork | None,
) -> None:
    run = RunDocument(run="r", workflow="w", definition="v", fork=fork)
    signal = SignalReceived(name="go", id="s1", fork="n1")
    assert receive(run, signal, Moment("r", "e5", 1_000, 5)) is run
    own = receive(run, msgspec.structs.replace(signal, fork=""), Moment("r", "e6", 1_000, 6))
    assert (own.signals, own.signal_ids) == ({"go": (6,)}, ("s1",)), "its id is not taken"
    mine = msgspec.structs.replace(run, fork=Fork("source", nonce="n1"))
    assert receive(mine, signal, Moment("r", "e5", 1_000, 5)).signals == {"go": (5,)}


def test_requests_that_do_not_say_what_they_are_count_as_before() -> None:
    def requested(**fork: Any) -> RunRequested:
        return RunRequested(workflow="w", definition="v", fork=Fork("source", **fork))

    wanted = requested(is_retry=True, nonce="n1")
    assert is_same(requested(is_retry=True, nonce="n2"), wanted)
    assert not is_same(requested(nonce="n2"), wanted)
    assert not is_same(requested(is_retry=True, has_input=True, nonce="n2"), wanted)
    assert is_same(requested(), wanted), "stored by an earlier version"
    assert not is_same(requested(step="a"), wanted)
    assert not is_same(RunRequested(workflow="w", definition="v"), wanted)


@pytest.mark.parametrize("version", ["newest", "", None])
def test_a_version_that_there_is_not_is_refused(version: Any) -> None:
    with pytest.raises(UserError, match="is none of same, latest"):
        retried(None, version)
    with pytest.raises(UserError, match="is none of same, latest"):
        asked(None, None, 1, None, version)


@pytest.mark.parametrize("iteration", ["1", 1.0, True])
def test_an_iteration_that_is_no_number_is_refused(iteration: Any) -> None:
    with pytest.raises(UserError, match=rf"iteration {iteration!r} is no number.*Give an int"):
        asked("loop", iteration, 1, None, "same")


def test_a_step_that_has_no_input_of_its_own_is_refused_one_with_the_reason() -> None:
    check_input_of(work("a"))
    with pytest.raises(UserError, match=r"'m' is a map .* no list of its own"):
        check_input_of(MapStep(id="m", type="work"))
    with pytest.raises(UserError, match="'g' is not executed by a worker"):
        check_input_of(SignalStep(id="g", signal="go"))
    with pytest.raises(UserError, match="step"):
        asked("", None, msgspec.UNSET, None, "same")
