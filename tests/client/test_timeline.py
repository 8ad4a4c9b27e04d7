"""What a run did and when, and how two runs or two iterations differ.

Pure: events and a view written by hand in, spans and rows out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.client.stage import chain, parked, raw, task

from treadle.sdk import UserError, Workflow
from treadle.sdk.client import RunView, Span, Timeline
from treadle.sdk.client.origin import ForkedFrom
from treadle.sdk.client.steps import StepOutput
from treadle.sdk.client.timeline.diffing import diff_iterations, diff_runs, with_outputs
from treadle.sdk.client.timeline.folding import Happened, timeline_of
from treadle.sdk.client.timeline.span import MapCounts
from treadle.sdk.client.view import Held, of_document
from treadle.sdk.messages import (
    Event,
    Failure,
    LaneGranted,
    MessageSent,
    PauseRequested,
    ResumeRequested,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    TaskDue,
    TaskLost,
)
from treadle.sdk.run import MapState, RunDocument, StepEntry
from treadle.sdk.spending import Spent

LOOP: dict[str, Any] = {"step": "loop", "type": "think"}
RUNNING = RunDocument(
    run="r1",
    workflow="flow",
    definition="v",
    requested_ms=1_000,
    steps={"loop": StepEntry("active", 0, 1_500)},
)
ENDED = msgspec.structs.replace(
    RUNNING,
    status="completed",
    ended_ms=9_000,
    steps={"loop": StepEntry("completed", 1, 1_500, 9_000)},
)


def view(document: RunDocument = RUNNING, **held: Held) -> RunView:
    return of_document(document, chain().build(), held, None)


def fold(
    *events: tuple[int, Event], of: RunView | None = None, delay_ms: int = 0
) -> list[tuple[Any, ...]]:
    happened = [Happened(n, at_ms, event) for n, (at_ms, event) in enumerate(events, 1)]
    spans = timeline_of(of or view(), happened, {"loop": delay_ms}).spans
    return [(s.kind, s.iteration, s.attempt, s.begin_ms, s.end_ms, s.outcome) for s in spans]


def continued(iteration: int, token: int, **fields: Any) -> StepContinued:
    return StepContinued(**LOOP, iteration=iteration, token=token, head=token, **fields)


def completed(iteration: int, token: int, **fields: Any) -> StepCompleted:
    return StepCompleted(**LOOP, iteration=iteration, token=token, head=token, **fields)


def test_iterations_follow_each_other_from_the_start_of_the_step() -> None:
    assert fold(
        (2_000, continued(0, 1)), (3_000, continued(1, 2)), (9_000, completed(2, 3)), of=view(ENDED)
    ) == [
        ("attempt", 0, 1, 1_500, 2_000, "continued"),
        ("attempt", 1, 1, 2_000, 3_000, "continued"),
        ("attempt", 2, 1, 3_000, 9_000, "completed"),
    ]


def test_what_is_under_way_lasts() -> None:
    live = Held(task(loop=True, iteration=1, attempt=1), 2_000)
    assert fold((2_000, continued(0, 1)), of=view(loop=live))[1:] == [
        ("attempt", 1, 1, 2_000, 0, "")
    ]
    bound = Held(parked("max_iterations", iteration=1), 2_000)
    document = msgspec.structs.replace(RUNNING, steps={"loop": StepEntry("parked", 1, 1_500)})
    spans = fold((2_000, continued(0, 1)), of=view(document, loop=bound))
    assert spans[1:] == [("parked", 1, 0, 2_000, 0, "")]


def test_failed_and_lost_attempts_are_spans_of_their_own_with_the_pause_behind() -> None:
    failed = StepFailed(**LOOP, token=1, head=1, failure=Failure("Boom"))
    due = TaskDue(**LOOP, token=2, attempt=2)
    lost = TaskLost(**LOOP, token=3, attempt=2, reason="gone")
    last = completed(0, 4, attempt=3)
    spans = fold((2_000, failed), (2_700, due), (4_000, lost), (9_000, last), of=view(ENDED))
    assert spans == [
        ("attempt", 0, 1, 1_500, 2_000, "failed"),
        ("pause", 0, 0, 2_000, 2_700, ""),
        ("attempt", 0, 2, 2_700, 4_000, "lost"),
        ("attempt", 0, 3, 4_000, 9_000, "completed"),
    ]


def test_repeated_and_late_verdicts_are_left_out() -> None:
    first, late = continued(0, 5), continued(0, 4)
    spans = fold((2_000, first), (2_100, first), (2_200, late), (9_000, completed(1, 6)))
    assert [span[:3] + span[5:] for span in spans] == [
        ("attempt", 0, 1, "continued"),
        ("attempt", 1, 1, "completed"),
    ]


def test_a_pause_that_no_event_ends_ends_when_it_was_to_end() -> None:
    spans = fold((2_000, continued(0, 1)), (9_000, completed(1, 2)), of=view(ENDED), delay_ms=4_000)
    assert spans[1:] == [
        ("pause", 1, 0, 2_000, 6_000, "its time"),
        ("attempt", 1, 1, 6_000, 9_000, "completed"),
    ]
    spans = fold((2_000, continued(0, 1, delay_ms=0)), (9_000, completed(1, 2)), delay_ms=4_000)
    assert [span[0] for span in spans] == ["attempt", "attempt"], "the verdict's own delay counts"


def test_a_wait_ends_with_a_message_a_resume_or_its_time() -> None:
    def waiting(token: int, **fields: Any) -> StepWaiting:
        return StepWaiting(**LOOP, token=token, head=token, iteration=token - 1, **fields)

    word = MessageSent(step="loop", id="m1")
    spans = fold(
        (2_000, waiting(1)),
        (3_000, word),
        (4_000, waiting(2, seen=2)),
        (5_000, ResumeRequested(step="loop")),
        (6_000, waiting(3, seen=2, due_ms=7_000)),
        (9_000, completed(3, 4)),
        of=view(ENDED),
    )
    assert [span for span in spans if span[0] == "wait"] == [
        ("wait", 1, 0, 2_000, 3_000, "steer m1"),
        ("wait", 2, 0, 4_000, 5_000, "resumed"),
        ("wait", 3, 0, 6_000, 7_000, "its time"),
    ]
    spans = fold((1_900, word), (2_000, waiting(1)), (3_000, completed(1, 2)))
    assert [span[0] for span in spans] == ["attempt", "attempt"], "it had not seen that message"


def test_a_resumed_bound_a_lane_and_a_signal_have_their_time() -> None:
    spans = fold((2_000, continued(0, 1)), (5_000, ResumeRequested()), (9_000, completed(1, 2)))
    assert spans[1:3] == [
        ("parked", 1, 0, 2_000, 5_000, "resumed"),
        ("attempt", 1, 1, 5_000, 9_000, "completed"),
    ]
    assert fold((1_400, LaneGranted(lane="chat", request=1)))[0] == (
        *("lane", 0, 0, 1_000, 1_400, ""),
    )
    queued = msgspec.structs.replace(RUNNING, status="queued", lane="chat", steps={})
    assert fold(of=view(queued)) == [("lane", 0, 0, 1_000, 0, "")]
    flow = Workflow("flow")
    flow.wait_for_signal("go", signal="go")
    for event, outcome in (("e7", "completed"), ("t7", "timed out")):
        steps = {"go": StepEntry("completed", 1, 1_200, 4_000, event)}
        signalled = msgspec.structs.replace(RUNNING, steps=steps)
        assert fold(of=of_document(signalled, flow.build(), {}, None)) == [
            ("signal", 0, 0, 1_200, 4_000, outcome)
        ]


def test_a_pause_of_the_run_is_a_span_until_it_is_resumed_or_the_run_has_ended() -> None:
    first, second = PauseRequested(reason="night"), PauseRequested(reason="again")
    one_step = ResumeRequested(step="loop")
    happened = [(2_000, first), (2_500, second), (3_000, one_step), (4_000, ResumeRequested())]
    assert [span for span in fold(*happened) if span[0] == "paused"] == [
        ("paused", 0, 0, 2_000, 4_000, "resumed")
    ]
    assert ("paused", 0, 0, 2_000, 0, "") in fold((2_000, first))
    assert ("paused", 0, 0, 2_000, 9_000, "completed") in fold((2_000, first), of=view(ENDED))
    assert "paused" not in [span[0] for span in fold((9_500, first), of=view(ENDED))]
    spans = timeline_of(view(), [Happened(1, 2_000, first)], {}).spans
    assert [span.detail for span in spans if span.kind == "paused"] == ["night"]


def test_a_map_is_one_span_and_its_chunks_are_told_when_they_are_wanted() -> None:
    flow = Workflow("flow")
    flow.map("items", "work", chunk=2)

    def settled(chunk: int, at: int, failure: Failure | None = None, attempt: int = 1) -> Event:
        place: dict[str, Any] = {"step": f"items={chunk}", "type": "work", "attempt": attempt}
        place |= {"token": at, "head": at}
        return StepFailed(**place, failure=failure) if failure else StepCompleted(**place)

    state = MapState(5, 3, 2, 99, next=3, done=5)
    document = msgspec.structs.replace(
        ENDED, steps={"items": StepEntry("completed", 1, 1_500, 9_000)}, maps={"items": state}
    )
    events = [
        settled(0, 1),
        settled(1, 2, Failure("Boom")),
        settled(1, 3, attempt=2),
        settled(2, 4),
    ]
    happened = [Happened(n, 2_000 + n, event) for n, event in enumerate(events, 1)]
    whole = timeline_of(of_document(document, flow.build(), {}, None), happened, {})
    assert [span.kind for span in whole.spans] == [
        "attempt",
        "attempt",
        "attempt",
        "map",
        "attempt",
    ]
    (span,) = whole.without_chunks().spans
    assert (span.begin_ms, span.end_ms, span.outcome) == (1_500, 9_000, "completed")
    assert span.detail == "5 of 5 items; 3 chunks, 1 tried again"


# ---------------------------------------------------------------- differences


def attempt(iteration: int, outcome: str = "continued", **fields: Any) -> Span:
    number: dict[str, Any] = {
        "attempt": 1,
        "begin_ms": 1_000,
        "end_ms": 2_000,
        "output": raw({"a": 1, "b": 2}),
    }
    number |= {"step": "loop", **fields}
    return Span(kind="attempt", iteration=iteration, outcome=outcome, **number)


def line(run: str, *spans: Span, **fields: Any) -> Timeline:
    facts: dict[str, Any] = {
        "workflow": "flow",
        "status": "",
        "requested_ms": 0,
        "loops": ("loop",),
    }
    facts |= {"steps": ("first", "loop"), **fields}
    return Timeline(run=run, spans=spans, **facts)


def test_runs_that_did_the_same_are_the_same_however_long_it_took() -> None:
    written_otherwise = msgspec.Raw(b'{"b": 2, "a": 1}')
    other = attempt(0, end_ms=7_000, output=written_otherwise)
    found = diff_runs(line("r1", attempt(0)), line("r2", other))
    assert found.is_same
    (row,) = found.rows
    assert row.left is not None and row.right is not None
    assert (row.left.took_ms, row.right.took_ms) == (1_000, 6_000)


def test_each_difference_is_named() -> None:
    boom = attempt(0, "failed", failure=Failure("Boom"))
    lost = attempt(0, "lost", detail="gone", attempt=2)
    changed = {"output": raw(3), "spent": Spent(tool_calls=2), "attempt": 3}
    again = attempt(0, "completed", **changed)
    found = diff_runs(line("r1", attempt(0)), line("r2", boom, lost, again, attempt(1)))
    first, second = found.rows
    assert first.changed == ("outcome", "attempts", "output", "spent", "failures")
    assert first.right is not None
    assert (first.right.attempts, first.right.took_ms) == (3, 3_000)
    assert first.right.failures == ("Boom", "lost: gone")
    assert (second.iteration, second.left, second.changed) == (1, None, ("outcome",))
    assert not found.is_same


RETRY = ForkedFrom("r1", kept=1, is_retry=True)


def test_what_a_retry_has_taken_over_of_the_run_is_no_difference() -> None:
    first = attempt(0, "completed", step="first")
    failed = attempt(0, "failed", failure=Failure("Boom"))
    left = line("r1", first, failed)
    right = line("r1-r1", attempt(0), made_of=RETRY, kept={"first": "completed"})
    kept, again = diff_runs(left, right).rows
    assert (kept.step, kept.taken_over, kept.changed, kept.right) == ("first", "right", (), None)
    assert (again.taken_over, again.changed) == ("", ("outcome", "failures"))
    assert diff_runs(right, left).rows[0].taken_over == "left"
    twice = diff_runs(right, msgspec.structs.replace(right, run="r1-r2"))
    assert [row.taken_over for row in twice.rows] == ["both", ""]
    (only,) = diff_runs(right.of_step("loop"), left.of_step("loop")).rows
    assert only.step == "loop", "what was taken over of other steps is not told either"


def test_of_a_third_run_what_was_taken_over_may_have_ended_otherwise() -> None:
    right = line("r9", made_of=ForkedFrom("r8"), kept={"loop": "completed"})
    for outcome, changed in (("completed", ()), ("failed", ("outcome",))):
        (row,) = diff_runs(line("r1", attempt(0, outcome)), right).rows
        assert (row.taken_over, row.changed) == ("right", changed)


def test_iterations_before_that_of_a_fork_were_taken_over() -> None:
    left = line("r1", attempt(0), attempt(1), attempt(2, "completed"))
    right = line("r2", attempt(2, "completed"), made_of=ForkedFrom("r1", "loop", 2, has_input=True))
    rows = diff_runs(left, right).rows
    assert [(row.iteration, row.taken_over) for row in rows] == [
        (0, "right"),
        (1, "right"),
        (2, ""),
    ]
    assert diff_runs(left, right).is_same


def test_inputs_statuses_and_versions_of_two_runs_are_compared() -> None:
    left = line("r1", attempt(0), input=raw({"n": 1, "m": 2}), version="a")
    written_otherwise = msgspec.Raw(b'{"m": 2, "n": 1}')
    right = line("r2", attempt(0), input=written_otherwise, version="b")
    assert (diff_runs(left, right).changed, diff_runs(left, right).is_same) == (("version",), True)
    right = line("r2", attempt(0), input=raw(2), version="a", status="failed", failure="loop: Boom")
    found = diff_runs(left, right)
    assert (found.changed, found.is_same) == (("input", "status"), False)
    assert found.sides[1].failure == "loop: Boom"


def test_steps_that_no_worker_executes_are_compared_by_how_they_ended() -> None:
    def end(kind: Any, outcome: str, **fields: Any) -> Span:
        return Span(kind=kind, step=kind, begin_ms=1, end_ms=2, outcome=outcome, **fields)

    def counted(retried: int, failed: int = 0) -> MapCounts:
        return MapCounts(items=9, done=9, failed=failed, chunks=3, retried=retried)

    met, branch = end("signal", "completed"), end("choice", "completed", detail="took a")
    left = line("r1", met, branch, end("map", "completed", counts=counted(0)))
    same = line("r2", met, branch, end("map", "completed", counts=counted(2)))
    assert diff_runs(left, same).is_same
    other = line(
        "r3",
        end("signal", "timed out"),
        end("choice", "completed", detail="took b"),
        end("map", "completed", counts=counted(0, failed=1)),
    )
    changed = [row.changed for row in diff_runs(left, other).rows]
    assert changed == [("outcome",), ("branch",), ("items",)]


def test_what_a_step_that_waited_was_given_and_why_it_failed_are_compared() -> None:
    def end(kind: Any, value: Any, **fields: Any) -> Span:
        told: dict[str, Any] = {"outcome": "completed", "output": raw(value), **fields}
        return Span(kind=kind, step=kind, begin_ms=1, end_ms=2, **told)

    def approved(by: str, at: str) -> Span:
        return end("approval", {"approved": True, "by": by, "at": at})

    left = line("r1", end("signal", {"n": 1}), approved("ada", "then"))
    same = line("r2", end("signal", {"n": 1}), approved("ada", "now"))
    assert diff_runs(left, same).is_same, "when it was approved is a time like others"
    other = line("r3", end("signal", {"n": 2}), approved("bob", "then"))
    assert [row.changed for row in diff_runs(left, other).rows] == [("output",), ("output",)]

    def failed(child: str, why: str) -> Timeline:
        failure = Failure("child_failed", f"run {child!r} failed: {why}")
        return line(child, end("child", None, outcome="failed", detail=child, failure=failure))

    assert diff_runs(failed("c1", "Boom"), failed("c2", "Boom")).is_same
    (row,) = diff_runs(failed("c1", "Boom"), failed("c2", "Bang")).rows
    assert row.changed == ("failures",)


def test_maps_are_compared_by_their_outputs_and_large_ones_by_their_sizes() -> None:
    span = Span(kind="map", step="each", begin_ms=1, end_ms=2, outcome="completed")
    one, other = line("r1", span), line("r2", span)

    def changed(left: StepOutput, right: StepOutput) -> tuple[str, ...]:
        found = diff_runs(with_outputs(one, {"each": left}), with_outputs(other, {"each": right}))
        return found.rows[0].changed

    small = StepOutput(size_bytes=3, value=raw([1]))
    assert changed(small, small) == ()
    assert changed(small, StepOutput(size_bytes=3, value=raw([2]))) == ("output",)
    assert changed(StepOutput(size_bytes=99), StepOutput(size_bytes=98)) == ("output",)


def test_what_lasts_has_lasted_until_it_was_read() -> None:
    run = line("r1", attempt(0, "", end_ms=0), read_ms=8_000)
    (row,) = diff_runs(run, run).rows
    assert row.left is not None and row.left.took_ms == 7_000


def test_two_iterations_of_a_run_are_compared_and_have_to_be_there() -> None:
    run = line("r1", attempt(0), attempt(1, output=raw(7)))
    found = diff_iterations(run, 0, 1)
    assert (found.left, found.right, found.rows[0].changed) == ("r1#0", "r1#1", ("output",))
    with pytest.raises(UserError, match="no iteration 7: it has begun 2, counted from 0"):
        diff_iterations(run, 0, 7)
    two = line("r1", attempt(0), msgspec.structs.replace(attempt(0), step="other"))
    two = msgspec.structs.replace(two, loops=("loop", "other"), steps=("loop", "other"))
    with pytest.raises(UserError, match=r"has 2 loops with iterations .*--step"):
        diff_iterations(two, 0, 0)
    assert diff_iterations(two, 0, 0, "other").is_same
