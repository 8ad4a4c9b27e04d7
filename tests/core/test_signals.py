"""Every signal counts once, whoever hands it over how often, and completes one step.
Method: signals sent, repeated and reordered against a model of twenty lines; examples."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.walks import RunWalk, plan_of

from treadle.engine.core import Plan, StepEnded, forget_applied
from treadle.engine.core.signals import APPLIED_SOFT_MAX, SIGNAL_IDS_MAX, SIGNALS_WAITING_MAX
from treadle.sdk.definition import SignalStep, Step, TaskStep
from treadle.sdk.limits import STEPS_MAX
from treadle.sdk.run import StepEntry


def wait(step_id: str, *after: str, signal: str = "go") -> SignalStep:
    return SignalStep(id=step_id, signal=signal, after=after)


BUSY = TaskStep(id="busy", type="work")
"""A step beside the others, so that the run goes on."""


@given(
    st.lists(
        st.tuples(
            st.integers(2, 12), st.sampled_from(own.SIGNALS), st.sampled_from(("", "s1", "s2"))
        ),
        max_size=25,
    )
)
def test_every_signal_counts_once_by_its_event_and_by_its_senders_id(
    sent: list[tuple[int, str, str]],
) -> None:
    walk = RunWalk(plan_of(BUSY))
    events: set[int] = set()
    ids: set[str] = set()
    waiting: dict[str, list[int]] = {}
    for sequence, name, sender_id in sent:
        before, after = walk.run, walk.signal(name, id=sender_id, sequence=sequence)
        if sequence in events or sender_id in ids:
            assert after is before
            continue
        events.add(sequence)
        ids |= {sender_id} - {""}
        waiting.setdefault(name, []).append(sequence)
        assert after.signals_received == len(events)
        assert after.signals == {name: tuple(kept) for name, kept in waiting.items()}


@given(own.plans(), st.lists(st.sampled_from((*own.SIGNALS, "unheard", "work")), max_size=15))
def test_each_signal_completes_one_step_and_none_is_lost(plan: Plan, sent: list[str]) -> None:
    walk = RunWalk(plan)
    count = 0
    for name in sent:
        if walk.run.is_terminal:
            break
        if name == "work":
            active = [i for i in walk.run.steps if walk.status(i) == "active"]
            tasks = [i for i in active if not isinstance(plan.steps[i], SignalStep)]
            if tasks:
                walk.send(StepEnded(tasks[0], "completed", 1))
            continue
        walk.signal(name)
        count += 1
    consumed = [
        entry.event
        for step_id, entry in walk.run.steps.items()
        if isinstance(plan.steps[step_id], SignalStep) and entry.status == "completed"
    ]
    waiting = [f"e{s}" for kept in walk.run.signals.values() for s in kept]
    assert walk.run.signals_received == count
    assert len(set(consumed + waiting)) == len(consumed) + len(waiting) == count


def test_a_signal_completes_the_step_that_waits_for_it() -> None:
    walk = RunWalk(plan_of(wait("a"), TaskStep(id="b", type="work", after=("a",))))
    walk.now_ms += 30
    run = walk.signal("go")
    assert run.steps["a"] == StepEntry(
        status="completed", started_ms=own.EPOCH_MS, ended_ms=own.EPOCH_MS + 30, event="e2"
    )
    assert walk.status("b") == "active"
    assert run.signals == {}
    assert run.applied == ("e2",)


def test_a_signal_of_another_name_is_kept_and_completes_nothing() -> None:
    walk = RunWalk(plan_of(wait("a")))
    run = walk.signal("stop")
    assert (walk.status("a"), run.signals) == ("active", {"stop": (2,)})


def test_two_waits_for_one_name_need_two_signals() -> None:
    walk = RunWalk(plan_of(wait("a"), wait("b")))
    walk.signal("go")
    assert (walk.status("a"), walk.status("b")) == ("completed", "active")
    walk.signal("go")
    assert (walk.status("b"), walk.run.status) == ("completed", "completed")


def test_two_waits_in_a_row_need_two_signals() -> None:
    walk = RunWalk(plan_of(wait("a"), wait("b", "a")))
    walk.signal("go")
    assert (walk.status("a"), walk.status("b")) == ("completed", "active")
    assert walk.signal("go").status == "completed"


def test_early_signals_are_kept_and_the_oldest_is_consumed_first() -> None:
    walk = RunWalk(plan_of(BUSY, wait("a", "busy"), wait("b", "a"), wait("c", "b")))
    walk.signal("go")
    walk.signal("go")
    assert walk.run.signals == {"go": (2, 3)}
    run = walk.send(StepEnded("busy", "completed", 1))
    assert (run.steps["a"].event, run.steps["b"].event) == ("e2", "e3")
    assert (walk.status("c"), run.signals) == ("active", {})
    assert run.steps["c"].event == "e4"


def test_early_signals_may_complete_the_run() -> None:
    walk = RunWalk(plan_of(BUSY, wait("a", "busy"), wait("b", "busy"), wait("c", "a", "b")))
    for _ in range(3):
        walk.signal("go")
    run = walk.send(StepEnded("busy", "completed", 1))
    assert (run.status, len(run.steps)) == ("completed", 4)
    assert [run.steps[i].event for i in "abc"] == ["e2", "e3", "e4"]


def test_steps_that_start_together_are_served_before_those_that_follow_them() -> None:
    walk = RunWalk(plan_of(BUSY, wait("a", "busy"), wait("c", "a"), wait("b", "busy")))
    walk.signal("go")
    walk.signal("go")
    walk.send(StepEnded("busy", "completed", 1))
    assert (walk.status("a"), walk.status("b"), walk.status("c")) == (
        "completed",
        "completed",
        "active",
    )


def test_the_same_id_of_a_sender_is_one_signal_also_for_another_name() -> None:
    walk = RunWalk(plan_of(wait("a"), wait("b")))
    once = walk.signal("go", id="s1")
    assert walk.signal("go", id="s1") is once
    assert once.signal_ids == ("s1",)
    assert walk.signal("go", id="s2").status == "completed"


def test_a_signal_after_the_end_counts_no_more() -> None:
    walk = RunWalk(plan_of(wait("a")))
    end = walk.signal("go")
    assert walk.signal("go") is end


# ------------------------------------------------------------------ limits


def test_a_row_of_waits_as_long_as_a_workflow_may_be_is_no_recursion() -> None:
    steps: list[Step] = [BUSY, wait("s1", "busy")]
    steps += [wait(f"s{i}", f"s{i - 1}") for i in range(2, STEPS_MAX)]
    walk = RunWalk(plan_of(*steps))
    for _ in range(STEPS_MAX - 1):
        walk.signal("go")
    assert walk.send(StepEnded("busy", "completed", 1)).status == "completed"


def test_kept_signals_are_bounded_over_all_names_and_the_oldest_goes() -> None:
    walk = RunWalk(plan_of(BUSY))
    for i in range(SIGNALS_WAITING_MAX):
        walk.signal(f"name-{2 - i % 3}")
    kept = [s for name in walk.run.signals.values() for s in name]
    assert sorted(kept) == list(range(2, SIGNALS_WAITING_MAX + 2))
    run = walk.signal("new")
    kept = [s for name in run.signals.values() for s in name]
    assert sorted(kept) == list(range(3, SIGNALS_WAITING_MAX + 3))
    assert run.signals_received == SIGNALS_WAITING_MAX + 1


def test_ids_of_senders_are_remembered_for_the_newest_signals() -> None:
    walk = RunWalk(plan_of(BUSY))
    for i in range(SIGNAL_IDS_MAX + 1):
        walk.signal("go", id=f"s{i}")
    assert walk.run.signal_ids == tuple(f"s{i}" for i in range(1, SIGNAL_IDS_MAX + 1))
    assert walk.signal("go", id="s1") is walk.trace[-2]


# ------------------------------------------------------------------ applied events


def test_applied_events_are_forgotten_below_the_floor_and_still_count_once() -> None:
    walk = RunWalk(plan_of(BUSY))
    for _ in range(4):
        walk.signal("go")
    assert walk.run.applied == ("e2", "e3", "e4", "e5")
    walk.run = run = forget_applied(walk.run, 4)
    assert (run.applied, run.applied_below) == (("e4", "e5"), 4)
    for sequence in (2, 3, 4, 5):
        assert walk.signal("go", sequence=sequence) is run, "delivered once more, by a new consumer"
    assert walk.signal("go", sequence=6).signals_received == 5


def test_nothing_to_forget_changes_nothing() -> None:
    walk = RunWalk(plan_of(BUSY))
    run = walk.signal("go")
    assert forget_applied(run, 2) is run
    assert forget_applied(run, 0) is run


@given(st.permutations(range(2, 10)), st.integers(0, 12))
def test_two_engines_may_apply_signals_in_any_order_and_forget_at_any_time(
    order: list[int], below: int
) -> None:
    walk = RunWalk(plan_of(BUSY))
    # Below an ack floor everything was applied: the engine forgets when that is so.
    for sequence in order:
        walk.signal("go", sequence=sequence)
    walk.run = forget_applied(walk.run, below)
    for sequence in order:
        walk.signal("go", sequence=sequence)
    assert walk.run.signals_received == len(order)


def test_a_run_that_gets_few_signals_never_has_to_forget() -> None:
    assert APPLIED_SOFT_MAX > SIGNAL_IDS_MAX, "ids of one sender's retries are known longer"
