"""A match is found by the value it waits for, and never misses what an evaluation would find.
Method: examples of what is an equality; any two JSON values against Python's own comparison."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from tests.sdk.strategies import json_values

from treadle.sdk import conditions, matching
from treadle.sdk.matching import MISSING, at, equality, fits, is_event_name, value_key


@pytest.mark.parametrize(
    ("match", "path", "other", "is_all"),
    [
        ('event["id"] == input["order"]', ("id",), "input['order']", True),
        ('input["order"] == event["id"]', ("id",), "input['order']", True),
        ('event["a"][0]["b"] == steps["x"]', ("a", 0, "b"), "steps['x']", True),
        ('event["n"] > 3 and event["id"] == 7', ("id",), "7", False),
        ('event["id"] == input["a"] + input["b"]', ("id",), "input['a'] + input['b']", True),
    ],
)
def test_an_equality_is_found_by_the_value_at_its_path(
    match: str, path: tuple[str | int, ...], other: str, is_all: bool
) -> None:
    assert equality(match) == (path, other, is_all)


@pytest.mark.parametrize(
    "match",
    [
        "",
        "event == 3",
        'event["id"] != 3',
        'event["id"] == event["other"]',
        'event["id"] == 3 or event["id"] == 4',
        'not event["id"] == 3',
        'event["id"] == 3 == event["n"]',
        'event[input["key"]] == 3',
        'get(event, "id") == 3',
    ],
)
def test_what_does_not_demand_one_value_is_asked_of_every_event(match: str) -> None:
    assert equality(match) is None


@given(json_values, json_values)
@example(1, True)
@example(1, 1.0)
@example([1, {"a": False}], [1.0, {"a": 0}])
@example("1", 1)
@example(2**53 + 1, float(2**53))
def test_values_that_are_equal_have_one_key(left: Any, right: Any) -> None:
    # As they are read from JSON, which is how both come.
    left, right = (msgspec.json.decode(msgspec.json.encode(each)) for each in (left, right))
    if left == right:
        assert value_key(left) == value_key(right)
    else:
        assert value_key(left) != value_key(right)


@given(json_values, json_values)
def test_an_event_that_fits_is_among_those_found_by_value(event: Any, run_input: Any) -> None:
    match = 'event["k"] == input["k"]'
    event, run_input = {"k": event}, {"k": run_input}
    found = equality(match)
    assert found is not None
    wanted = value_key(conditions.value_of(found.other, run_input, {}))
    if fits(match, event, run_input, {}):
        assert value_key(at(event, found.path)) == wanted


@pytest.mark.parametrize(
    ("event", "path", "value"),
    [
        ({"a": [1, 2]}, ("a", 1), 2),
        ({"a": [1, 2]}, ("a", -1), 2),
        ({"a": [1, 2]}, ("a", 2), MISSING),
        ({"a": None}, ("a",), None),
        ({"a": None}, ("a", "b"), MISSING),
        ([], ("a",), MISSING),
        ("text", (0,), MISSING),
    ],
)
def test_what_an_event_has_not_is_missing(event: Any, path: tuple[Any, ...], value: Any) -> None:
    assert at(event, path) is value or at(event, path) == value


def test_a_match_that_cannot_be_asked_of_an_event_does_not_hold() -> None:
    assert not fits('event["total"] > 3', {"total": "much"}, None, {})
    assert not fits('event["total"] > 3', {}, None, {})
    assert fits("", None, None, {})


@pytest.mark.parametrize(
    ("name", "is_name"),
    [
        ("paid", True),
        ("order.paid", True),
        ("_a-1.b.c", True),
        ("a." * 7 + "a", True),
        ("a." * 8 + "a", False),
        ("", False),
        ("order.", False),
        (".paid", False),
        ("order.*", False),
        ("order paid", False),
        ("ördér", False),
        ("a" * 129, False),
        ("order.paid\n", False),
        (7, False),
    ],
)
def test_the_name_of_an_event_is_words_with_dots(name: object, is_name: bool) -> None:
    assert is_event_name(name) is is_name
    assert "Choose a name" in matching.name_problem(name)
