"""Runs that start runs: nobody is forgotten and nobody is left over, whoever dies and where.
Method: engines over a simulated log of several runs, stopped at any point; each rule by example."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.family import ROOT, Engine, Family, plan_of
from tests.core.walks import RunWalk
from tests.core.walks import plan_of as walk_plan

from treadle.engine.core import ChildStarted, Moment, Plan, children, effects, request
from treadle.engine.core.apply import apply
from treadle.sdk.children import ParentRun, child_id
from treadle.sdk.definition import Retry, SignalStep, SubWorkflowStep
from treadle.sdk.ids import is_id
from treadle.sdk.messages import (
    CancelRequested,
    ChildEnded,
    Failure,
    LaneGranted,
    ParentEnded,
    PauseRequested,
    ResumeRequested,
    RunRequested,
    SignalReceived,
    TimerFired,
)
from treadle.sdk.run import RunDocument, child_of
from treadle.sdk.spending import Spent

FLAT = Retry(backoff="fixed", delay_s=1, jitter=0, max_attempts=3)


def sub(step_id: str = "sub", *after: str, **fields: Any) -> SubWorkflowStep:
    return SubWorkflowStep(id=step_id, after=after, workflow="child", **fields)


def signal(step_id: str, *after: str, **fields: Any) -> SignalStep:
    return SignalStep(id=step_id, after=after, signal=step_id, **fields)


LEAF = plan_of("leaf", signal("go"))
CHILD = plan_of(
    "child",
    signal("first", compensate="undo-first"),
    SubWorkflowStep(id="below", workflow="leaf", after=("first",), retry=FLAT),
    signal("undo-first"),
)


@st.composite
def roots(draw: st.DrawFn) -> Plan:
    """Workflows that start others: side by side, one after another, undone and handled."""
    retry = draw(st.sampled_from((Retry(), FLAT)))
    one = sub("one", retry=retry, compensate=draw(st.sampled_from(("", "undo"))))
    after = draw(st.sampled_from(((), ("one",))))
    other = sub("two", *after, detached=draw(st.booleans()), retry=Retry())
    handled = draw(st.booleans())
    steps: list[Any] = [one, other, signal("own", *draw(st.sampled_from(((), ("two",)))))]
    if one.compensate:
        steps.append(SubWorkflowStep(id="undo", workflow="leaf"))
    if handled:
        steps[1] = sub("two", *after, detached=other.detached, on_failure="sorry")
        steps.append(signal("sorry"))
    return plan_of("root", *steps)


ACTS = st.one_of(
    st.tuples(st.just("take"), st.integers(0, 5), st.integers(1, 12)),
    st.tuples(st.just("take"), st.integers(0, 5), st.integers(1, 12)),
    st.tuples(st.just("go on"), st.integers(0, 3), st.integers(1, 15)),
    st.tuples(st.just("handle"), st.integers(0, 5)),
    st.tuples(st.just("handle"), st.integers(0, 5)),
    st.tuples(st.just("handle all")),
    st.tuples(st.just("again"), st.integers(0, 30)),
    st.tuples(st.just("signal"), st.integers(0, 5)),
    st.tuples(st.just("signal"), st.integers(0, 5)),
    st.tuples(st.just("cancel"), st.integers(0, 12)),
    st.tuples(st.just("time")),
)


@given(root=roots(), acts=st.lists(ACTS, min_size=5, max_size=50))
def test_whatever_engines_do_and_wherever_they_die_nobody_is_forgotten(
    root: Plan, acts: list[tuple[Any, ...]]
) -> None:
    family = Family(root, CHILD, LEAF)
    engines: list[Engine] = []

    def goes_on(engine: Engine, points: int) -> None:
        for _ in range(points):
            if next(engine, engine) is engine:
                return

    for act, *args in acts:
        runs = list(family.documents.values())
        events = list(family.unacked)
        match act:
            case "take" if events:
                engines.append(family.handle(events[-1 - args[0] % len(events)]))
                goes_on(engines[-1], args[1])
            case "go on" if engines:
                goes_on(engines[-1 - args[0] % len(engines)], args[1])
            case "handle" if events:
                goes_on(family.handle(events[-1 - args[0] % len(events)]), 1_000)
            case "handle all":
                family.handle_all()
                family.check_rest()
            case "again":
                goes_on(family.handle(1 + args[0] % len(family.log)), 1_000)
            case "signal" if runs:
                family.signal(runs[args[0] % len(runs)])
            case "cancel" if runs:
                # Of most lives nobody cancels the root.
                family.store(runs[-1 - args[0] % len(runs)].run, CancelRequested())
            case "time":
                family.now_ms += 1_000
                family.fire_timers()
            case _:
                pass

    for _ in range(40):
        family.handle_all()
        family.check_rest()
        # Engines that were paused wake up and do what they had in mind.
        for engine in engines:
            goes_on(engine, 1_000)
        family.handle_all()
        family.check_rest()
        family.now_ms += 1_000
        family.fire_timers()
        for run in list(family.documents.values()):
            if not run.is_terminal:
                family.signal(run)
    family.handle_all()
    family.check_end()
    assert family.documents[ROOT].is_terminal


# ------------------------------------------------------------------ ids


@given(
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", fullmatch=True),
    st.integers(1, 2**53),
    st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", fullmatch=True),
    st.integers(1, 1_000),
)
def test_the_id_of_a_child_is_an_id_and_belongs_to_one_start(
    run: str, requested: int, step: str, attempt: int
) -> None:
    child = child_id(run, requested, step, attempt)
    assert is_id(child)
    assert child == child_id(run, requested, step, attempt)
    others = [
        child_id(f"{run}x", requested, step, attempt),
        child_id(run, requested + 1, step, attempt),
        child_id(run, requested, f"{step}x", attempt),
        child_id(run, requested, step, attempt + 1),
    ]
    assert len({child, *others}) == 5


# ------------------------------------------------------------------ what ends make of a step


def ended(walk: RunWalk, outcome: str = "completed", step: str = "sub", **fields: Any) -> Any:
    entry = walk.run.steps[step]
    event = ChildEnded(
        step=step,
        child=child_of(walk.run, step),
        workflow="child",
        attempt=fields.pop("attempt", entry.attempt),
        outcome=outcome,  # type: ignore[arg-type]
        **fields,
    )
    return walk.send(event)


def failed(type: str = "ValueError", **fields: Any) -> dict[str, Any]:
    return {"failure": Failure(type, "it broke", **fields), "failed_step": "inner"}


def test_a_completed_child_completes_the_step_and_counts_what_it_used() -> None:
    walk = RunWalk(walk_plan(sub(), signal("after", "sub")))
    run = ended(walk, spent=Spent(tool_calls=3))
    entry = run.steps["sub"]
    assert (entry.status, entry.event, entry.spent.tool_calls) == ("completed", "e2", 3)
    assert run.steps["after"].status == "active"


def test_a_failed_child_is_started_again_when_it_is_due_and_not_before() -> None:
    walk = RunWalk(walk_plan(sub(retry=FLAT)))
    first = child_of(walk.run, "sub")
    run = ended(walk, "failed", **failed(), spent=Spent(tool_calls=2))
    assert (run.status, run.steps["sub"].attempt) == ("running", 2)
    (timer,) = effects.of_document(walk.plan, run)
    assert isinstance(timer, effects.SetTimer)
    assert timer.due_ms == walk.now_ms + 1_000
    assert walk.send(TimerFired(kind="wake", step="sub")) is run
    run = walk.send(TimerFired(kind="wake", step="sub"), after_ms=1_000)
    assert effects.of_document(walk.plan, run) == (effects.StartChild("sub"),)
    assert child_of(run, "sub") != first
    run = ended(walk, spent=Spent(tool_calls=5))
    assert (run.status, run.steps["sub"].spent.tool_calls) == ("completed", 7)


@pytest.mark.parametrize(
    ("retry", "failure"),
    [
        (FLAT, failed(retryable=False)),
        (Retry(max_attempts=3, non_retryable=("ValueError",)), failed()),
        (Retry(max_attempts=3, non_retryable=("child_failed",)), failed()),
        (Retry(), failed()),
    ],
    ids=["for good", "its own name", "the step's name", "no attempts"],
)
def test_a_failure_for_good_is_the_steps_with_its_cause(
    retry: Retry, failure: dict[str, Any]
) -> None:
    walk = RunWalk(walk_plan(sub(retry=retry)))
    child = child_of(walk.run, "sub")
    run = ended(walk, "failed", **failure)
    assert run.failure is not None
    assert (run.status, run.failed_step, run.failure.type) == ("failed", "sub", "child_failed")
    text = f"run {child!r} of workflow 'child' failed in step 'inner': ValueError: it broke"
    assert run.failure.message == text


def test_a_child_that_was_cancelled_is_not_tried_again() -> None:
    walk = RunWalk(walk_plan(sub(retry=FLAT)))
    run = ended(walk, "cancelled", failure=Failure("cancelled", "enough", retryable=False))
    assert run.failure is not None
    assert run.failure.type == "child_cancelled"
    assert run.failure.message.endswith("was cancelled: enough")


def test_a_child_that_took_too_long_is_a_timeout_that_may_be_tried_again() -> None:
    walk = RunWalk(walk_plan(sub(retry=FLAT)))
    late = {"failure": Failure("run_timeout", "late", retryable=False)}
    assert ended(walk, "failed", **late).steps["sub"].attempt == 2
    walk.send(TimerFired(kind="wake", step="sub"), after_ms=1_000)
    inner = failed("run_timeout", retryable=False)
    run = ended(walk, "failed", **inner)
    assert run.failure is not None
    assert run.failure.type == "child_failed"


def test_what_comes_of_an_earlier_or_another_run_changes_nothing() -> None:
    walk = RunWalk(walk_plan(sub(retry=FLAT)))
    run = walk.run
    assert walk.send(ChildEnded(step="sub", child="other", outcome="completed")) is run
    assert walk.send(ChildEnded(step="gone", child="other", outcome="completed")) is run
    assert ended(walk, attempt=2) is run
    again = ended(walk, "failed", **failed())
    assert ended(walk, attempt=1) is again
    assert ended(walk) is again, "the next one is not started yet"


def test_a_detached_step_is_over_once_its_run_is_requested() -> None:
    walk = RunWalk(walk_plan(sub(detached=True)))
    assert effects.of_document(walk.plan, walk.run) == (effects.StartChild("sub"),)
    assert ended(walk) is walk.trace[0], "nobody waits for its end"
    run = walk.send(ChildStarted("sub", 1))
    assert run.status == "completed"
    assert effects.of_document(walk.plan, run) == ()


def test_a_paused_run_starts_no_other_before_it_is_resumed() -> None:
    walk = RunWalk(walk_plan(signal("a"), sub("sub", "a")))
    walk.signal("a")
    run = walk.send(PauseRequested())
    assert run.steps["sub"].status == "active", "it began before anybody asked for its child"
    assert effects.StartChild("sub") not in effects.of_document(walk.plan, run)
    run = walk.send(ResumeRequested())
    assert effects.StartChild("sub") in effects.of_document(walk.plan, run)


def test_a_run_that_cannot_be_requested_fails_its_step_whatever_may_be_retried() -> None:
    walk = RunWalk(walk_plan(sub(retry=FLAT)))
    run = walk.send(ChildStarted("sub", 1, Failure("unknown_workflow", "gone", retryable=False)))
    assert run.failure is not None
    assert (run.status, run.failure.type) == ("failed", "unknown_workflow")


# ------------------------------------------------------------------ parents and their ends


def test_a_stopped_step_tells_its_run_and_a_detached_one_does_not() -> None:
    walk = RunWalk(walk_plan(sub(), sub("away", detached=True)))
    run = walk.send(CancelRequested())
    (told,) = effects.of_document(walk.plan, run)
    assert isinstance(told, effects.CancelChild)
    assert (told.step, told.attempt) == ("sub", 1)
    assert effects.of_document(None, run)[0] == told, "also without its definition"


def child_run(plan: Plan, **link: Any) -> RunDocument:
    parent = ParentRun(run="p", step="sub", root="p", **link)
    event = RunRequested(workflow="w", definition=plan.hash, parent=parent)
    return request(plan, event, Moment("c", "e1", 1_000, 1), "main")


def test_a_run_is_cancelled_by_its_parents_end_once() -> None:
    plan = walk_plan(signal("a", compensate="undo"), signal("b"), signal("undo"))
    run = child_run(plan)
    run = apply(plan, run, SignalReceived(name="a"), Moment("c", "e2", 2_000, 2))
    told = apply(plan, run, ParentEnded(reason="gone"), Moment("c", "e3", 3_000, 3))
    assert (told.undoing, told.failure) == (
        "cancelled",
        Failure("cancelled", "gone", retryable=False),
    )
    assert apply(plan, told, ParentEnded(), Moment("c", "e4", 4_000, 4)) is told
    over = apply(plan, told, SignalReceived(name="undo"), Moment("c", "e5", 5_000, 5))
    assert over.status == "cancelled"
    assert effects.of_document(plan, over) == (effects.TellParent(),)


def test_a_detached_run_or_one_without_a_parent_hears_nothing_of_it() -> None:
    plan = walk_plan(signal("a"))
    moment = Moment("c", "e3", 3_000, 3)
    detached = child_run(plan, detached=True)
    assert apply(plan, detached, ParentEnded(), moment) is detached
    walk = RunWalk(plan)
    assert walk.send(ParentEnded()) is walk.trace[0]


@pytest.mark.parametrize(
    ("own_s", "given_ms", "life_ms"),
    [(0, 500, 500), (2, 500, 500), (2, 0, 2_000), (1, 5_000, 1_000)],
)
def test_the_shorter_life_counts(own_s: float, given_ms: int, life_ms: int) -> None:
    plan = walk_plan(signal("a"), timeout_s=own_s)
    run = child_run(plan, timeout_ms=given_ms)
    assert run.deadline_ms == 1_000 + life_ms
    late = apply(plan, run, TimerFired(kind="run_deadline"), Moment("c", "t2", 1_000 + life_ms, 2))
    assert late.failure is not None
    assert f"{life_ms / 1000:g} s after its request" in late.failure.message


def test_the_time_that_a_parent_gives_counts_while_the_child_is_queued() -> None:
    plan = walk_plan(signal("a"), timeout_s=1)
    link = child_run(plan, timeout_ms=5_000).parent
    event = RunRequested(workflow="w", definition="h", lane="lane", parent=link)
    run = request(plan, event, Moment("c", "e1", 1_000, 1), "main", is_queued=True)
    fired = TimerFired(kind="run_deadline", due_ms=6_000)
    assert effects.SetTimer("run", 6_000, fired) in effects.of_document(plan, run)
    assert apply(plan, run, fired, Moment("c", "t2", 5_999, 2)) is run
    late = apply(plan, run, fired, Moment("c", "t2", 6_000, 2))
    assert (late.status, late.failed_step) == ("failed", "")
    assert late.failure is not None and "5 s after its request" in late.failure.message
    assert {effects.ClearTimers(), effects.SettleLane()} <= set(effects.of_document(plan, late))
    granted = LaneGranted(lane="lane", request=1)
    begun = apply(plan, run, granted, Moment("c", "e2", 5_500, 2))
    assert begun.deadline_ms == 6_000, "and not five seconds from its start"


def test_a_parent_says_whether_it_waits_only_if_it_can_know() -> None:
    walk = RunWalk(walk_plan(sub(retry=FLAT)))
    step = walk.plan.steps["sub"]
    assert isinstance(step, SubWorkflowStep)
    link, child = children.link(walk.run, step), child_of(walk.run, "sub")
    old = RunDocument(run=walk.run.run, workflow="w", definition="h", requested=1)
    assert children.awaits(walk.run, child, link) is True
    assert children.awaits(old, child, link) is None
    assert children.awaits(walk.run, "another", link) is False
    again = ended(walk, "failed", **failed())
    assert children.awaits(again, child, link) is False
    later = ParentRun(run=link.run, step="sub", root=link.root, attempt=2)
    second = child_of(again, "sub", 2)
    assert children.awaits(walk.trace[0], second, later) is None
    assert children.awaits(again, second, later) is True


def test_a_link_knows_how_deep_it_is_and_what_is_at_the_top() -> None:
    plan = walk_plan(sub())
    below = child_run(plan, depth=3)
    step = plan.steps["sub"]
    assert isinstance(step, SubWorkflowStep)
    link = children.link(below, step)
    assert (link.run, link.depth, link.root) == ("c", 4, "p")
