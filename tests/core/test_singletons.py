"""What a start of a singleton does about the run before it, and under which lane it meets it.
Method: examples of the core; lanes in memory are in test_lanes.py, with two engines and crashes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.walks import RunWalk, plan_of

from treadle.engine.core import Moment, StepEnded, effects, request
from treadle.engine.core.apply import apply
from treadle.sdk import InvalidDefinition, InvalidPayload, UserError, Workflow
from treadle.sdk.definition import SignalStep, Singleton, TaskStep
from treadle.sdk.messages import LaneGranted, RunRequested, RunSuperseded
from treadle.sdk.run import RunDocument
from treadle.sdk.singletons import Placed, placed, placed_again

WORK = TaskStep(id="a", type="work")
PLAN = plan_of(WORK)


def started(policy: Singleton, behind: str | None) -> RunDocument:
    event = RunRequested(workflow="w", definition="h", lane="w:1", singleton=policy)
    moment = Moment("r", "e7", 1_000, 7)
    is_queued = behind is not None
    return request(PLAN, event, moment, "main", is_queued=is_queued, behind=behind or "")


def test_a_start_that_is_first_runs_whatever_its_policy_is() -> None:
    for policy in ("none", "skip", "queue", "cancel_older"):
        assert started(policy, None).status == "running"  # type: ignore[arg-type]


def test_a_skipped_start_has_a_document_that_names_the_run_in_its_way() -> None:
    run = started("skip", "earlier")
    assert (run.status, run.steps, run.ended_ms) == ("cancelled", {}, 1_000)
    assert run.failure is not None
    assert run.failure.type == "singleton" and "'earlier'" in run.failure.message
    assert effects.SettleLane() in effects.of_document(PLAN, run)


def test_a_start_that_cannot_see_who_is_in_its_way_waits() -> None:
    assert started("skip", "").status == "queued"
    granted = LaneGranted(lane="w:1", request=7)
    begun = apply(PLAN, started("skip", ""), granted, Moment("r", "e9", 2_000, 9))
    assert begun.status == "running"


def test_a_start_that_cancels_the_older_ones_is_queued_and_asks_for_their_end() -> None:
    run = started("cancel_older", "earlier")
    assert run.status == "queued"
    commands = effects.of_document(PLAN, run)
    assert commands == (effects.Supersede(), effects.SettleLane())
    assert effects.Supersede() not in effects.of_document(PLAN, started("queue", "earlier"))
    begun = apply(PLAN, run, LaneGranted(lane="w:1", request=7), Moment("r", "e9", 2_000, 9))
    assert effects.Supersede() not in effects.of_document(PLAN, begun)


def test_a_superseded_run_undoes_what_it_has_done_and_is_superseded_once() -> None:
    undone = TaskStep(id="a", type="work", compensate="undo")
    plan = plan_of(undone, TaskStep(id="undo", type="work"), SignalStep(id="s", signal="go"))
    walk = RunWalk(plan)
    walk.send(StepEnded("a", "completed", 1))
    event = RunSuperseded(by="later", request=walk.run.requested)
    assert walk.send(event).undoing == "cancelled"
    before = walk.run
    assert walk.send(event) is before, "a second one does not end what is being undone"
    walk.send(StepEnded("undo", "completed", 1))
    assert (walk.run.status, walk.run.failure) == ("cancelled", before.failure)
    assert before.failure is not None and "'later'" in before.failure.message


def test_a_superseding_of_another_request_of_the_id_changes_nothing() -> None:
    walk = RunWalk(PLAN)
    before = walk.run
    assert walk.send(RunSuperseded(by="later", request=99)) is before


# ------------------------------------------------------------------ where a start queues


def of_key(key: str = "", policy: Singleton = "skip") -> Any:
    workflow = Workflow("w", singleton=policy, singleton_key=key)
    workflow.task("a")
    return workflow.build()


@pytest.mark.parametrize(
    ("key", "value", "lane"),
    [
        ("", 1, "w"),
        ('input["id"]', {"id": "a-1"}, "w:a-1"),
        ('input["id"]', {"id": 7}, "w:7"),
        ("[input, 1]", "x", 'w:["x",1]'),
        ('get(input, "id", "none")', {}, "w:none"),
    ],
)
def test_runs_of_one_key_meet_in_one_lane(key: str, value: Any, lane: str) -> None:
    raw = msgspec.json.encode(value)
    assert placed(of_key(key), raw, None, None) == Placed(lane, "skip")


@given(st.text(max_size=400), st.text(max_size=400))
def test_any_key_makes_a_lane_and_two_keys_make_two(one: str, other: str) -> None:
    def lane(value: str) -> str:
        try:
            raw = msgspec.json.encode(value)
        except UnicodeEncodeError:  # Half a character is no JSON, and no input.
            return "none"
        found = placed(of_key("input"), raw, None, None).lane
        assert len(found) <= 200 and found.isprintable()
        return found

    assert (lane(one) == lane(other)) == (one == other)


def test_a_start_may_have_a_policy_of_its_own_in_a_lane() -> None:
    plain = plan_of(WORK).definition
    assert placed(plain, b"1", "l", None) == Placed("l", "none")
    assert placed(plain, b"1", "l", "queue") == Placed("l", "none")
    assert placed(plain, b"1", "l", "cancel_older") == Placed("l", "cancel_older")
    assert placed(plain, b"1", None, None) == Placed()
    with pytest.raises(UserError, match="has no lane"):
        placed(plain, b"1", None, "skip")
    with pytest.raises(UserError, match=r"Did you mean 'skip'\?"):
        placed(plain, b"1", "l", "skipp")
    with pytest.raises(UserError, match="without a lane"):
        placed(of_key(), b"1", "l", None)
    with pytest.raises(InvalidPayload, match="no key of the singleton"):
        placed(of_key('input["id"]'), b"{}", None, None)


@pytest.mark.parametrize(
    ("policy", "key", "told"),
    [
        ("skip", "input.id", 'Write \\["id"\\]'),
        ("skip", 'steps["a"]', "not in after"),
        ("none", "input", "no singleton that it is of"),
        ("skip", "1" * 1001, "1001 characters"),
        ("skipp", "", "Did you mean 'skip'"),
    ],
)
def test_what_cannot_be_a_singleton_is_refused(policy: Any, key: str, told: str) -> None:
    with pytest.raises(InvalidDefinition, match=told):
        of_key(key, policy)


# ------------------------------------------------------------------ several places


def few(places: int, key: str = "", policy: Singleton = "none") -> Any:
    workflow = Workflow("w", concurrency=places, concurrency_key=key, singleton=policy)
    workflow.task("a")
    return workflow.build()


def test_a_run_made_of_another_one_queues_where_its_version_and_input_say() -> None:
    plain, own = plan_of(WORK).definition, Placed("own", "skip")
    raw = b'{"id":"x"}'
    assert placed_again(plain, plain, raw, own) == own
    assert placed_again(plain, few(5, 'input["id"]'), raw, own) == Placed("w:x", places=5)
    assert placed_again(few(5), few(2), raw, Placed("w", places=5)) == Placed("w", places=2)
    assert placed_again(few(5), of_key(), raw, Placed("w", places=5)) == Placed("w", "skip")
    assert placed_again(few(5), plain, raw, Placed("w", places=5)) == Placed()
    with pytest.raises(InvalidPayload, match="no key of the concurrency"):
        placed_again(plain, few(5, 'input["id"]'), b"{}", own)


def test_the_runs_of_a_workflow_with_concurrency_share_a_lane_of_so_many_places() -> None:
    assert placed(few(5), b"1", None, None) == Placed("w", places=5)
    assert placed(few(5, 'input["id"]'), b'{"id":"x"}', None, None) == Placed("w:x", places=5)
    with pytest.raises(UserError, match="has a concurrency of 5, which says where its runs queue"):
        placed(few(5), b"1", "l", None)
    with pytest.raises(InvalidPayload, match="no key of the concurrency"):
        placed(few(5, 'input["id"]'), b"{}", None, None)


@pytest.mark.parametrize(
    ("places", "key", "policy", "told"),
    [
        (101, "", "none", "from 0 to 100"),
        (-1, "", "none", "from 0 to 100"),
        (2, "input.id", "none", 'Write \\["id"\\]'),
        (0, "input", "none", "no concurrency that it is of"),
        (2, "1" * 1001, "none", "1001 characters"),
        (2, "", "skip", "a singleton has one run at a time"),
    ],
)
def test_what_cannot_be_a_concurrency_is_refused(
    places: int, key: str, policy: Any, told: str
) -> None:
    with pytest.raises(InvalidDefinition, match=told):
        few(places, key, policy)


def test_a_run_keeps_the_number_of_its_request_within_what_is_allowed() -> None:
    for asked, kept in ((0, 1), (1, 1), (7, 7), (1_000_000, 100)):
        event = RunRequested(workflow="w", definition="h", lane="w", places=asked)
        assert request(PLAN, event, Moment("r", "e7", 1_000, 7), "main").places == kept
