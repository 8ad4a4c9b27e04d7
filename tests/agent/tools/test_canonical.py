"""The canonical form of arguments: equal as JSON means equal as bytes.
Method: pairs of values, and generated ones compared with a plain round trip."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.worker.agent.tools.canonical import (
    args_hash,
    canonical_json,
    well_formed,
    well_formed_json,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


def test_the_order_of_keys_and_the_spelling_of_numbers_do_not_count() -> None:
    one = {"b": 1, "a": {"y": 2.0, "x": [1.0]}}
    other = {"a": {"x": [1], "y": 2}, "b": 1.0}
    assert canonical_json(one) == canonical_json(other) == b'{"a":{"x":[1],"y":2},"b":1}'
    assert args_hash(one) == args_hash(other)
    assert canonical_json(-0.0) == b"0"


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, "1"), (True, 1), (False, 0), (None, 0), ([], {}), ([1, 2], [2, 1]), (1.5, 1), ("a", "A")],
)
def test_different_arguments_have_different_hashes(one: object, other: object) -> None:
    assert args_hash({"v": one}) != args_hash({"v": other})


@given(JSON)
def test_every_json_value_has_one_form_that_stands_for_it(value: object) -> None:
    raw = canonical_json(value)
    assert canonical_json(json.loads(raw)) == raw
    if not _has_surrogates(value):
        assert json.loads(raw) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, {"a": object()}, b"x", {1, 2}])
def test_what_is_no_json_has_no_form(value: object) -> None:
    with pytest.raises(ValueError, match=r"no|key"):
        canonical_json(value)


def test_a_value_nested_without_end_is_refused_instead_of_overflowing_the_stack() -> None:
    value: list[object] = []
    for _ in range(5_000):
        value = [value]
    with pytest.raises(ValueError, match="nested deeper"):
        canonical_json(value)
    with pytest.raises(ValueError, match="nested deeper"):
        well_formed_json(value)


def test_half_a_character_is_replaced_and_two_halves_are_joined() -> None:
    assert well_formed("a\ud83db") == "a\ufffdb"
    assert well_formed("\ud83d\ude00") == "\U0001f600"
    assert well_formed("plain") == "plain"
    assert well_formed_json({"\ude00": ["\ud83d", 1]}) == {"\ufffd": ["\ufffd", 1]}
    canonical_json({"k": "\ud83d"}).decode()


def _has_surrogates(value: object) -> bool:
    return "\\ud" in json.dumps(value)
