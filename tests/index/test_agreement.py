"""An index selects, sorts and counts what the definition of a filter says.
Method: hypothesis: documents put and put again in any order, and any filter over their values."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from treadle.engine.index.table import Table
from treadle.sdk.listing.facts import Facts, Parent
from treadle.sdk.listing.filters import Condition, RunFilter, matches
from treadle.sdk.listing.wire import Position, RunFound, RunsAsked

TEXTS = st.sampled_from(["a", "b", "a\0", "é", "𝄞", "\uffff", "10", ""])
VALUES = st.one_of(
    TEXTS,
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([-0.5, 0.0, 1.0, 1e300]),
)
KEYS = st.sampled_from(["x", "y", "z"])
STATUSES = st.sampled_from(["queued", "running", "completed"])
NAMES = st.sampled_from(["v", "w"])
RUNS = st.sampled_from([f"r{n}" for n in range(8)])
FACTS = st.builds(
    Facts,
    run=st.just(""),
    workflow=NAMES,
    definition=st.just("h"),
    status=STATUSES,
    requested=st.integers(1, 9),
    requested_ms=st.integers(0, 4),
    parent=st.none() | st.builds(Parent, RUNS),
    metadata=st.dictionaries(KEYS, VALUES, max_size=3),
)
WRITES = st.lists(st.tuples(RUNS, st.none() | FACTS), max_size=30)
CONDITIONS = st.builds(
    Condition,
    KEYS,
    st.sampled_from(["=", "<", "<=", ">", ">="]),
    st.lists(VALUES, min_size=1, max_size=3).map(tuple),
)
FILTERS = st.builds(
    RunFilter,
    workflow=st.just("") | NAMES,
    statuses=st.lists(STATUSES, max_size=2).map(tuple),
    where=st.lists(CONDITIONS, max_size=2).map(tuple),
    parent=st.just("") | RUNS,
    after_ms=st.integers(0, 4),
    before_ms=st.integers(0, 5),
)


def _table(writes: list[tuple[str, Facts | None]]) -> tuple[Table, dict[str, Facts]]:
    table = Table()
    # In two goes: a batch holds a key once.
    for sequence, (run, facts) in enumerate(writes, 1):
        table.put([(run, sequence, facts)])
    stands = {run: facts for run, facts in dict(writes).items() if facts is not None}
    return table, stands


@given(writes=WRITES, wanted=FILTERS, size=st.integers(1, 4))
def test_pages_and_counts_are_those_of_the_filter(
    writes: list[tuple[str, Facts | None]], wanted: RunFilter, size: int
) -> None:
    table, stands = _table(writes)
    places = {run: Position(facts.requested_ms, run) for run, facts in stands.items()}
    expected = sorted(
        (places[run] for run, facts in stands.items() if matches(wanted, facts)), reverse=True
    )
    found: list[RunFound] = []
    below, is_more = None, True
    while is_more:
        answer = table.answer(RunsAsked(filter=wanted, limit=size, below=below))
        assert len(answer.runs) <= size
        found += answer.runs
        is_more = answer.is_more
        if found:
            below = Position(found[-1].requested_ms, found[-1].run)
    assert [Position(each.requested_ms, each.run) for each in found] == expected
    known = tuple(f"r{n}" for n in range(8))
    counted = table.answer(RunsAsked(filter=wanted, limit=0, counts=True, known=known))
    assert counted.runs == () and set(counted.known) == set(stands)
    assert counted.counts == Counter(stands[place.run].status for place in expected)
    table.close()


@given(writes=WRITES, gone=st.sets(RUNS))
def test_what_is_removed_is_forgotten_unless_it_was_stored_again(
    writes: list[tuple[str, Facts | None]], gone: set[str]
) -> None:
    table, stands = _table(writes)
    rows = table.between(0, len(writes))
    assert rows == {run: n for n, (run, _) in enumerate(writes, 1)}
    assert table.remove((run, rows[run] - 1) for run in rows) == 0
    assert table.remove((run, rows.get(run, 0)) for run in gone) == len(gone & rows.keys())
    left = table.answer(RunsAsked()).runs
    assert {each.run for each in left} == stands.keys() - gone
    for run in stands:
        label = Condition("x", "=", (stands[run].metadata.get("x", "none"),))
        found = table.answer(RunsAsked(filter=RunFilter(where=(label,)))).runs
        is_there = run not in gone and "x" in stands[run].metadata
        assert (run in {each.run for each in found}) == is_there
    table.close()


def test_a_queued_run_says_what_of_its_lane_comes_before_it() -> None:
    table = Table()
    at = [("first", "queued", 2), ("held", "running", 1), ("second", "queued", 4)]
    at += [("held too", "parked", 3), ("held later", "running", 5)]
    table.put(
        (run, n, _in_lane(run, status, requested)) for n, (run, status, requested) in enumerate(at)
    )
    table.put([("other", 9, _in_lane("other", "queued", 1, lane="m"))])
    found = {each.run: (each.ahead, each.holder) for each in table.answer(RunsAsked()).runs}
    assert found == {
        "held": (-1, ""),
        "held too": (-1, ""),
        "held later": (-1, ""),
        "first": (1, "held"),
        "second": (3, "held"),
        "other": (0, ""),
    }
    table.close()


def _in_lane(run: str, status: str, requested: int, lane: str = "l") -> Facts:
    return Facts(
        run=run, workflow="w", definition="h", status=status, requested=requested, lane=lane
    )
