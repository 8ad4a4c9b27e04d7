"""What cannot be the input of a workflow is found before a worker has it.
Method: jsonschema as the judge of what fits, the types of payloads, and examples of the words."""

from __future__ import annotations

import importlib
import json
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.sdk.strategies import json_values
from tests.sdk.test_payload import Diff, Order, Point

from treadle.sdk.payload import encode, json_schema
from treadle.sdk.schema_check import PROBLEMS_MAX, problems

jsonschema: Any = importlib.import_module("jsonschema")  # It comes without types.
_names = st.sampled_from(["a", "b", "c"])
_leaves = st.one_of(
    st.builds(
        lambda name: {"type": name},
        st.sampled_from(["string", "integer", "number", "boolean", "null", "object", "array"]),
    ),
    st.builds(lambda values: {"enum": values}, st.lists(json_values, min_size=1, max_size=3)),
    st.just({"$ref": "#/$defs/x"}),
    st.builds(
        lambda name, bound: {name: bound},
        st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
        st.integers(-3, 3) | st.floats(-3, 3),
    ),
    st.builds(
        lambda name, bound: {name: bound},
        st.sampled_from(["minLength", "maxLength", "minItems", "maxItems"]),
        st.integers(0, 4),
    ),
    st.booleans(),
)
_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(_names, inner, max_size=3)},
            optional={
                "required": st.lists(_names, max_size=2, unique=True),
                "additionalProperties": st.booleans() | inner,
            },
        ),
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda options: {"anyOf": options}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=6,
)
_values = st.recursive(
    json_values, lambda inner: st.dictionaries(_names, inner, max_size=3), max_leaves=5
)


@settings(max_examples=150)
@given(_schemas, _values)
def test_nothing_that_fits_its_schema_is_refused(schema: Any, value: object) -> None:
    whole = {"allOf": [schema], "$defs": {"x": {"type": ["string", "null"]}}}
    if jsonschema.Draft202012Validator(whole).is_valid(value):
        assert problems(value, whole) == ()


class Ticket(BaseModel):
    title: str
    level: Literal["low", "high"] = "low"
    labels: list[str] = []
    parent: Ticket | None = None
    price: Decimal = Decimal(0)


def test_what_types_write_fits_the_schema_that_is_stored_of_them() -> None:
    nested = Ticket(title="a", parent=Ticket(title="b", labels=["x"]))
    for type_, value in (
        (Ticket, nested),
        (Order, Order("O-1", Decimal(1), [Point(1)])),
        (dict[str, Point], {"a": Point(1)}),
        (Diff | None, None),
        (Any, {"anything": [1]}),
    ):
        assert problems(json.loads(encode("x", value)), json_schema(type_)) == ()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, ("it is null, and must be object",)),
        ([], ("it is array, and must be object",)),
        ({}, ("title is required and not there",)),
        ({"title": 5}, ("title is number, and must be string",)),
        ({"title": None}, ("title is null, and must be string",)),
        ({"title": "a", "level": "hi"}, ("level is 'hi', and must be one of 'low', 'high'",)),
        ({"title": "a", "labels": ["x", 1]}, ("labels[1] is number, and must be string",)),
        ({"title": "a", "labels": "x"}, ("labels is string, and must be array",)),
        ({"title": "a", "parent": {"titel": "b"}}, ("parent.title is required and not there",)),
        ({"title": "a", "parent": []}, ("parent is array, and must be",)),
    ],
)
def test_a_value_that_does_not_fit_says_where_and_what(value: Any, told: tuple[str, ...]) -> None:
    found = problems(value, json_schema(Ticket))
    assert len(found) == len(told), found
    for problem, expected in zip(found, told, strict=True):
        assert problem.startswith(expected)


def test_a_field_that_there_is_not_is_named_with_the_nearest_one() -> None:
    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        title: str
        count: int = 0

    schema = json_schema(Strict)
    assert problems({"title": "a", "cuont": 1}, schema) == (
        "cuont is no field of it: did you mean 'count'?",
    )
    assert problems({"title": "a", "zzz": 1}, schema) == (
        "zzz is no field of it: known are title, count",
    )


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("3", {"type": "integer"}),
        (12.5, {"type": "string", "format": "decimal"}),
        ("yes", {"type": "boolean"}),
        (1, {"type": "boolean"}),
        (3.0, {"type": "integer"}),
        ([1, "x", None], {"type": "array", "prefixItems": [{"type": "integer"}]}),
        (5, {"$ref": "other.json#/x", "unheard_of": True}),
        (5, {"$ref": "#/$defs/missing"}),
    ],
)
def test_what_a_reader_may_take_is_left_to_it(value: Any, schema: Any) -> None:
    assert problems(value, schema) == ()


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("three", {"type": "integer"}),
        (3.5, {"type": "integer"}),
        ("perhaps", {"type": "boolean"}),
        (["x"], {"type": "array", "prefixItems": [{"type": "integer"}]}),
        ({"a": 5}, {"additionalProperties": {"type": "array"}}),
        (1, {"const": 2}),
    ],
)
def test_what_no_reader_takes_is_refused(value: Any, schema: Any) -> None:
    assert len(problems(value, schema)) == 1


def test_a_schema_without_end_and_a_value_with_many_faults_end() -> None:
    assert problems(5, {"$ref": "#"}) == ()
    many = problems([None] * 100, {"items": {"type": "string"}})
    assert len(many) == PROBLEMS_MAX
