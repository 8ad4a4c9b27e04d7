"""What was cut is read again in pages, to the last character.
Method: properties of parts and pages, and examples of what the model is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.worker.agent.core import kept
from treadle.worker.agent.core.entries import Kept, Nested, Opened
from treadle.worker.agent.core.kept import KeptOutput
from treadle.worker.agent.core.spec import Versions
from treadle.worker.agent.core.state import State, fold

texts = st.text(alphabet="aé€😀\n", min_size=1, max_size=300)


def output(text: str, tool: str = "read") -> KeptOutput:
    return KeptOutput(tool, len(text.encode()), tuple(kept.parts(text.encode())))


@given(texts, st.integers(8, 64))
def test_pages_read_one_after_another_give_the_whole(text: str, bytes_max: int) -> None:
    outputs, offset, found = {"c": output(text)}, 0, ""
    while offset < len(text):
        head, _, shown = kept.page(
            outputs, {"call_id": "c", "offset": offset}, bytes_max
        ).partition("]\n")
        assert shown and len(shown.encode()) <= bytes_max
        offset += len(shown)
        found += shown
        assert (f"offset {offset}" in head) == (offset < len(text))
    assert found == text


def test_a_part_fits_into_a_record_and_no_character_is_split() -> None:
    whole = ("€" * 100_000).encode()
    parts = list(kept.parts(whole))
    assert len(parts) == 3
    assert all(len(part.encode()) <= kept.PART_BYTES_MAX for part in parts)
    assert "".join(parts).encode() == whole


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"call_id": "other"}, "no output of a call 'other' is kept; those that are: c"),
        ({"call_id": ["c"]}, "no output of a call"),
        ({}, "no output of a call None"),
        ({"call_id": "c", "offset": 5}, "offset must be a whole number from 0 to 4, not 5"),
        ({"call_id": "c", "offset": -1}, "not -1"),
        ({"call_id": "c", "offset": True}, "not True"),
        ({"call_id": "c", "offset": "1"}, "not '1'"),
    ],
)
def test_a_page_that_there_is_not_says_what_there_is(arguments: object, told: str) -> None:
    with pytest.raises(ValueError, match=r"kept|offset") as refused:
        kept.page({"c": output("abcde")}, arguments, 100)  # type: ignore[arg-type]
    assert told in str(refused.value)


def part(text: str, size_bytes: int, number: int = 0) -> Kept:
    return Kept(call_id="c", tool="read", size_bytes=size_bytes, part=number, text=text)


def test_a_call_that_runs_again_begins_its_output_anew_and_both_count() -> None:
    state = fold(State(), [part("ab", 4), part("xy", 4), part("z", 4, 1), part("!", 4, 2)])
    assert state.kept["c"].parts == ("xy", "z", "!")
    assert state.kept["c"].is_whole
    assert state.kept_bytes == 8


def test_what_was_not_kept_to_its_end_is_not_offered() -> None:
    state = fold(State(), [part("ab", 4)])
    assert kept.listed(state.kept) == ""
    assert "- c: read, 4 bytes" in kept.listed(fold(state, [part("cd", 4, 1)]).kept)


def test_the_bound_counts_sub_agents_and_earlier_conversations() -> None:
    inner = Nested(call_id="sub", entry=part("ab", 2))
    state = fold(State(), [part("abc", 3), inner])
    assert state.kept_bytes == 5
    assert list(state.children["sub"].kept) == ["c"]
    state = fold(state, [Opened(goal=[], versions=Versions())])
    assert state.kept_bytes == 5 and not state.kept
