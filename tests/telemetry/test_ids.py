"""Ids of traces and spans never change: an engine of tomorrow names the spans of today's runs.

Method: golden values, and properties over any places.
"""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from treadle.sdk.tracing import ids

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
REF = ids.TraceRef(TRACE, True)


def test_ids_are_what_they_always_were() -> None:
    assert ids.root_span(TRACE) == "b7d8ebad211bb62f"
    assert ids.step_span(TRACE, "think") == "22c0ff0b1f7b3e3e"
    assert ids.attempt_place(REF, "think", 3, 2) == (TRACE, "8b50e954cc045d45")
    assert ids.attempt_place(REF, "think", 200, 1) == (
        "9899b1b05885409de777e7219751b9be",
        "a0960464d73f7c21",
    )
    header = ids.task_traceparent(REF, "think", 3, 2)
    assert header == f"00-{TRACE}-8b50e954cc045d45-01"


def test_a_reference_is_read_as_it_was_written_and_nothing_else_is_one() -> None:
    for is_sampled in (True, False):
        ref = ids.TraceRef(TRACE, is_sampled)
        assert ids.parse_ref(str(ref)) == ref
    for wrong in ("", TRACE, f"{TRACE}-", f"{TRACE}-zz", f"{'0' * 32}-01", "abc-01"):
        assert ids.parse_ref(wrong) is None


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,20}", fullmatch=True)
places = st.tuples(names, st.integers(0, 10_000), st.integers(1, 50))


@given(places, places)
def test_every_execution_has_an_id_of_its_own(
    one: tuple[str, int, int], other: tuple[str, int, int]
) -> None:
    first, second = ids.attempt_place(REF, *one), ids.attempt_place(REF, *other)
    assert (first == second) == (one == other)
    assert re.fullmatch(r"[0-9a-f]{16}", first[1]) and int(first[1], 16)
    assert re.fullmatch(r"[0-9a-f]{32}", first[0]) and int(first[0], 16)
