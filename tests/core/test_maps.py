"""Maps: how a list is cut, how chunks are counted, what a document asks for, what is put together.
Method: properties over any list and any order of ends; each rule of failures by example."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.walks import RunWalk, plan_of

from treadle.engine.core import StepEnded, effects, lists
from treadle.engine.core.maps import (
    CHUNKS_AIMED,
    CHUNKS_PER_PARALLEL,
    laid_out,
    missing_from,
    numbers,
    starts,
)
from treadle.sdk.definition import MapStep, Retry, TaskStep
from treadle.sdk.errors import InvariantError
from treadle.sdk.gathering import Part, gather
from treadle.sdk.messages import (
    CancelRequested,
    ChunkDone,
    Ended,
    Failure,
    ItemFailure,
    MapOutput,
    Results,
)
from treadle.sdk.subjects import chunk_id

BROKEN = Failure("ValueError", "item 3: it broke", retryable=False)
sizes = st.lists(st.integers(1, 50), max_size=60)
ranges = st.sets(st.integers(0, 30)).map(
    lambda found: tuple((number, number) for number in sorted(found))
)


def each(**fields: object) -> MapStep:
    return MapStep(id="a", type="each", **fields)  # type: ignore[arg-type]


def ended(number: int, *, failed: int = 0, failure: Failure | None = None) -> StepEnded:
    """The end of a chunk of the list of step ``a``."""
    chunk = ChunkDone(first=number, count=1, failed=failed, size_bytes=2)
    outcome = "failed" if failure else "completed"
    return StepEnded(chunk_id("a", number), outcome, 0, failure, chunk=None if failure else chunk)  # type: ignore[arg-type]


def created(commands: tuple[effects.Command, ...]) -> list[str]:
    return [each.step for each in commands if isinstance(each, effects.CreateRegister)]


# ------------------------------------------------------------------ the list


@given(sizes, st.integers(1, 10), st.integers(1, 200))
def test_the_pieces_are_the_list_in_order_and_none_is_too_large(
    found: list[int], chunk_items: int, chunk_bytes: int
) -> None:
    begin = [*starts(found, chunk_items, chunk_bytes), len(found)]
    pieces = [found[first:last] for first, last in pairwise(begin)]
    assert [size for piece in pieces for size in piece] == found
    for piece in pieces:
        assert 1 <= len(piece) <= chunk_items
        assert len(piece) == 1 or sum(piece) <= chunk_bytes


@given(st.integers(0, 100_000), st.integers(1, 1_000))
def test_a_long_list_has_few_chunks_and_a_short_one_an_item_in_each(
    count: int, max_parallel: int
) -> None:
    state = laid_out(each(max_parallel=max_parallel), [1] * count, 10**9)
    aimed = max(CHUNKS_AIMED, CHUNKS_PER_PARALLEL * max_parallel)
    assert state.chunks <= aimed
    assert state.chunks == count or state.chunks > aimed // 2


@given(st.lists(st.integers() | st.text(max_size=5) | st.none(), max_size=30), st.integers(0, 7))
def test_whoever_cuts_a_list_again_comes_to_the_same_pieces(
    items: list[object], chunk: int
) -> None:
    step, data = each(chunk=chunk), b" " + msgspec.json.encode(items)
    fact = lists.decided(step, data, 40, 1_000)
    assert fact.map is not None
    pieces = [lists.Cut(step, fact.map, data).piece(n) for n in range(fact.map.chunks)]
    assert [item for piece, _ in pieces for item in msgspec.json.decode(piece)] == items
    assert [each.first for _, each in pieces] == [
        sum(before.count for _, before in pieces[:n]) for n in range(len(pieces))
    ]


@pytest.mark.parametrize(
    ("step", "data", "said"),
    [
        (each(), b'"text"', "is text, and a map needs a list"),
        (each(), b"true", "is true or false"),
        (each(over="k"), b"[1]", "is a list, and its list is to be under the key 'k'"),
        (each(over="k"), b'{"l":[1]}', "has no key 'k'; its keys are: 'l'"),
        (each(over="k"), b'{"k":{}}', "under 'k' is an object"),
        (each(), b'["' + b"x" * 200 + b'"]', "has an item, 0, of 202 bytes, and 100 are allowed"),
    ],
)
def test_what_is_no_list_is_refused_with_what_is_there_instead(
    step: MapStep, data: bytes, said: str
) -> None:
    fact = lists.decided(step, data, 40, 100)
    assert fact.failure is not None
    assert (fact.failure.type, fact.failure.retryable) == ("not_a_list", False)
    assert said in fact.failure.message


# ------------------------------------------------------------------ chunks


@given(ranges, ranges)
def test_what_is_missing_is_what_was_there_and_is_not(
    now: tuple[tuple[int, int], ...], before: tuple[tuple[int, int], ...]
) -> None:
    assert [*missing_from(now, before)] == sorted({*numbers(before)} - {*numbers(now)})


@given(st.permutations(range(4)), st.integers(1, 4))
def test_chunks_end_in_any_order_each_is_counted_once_and_the_last_one_ends_the_step(
    order: list[int], max_parallel: int
) -> None:
    walk = RunWalk(plan_of(each(max_parallel=max_parallel)))
    assert walk.run.maps["a"].items == 4
    waiting = [*order]
    while waiting:
        under_way = {*numbers(walk.run.maps["a"].under_way)}
        assert len(under_way) <= max_parallel
        number = next(n for n in waiting if n in under_way)
        waiting.remove(number)
        before = walk.run
        after = walk.send(ended(number))
        assert after.maps["a"].done == before.maps["a"].done + 1
        assert walk.send(ended(number)) is after, "once"
    assert walk.run.status == "completed"
    assert (walk.run.maps["a"].done, walk.run.maps["a"].size_bytes) == (4, 8)


@given(st.permutations(range(4)), st.integers(1, 4))
def test_after_a_driven_document_only_what_has_begun_since_is_to_be_created(
    order: list[int], max_parallel: int
) -> None:
    walk = RunWalk(plan_of(each(max_parallel=max_parallel)))
    made = set(created(effects.of_document(walk.plan, walk.run)))
    waiting = [*order]
    while waiting and not walk.run.is_terminal:
        number = next(n for n in waiting if n in {*numbers(walk.run.maps["a"].under_way)})
        waiting.remove(number)
        driven, run = walk.run, walk.send(ended(number))
        fresh = set(created(effects.of_document(walk.plan, run, driven)))
        assert not fresh & made
        made |= fresh
        assert {*created(effects.of_document(walk.plan, run))} <= made
    assert len(made) == 4


def test_an_empty_list_completes_at_once_and_so_does_what_follows_it() -> None:
    walk = RunWalk(plan_of(each(over="nothing"), each_after()))
    assert walk.run.steps["a"].status == "completed"
    assert walk.run.steps["g"].status == "active"


def each_after() -> TaskStep:
    return TaskStep(id="g", type="work", after=("a",))


def test_a_chunk_that_fails_fails_the_step_and_what_is_under_way_is_to_be_ended() -> None:
    handled = each(max_parallel=3, on_failure="h")
    walk = RunWalk(plan_of(handled, TaskStep(id="h", type="work")))
    run = walk.send(ended(1, failure=BROKEN))
    assert (run.steps["a"].status, run.steps["a"].failure) == ("failed", BROKEN)
    assert (run.status, run.steps["h"].status) == ("running", "active")
    commands = effects.of_document(walk.plan, run)
    assert {c.step for c in commands if isinstance(c, effects.EndRegister)} == {"a=0", "a=2"}
    assert [c.step for c in commands if isinstance(c, effects.NotifyCancel)] == ["a"]
    assert walk.send(ended(0)) is run, "what comes later counts for nothing"


@pytest.mark.parametrize(("tolerated", "status"), [(1, "failed"), (2, "completed")])
def test_items_that_fail_are_counted_and_one_too_many_fails_the_step(
    tolerated: int, status: str
) -> None:
    walk = RunWalk(plan_of(each(max_parallel=4, tolerated_failures=tolerated)))
    for number in range(4):
        run = walk.send(ended(number, failed=number % 2))
    assert run.steps["a"].status == status
    if status == "failed":
        assert run.failure is not None
        assert run.failure.type == "tolerated_failures"
        assert "2 items failed, and 1 are tolerated" in run.failure.message


def test_a_cancel_ends_every_chunk_under_way_and_none_that_has_not_begun() -> None:
    walk = RunWalk(plan_of(each(max_parallel=2)))
    run = walk.send(CancelRequested())
    assert run.status == "cancelled"
    commands = effects.of_document(walk.plan, run)
    assert {c.step for c in commands if isinstance(c, effects.EndRegister)} == {"a=0", "a=1"}


def test_a_chunk_is_a_task_with_the_retries_of_the_map_and_a_jitter_of_its_own() -> None:
    plan = plan_of(each(retry=Retry(max_attempts=3), timeout_s=2))
    chunk = plan.work("a=3")
    assert chunk == TaskStep(id="a=3", type="each", timeout_s=2, retry=Retry(max_attempts=3))
    with pytest.raises(KeyError):
        plan.work("a")


def test_the_document_does_not_grow_with_the_list() -> None:
    walk = RunWalk(plan_of(each(max_parallel=3)))
    few = len(msgspec.json.encode(walk.run))
    state = msgspec.structs.replace(walk.run.maps["a"], items=100_000, chunks=100_000)
    many = msgspec.structs.replace(walk.run, maps={"a": state})
    assert len(msgspec.json.encode(many)) < few + 20


# ------------------------------------------------------------------ the output


def part(first: int, *values: object, outcome: str = "completed") -> Part:
    done = ChunkDone(first=first, count=len(values))
    output = msgspec.Raw(msgspec.json.encode(list(values)))
    return Part(Ended(parent="e1", outcome=outcome, iterations=1, output=output, chunk=done))  # type: ignore[arg-type]


def test_results_are_joined_in_the_order_of_the_items_wherever_they_are() -> None:
    record = Results(results=((3, msgspec.Raw(b'"d"')),), retrying=(ItemFailure(2, "E"),))
    rest = Results(results=((4, msgspec.Raw(b'"e"')),), failures=(ItemFailure(2, "E", "why"),))
    mixed = Part(
        Ended(
            parent="e1",
            outcome="completed",
            iterations=1,
            output=msgspec.Raw(msgspec.json.encode(rest)),
            chunk=ChunkDone(first=2, count=3, failed=1, records=1),
        ),
        [msgspec.json.encode(record)],
    )
    lost = Part(
        Ended(
            parent="e1",
            outcome="failed",
            iterations=0,
            failure=Failure("worker_lost", "gone"),
            chunk=ChunkDone(first=5, count=2, failed=2),
        )
    )
    found = gather([part(0, "a", "b"), mixed, lost, part(7)], MapOutput(4, 7, True))
    assert msgspec.json.decode(found) == {
        "results": ["a", "b", None, "d", "e", None, None],
        "failures": [
            {"index": 2, "type": "E", "message": "why"},
            {"index": 5, "type": "worker_lost", "message": "gone"},
            {"index": 6, "type": "worker_lost", "message": "gone"},
        ],
    }


def test_a_missing_result_is_an_error_and_never_a_shorter_list() -> None:
    with pytest.raises(InvariantError, match="a map of 3 items has results of 2"):
        gather([part(0, 1, 2)], MapOutput(1, 3))
    hole = Part(
        Ended(
            parent="e1",
            outcome="completed",
            iterations=1,
            output=msgspec.Raw(b"{}"),
            chunk=ChunkDone(first=0, count=1),
        )
    )
    with pytest.raises(InvariantError, match="a chunk of 1 items has results of 0"):
        gather([hole], MapOutput(1, 1))
