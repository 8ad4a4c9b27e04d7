"""Asks as data: how they are bounded, and what an answer to one is called.
Method: properties over texts and arguments of any size, small bounds included."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.sdk.asks import (
    ASKS_BYTES_MAX,
    ASKS_MAX,
    INPUT_BYTES_MAX,
    NAME_CHARS_MAX,
    OPTIONS_MAX,
    TEXT_CHARS_MAX,
    Ask,
    Reply,
    answer_id,
    bounded,
    problems,
)
from treadle.sdk.ids import check_id

# Repeated, so that texts are long without drawing each character.
long_texts = st.builds(
    lambda part, times: part * times,
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from([1, 30, 700, 5_000]),
)
inputs = st.dictionaries(st.sampled_from(["path", 'a"b', "\\"]), long_texts, max_size=2)
asks = st.builds(
    Ask,
    id=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=200),
    kind=st.sampled_from(["approval", "question", "unsafe"]),
    text=long_texts,
    options=st.lists(long_texts, max_size=3).map(tuple),
    tool=long_texts,
    input=inputs.map(lambda value: msgspec.Raw(msgspec.json.encode(value))),
    args_hash=st.just("f" * 64),
    to=long_texts,
    problem=long_texts,
    due_ms=st.integers(0, 2**53),
)


@settings(deadline=None, max_examples=60)  # Megabytes are cut here, on a machine that is busy.
@given(st.lists(asks, min_size=1, max_size=3), st.sampled_from([1, 1, ASKS_MAX // 3]))
def test_what_is_stored_is_bounded_valid_and_the_same_when_bounded_again(
    few: list[Ask], times: int
) -> None:
    many = few * times
    kept = bounded(many)
    raw = msgspec.json.encode(kept)
    assert len(raw) <= ASKS_BYTES_MAX + 2 + len(kept)
    assert msgspec.json.decode(raw, type=tuple[Ask, ...]) == kept
    assert bounded(kept) == kept
    assert [ask.id for ask in kept] == [ask.id for ask in many[:ASKS_MAX]]
    for before, after in zip(many, kept, strict=False):
        assert after.args_hash == before.args_hash
        assert len(bytes(after.input)) <= INPUT_BYTES_MAX
        if after.input == before.input:
            assert after.full_bytes == 0
        else:
            assert after.full_bytes == len(bytes(before.input))
            shown = msgspec.json.decode(after.input, type=str)
            assert bytes(before.input).decode().startswith(shown)


@settings(deadline=None)
@given(st.lists(asks, max_size=3))
def test_what_fits_is_stored_as_it_is(some: list[Ask]) -> None:
    fits = all(
        len(bytes(ask.input)) <= INPUT_BYTES_MAX
        and max(len(ask.text), len(ask.problem)) <= TEXT_CHARS_MAX
        and max(map(len, (ask.tool, ask.to, *ask.options))) <= NAME_CHARS_MAX
        for ask in some
    )
    kept = bounded(some)
    if fits and len(msgspec.json.encode(some)) <= ASKS_BYTES_MAX:
        assert kept == tuple(some)
    elif not fits:
        assert kept != tuple(some)


def test_as_much_of_the_arguments_is_shown_as_there_is_room_for() -> None:
    big = msgspec.Raw(msgspec.json.encode({"content": "x" * 100_000}))
    (alone,) = bounded([Ask(id="a", input=big)])
    assert len(bytes(alone.input)) > INPUT_BYTES_MAX - 10
    crowd = bounded([Ask(id=f"a{n}", input=big) for n in range(ASKS_MAX)])
    assert all(len(bytes(ask.input)) > 2_000 for ask in crowd)
    assert all(ask.full_bytes == len(bytes(big)) for ask in crowd)


def test_too_many_options_are_cut_at_the_end() -> None:
    (kept,) = bounded([Ask(id="a", options=tuple(map(str, range(500))))])
    assert kept.options == tuple(map(str, range(OPTIONS_MAX)))


@pytest.mark.parametrize("id", ["x", "toolu_01", "outer/inner/call_7", "a" * 200])
def test_an_id_may_be_a_path(id: str) -> None:
    assert problems([Ask(id=id)]) == []


@pytest.mark.parametrize("id", ["", "a" * 201, "a b", "a\n", "é", "a\x1b[31m"])
def test_an_id_that_a_command_could_not_name_is_none(id: str) -> None:
    assert len(problems([Ask(id=id)])) == 1


def test_two_asks_of_one_id_and_too_many_are_refused() -> None:
    assert "two asks" in problems([Ask(id="a"), Ask(id="a")])[0]
    assert problems([Ask(id=str(n)) for n in range(ASKS_MAX)]) == []
    assert "65 asks" in problems([Ask(id=str(n)) for n in range(ASKS_MAX + 1)])[0]


def test_an_answer_has_an_id_of_its_own_for_each_thing_that_is_asked() -> None:
    ask = Ask(id="outer/" + "x" * 190, args_hash="f" * 64)
    check_id("message id", answer_id(ask))
    others = [
        msgspec.structs.replace(ask, **change)
        for change in ({"id": "b"}, {"args_hash": "e" * 64}, {"after": 7})
    ]
    assert len({answer_id(each) for each in (ask, *others)}) == 4
    told = msgspec.structs.replace(ask, level=2, to="lead", due_ms=9, asked_ms=3, text="?")
    assert answer_id(told) == answer_id(ask), "an escalation does not ask anew"


def test_a_reply_with_a_field_that_there_is_not_is_none() -> None:
    with pytest.raises(msgspec.ValidationError, match="args_hsh"):
        msgspec.convert({"call_id": "a", "verdict": "approve", "args_hsh": "f"}, Reply)
    with pytest.raises(msgspec.ValidationError, match="expired"):
        msgspec.convert({"call_id": "a", "verdict": "expired"}, Reply)
