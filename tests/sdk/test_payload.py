"""Values of users survive the way to JSON and back, or are refused with the place and a remedy.
Method: random values there and back; one example for each thing that JSON cannot hold."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, cast
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_serializer, field_validator
from tests.sdk.strategies import QUICK, json_values, texts

from treadle.sdk.errors import InvalidPayload
from treadle.sdk.limits import DEPTH_MAX
from treadle.sdk.payload import PAYLOAD_BYTES_MAX, decode, encode, json_schema


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int
    at: datetime | None = None


@dataclasses.dataclass
class Order:
    id: str
    price: Decimal
    points: list[Point] = dataclasses.field(default_factory=list[Point])

    def __post_init__(self) -> None:
        if self.price < 0:
            raise ValueError("price must not be negative")


class Diff(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    repo: str = Field(alias="repository")
    merged: date = date(2020, 1, 1)
    share: Decimal = Decimal("1.10")
    blob: bytes = b""
    score: float | None = None
    extra: Any = None

    @computed_field
    def title(self) -> str:
        return self.repo.upper()

    @field_validator("repo")
    @classmethod
    def _not_empty(cls, value: str) -> str:
        if not value:
            raise ValueError("a repository has a name")
        return value


class Stubborn(BaseModel):
    a: int

    @field_serializer("a")
    def _refuse(self, value: int) -> int:
        raise ValueError(f"{value} is nobody's business")


class Place(BaseModel):
    city: str


class Address(BaseModel):
    place: Place


class Shipment(msgspec.Struct):
    to: Address


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


@dataclasses.dataclass
class Mixed:
    diff: Diff
    point: Point
    by_name: dict[str, Diff]


def _diff(**fields: Any) -> Diff:
    return Diff(repository="treadle", **fields)


def _refused(call: Callable[[], object]) -> str:
    with pytest.raises(InvalidPayload) as caught:
        call()
    assert caught.value.what == "output of step 'a'"
    assert str(caught.value).startswith("output of step 'a': ")
    return str(caught.value).removeprefix("output of step 'a': ")


def _encoding(value: object) -> str:
    return _refused(lambda: encode("output of step 'a'", value))


def _decoding(raw: bytes, type_: Any = Any) -> str:
    return _refused(lambda: decode("output of step 'a'", raw, type_))


def _nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


# -------------------------------------------------------------------- there and back


@QUICK
@given(json_values)
def test_plain_values_come_back_the_same(value: object) -> None:
    assert decode("x", encode("x", value)) == value


@QUICK
@given(json_values)
def test_what_is_written_is_json_to_any_other_reader(value: object) -> None:
    assert json.loads(encode("x", value)) == value


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (Point(1, datetime(2026, 1, 1, tzinfo=UTC)), Point),
        (Order("O-104", Decimal("9.90"), [Point(1)]), Order),
        (_diff(share=Decimal("0.30"), blob=b"\x00\x01"), Diff),
        ([_diff()], list[Diff]),
        ({"a": _diff(extra=[1, {"b": None}])}, dict[str, Diff]),
        (None, Diff | None),
        (Mixed(_diff(), Point(2), {"k": _diff()}), Mixed),
        (Dog(), Cat | Dog),
        ([Dog(), Cat()], list[Annotated[Cat | Dog, Field(discriminator="kind")]]),
        ((1, "a"), tuple[int, str]),
        ({1, 2}, set[int]),
        ([Colour.RED], list[Colour]),
        ({UUID(int=7): timedelta(seconds=90)}, dict[UUID, timedelta]),
        (b"\x00\xff", bytes),
        (None, None),
        (2**200, int),
    ],
)
def test_typed_values_come_back_as_what_they_were(value: object, type_: Any) -> None:
    assert decode("x", encode("x", value), type_) == value


def test_a_type_that_is_not_given_means_plain_values() -> None:
    assert decode("x", encode("x", Order("O-1", Decimal("1")))) == {
        "id": "O-1",
        "price": "1",
        "points": [],
    }
    assert decode("x", msgspec.Raw(b"[1]")) == [1]


@pytest.mark.parametrize(
    ("type_", "value"),
    [(object, {"a": [1, None]}), (dict[str, object], {"a": [1]}), (list[object], [{}, 1, None])],
)
def test_object_means_any_value(type_: Any, value: object) -> None:
    assert decode("input", encode("input", value), type_) == value


def test_subclasses_of_plain_types_are_written_as_what_they_are() -> None:
    class Name(str): ...

    class Score(float): ...

    assert encode("x", [Name("a"), Score(1.5)]) == b'["a",1.5]'


def test_computed_fields_are_left_out_because_the_model_itself_would_refuse_them() -> None:
    assert b"title" not in encode("x", _diff())


# -------------------------------------------------------------------- what JSON cannot hold


class Float64(float):
    """A number as numeric libraries have it."""


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_refused_where_they_are(number: float) -> None:
    for value, place in (
        (number, "it"),
        (Float64(number), "it"),
        ([1.5, {"price": number}], "[1].price"),
        ({"a b": (None, number)}, "a b[1]"),
        (_diff(score=number), "score"),
        ([_diff(extra={"deep": number})], "[0].extra.deep"),
        (Mixed(_diff(), Point(cast("int", number)), {}), "point.x"),
    ):
        assert _encoding(value).startswith(f"{place} is {number}, which JSON cannot hold")


@QUICK
@given(json_values)
def test_a_null_beside_any_values_is_no_reason_to_refuse(value: object) -> None:
    assert decode("x", encode("x", [None, value])) == [None, value]


def test_a_number_of_any_size_stands_beside_a_null() -> None:
    assert decode("x", encode("x", [2**200, None])) == [2**200, None]
    assert "[1] is nan" in _encoding([2**200, math.nan])


def test_a_model_that_cannot_write_itself_is_refused() -> None:
    assert "[0] is of type Stubborn, which has no JSON form" in _encoding([Stubborn(a=1)])


def test_bytes_that_look_like_infinity_are_not_taken_for_it() -> None:
    # The bytes by which the search is shortened, as data of another kind.
    look_alike = int.from_bytes(b"\xcb\x7f\xf0\x00", "big")
    assert decode("x", encode("x", [look_alike, None])) == [look_alike, None]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "it is of type object, which has no JSON form"),
        ({"a": [1, {"lock": object()}]}, "a[1].lock is of type object"),
        ([Order("O-1", Decimal(1)), object], "[1] is of type type"),
        (_diff(extra={"conn": object()}), "extra.conn is of type object"),
        ({(1, 2): 3}, "[(1, 2)] is of type tuple, which cannot be a key in JSON"),
        ("\ud800", "it holds half of a character"),
        ([{"text": "ok \udfff"}], "[0].text holds half of a character"),
        ({"\ud800": 1}, "['\\ud800'] holds half of a character"),
        (_diff(extra="\ud800"), "extra holds half of a character"),
        (Diff.model_construct(repo=5), "it has no JSON form: Pydantic"),
    ],
)
def test_what_has_no_json_form_is_refused_where_it_is(value: object, why: str) -> None:
    assert _encoding(value).startswith(why)


def test_a_value_that_holds_itself_is_refused() -> None:
    itself: list[object] = []
    itself.append(itself)
    assert "nested deeper than 64 levels, or holds itself" in _encoding(itself)
    model = _diff(extra=itself)
    assert "has no JSON form" in _encoding(model)


# -------------------------------------------------------------------- bounds


def test_depth_is_bounded_on_both_sides() -> None:
    assert decode("x", encode("x", _nested(DEPTH_MAX))) == _nested(DEPTH_MAX)
    assert "nested deeper than 64" in _encoding(_nested(DEPTH_MAX + 1))
    assert "nested deeper than 64" in _decoding(b"[" * 65 + b"]" * 65)
    assert "nested deeper than 64" in _decoding(b'{"a":' * 65 + b"1" + b"}" * 65)


@pytest.mark.parametrize("bracket", [b"[", b'{"a":', b'[{"a":'])
def test_json_as_deep_as_it_is_long_is_refused_without_reading_it(bracket: bytes) -> None:
    raw = bracket * (PAYLOAD_BYTES_MAX // len(bracket))
    for type_ in (Any, Point, Diff, list[Diff], Cat | Dog):
        assert "nested deeper than 64" in _decoding(raw, type_)


@QUICK
@given(st.text(st.sampled_from('[]{}"\\ab'), max_size=40))
def test_brackets_inside_of_text_are_not_depth(text: str) -> None:
    value = ["[" * 100 + text, {text: "{" * 100}]
    assert decode("x", encode("x", value)) == value


def test_size_is_bounded_on_both_sides() -> None:
    largest = "x" * (PAYLOAD_BYTES_MAX - 2)
    assert decode("x", encode("x", largest)) == largest
    too_large = f"it takes {PAYLOAD_BYTES_MAX + 1} bytes as JSON, and {PAYLOAD_BYTES_MAX} are"
    assert _encoding(largest + "x").startswith(too_large)
    assert _decoding(b'"' + largest.encode() + b'x"').startswith(too_large)


# -------------------------------------------------------------------- what others send


@pytest.mark.parametrize(
    "raw", [b"", b"nope", b"{", b"[1] 2", b"NaN", b'"\xff"', b'"\\ud800"', b'"\xed\xa0\x80"']
)
def test_what_is_not_json_is_refused(raw: bytes) -> None:
    for type_ in (Any, str, Diff, Cat | Dog):
        assert "not JSON" in _decoding(raw, type_) or "does not fit" in _decoding(raw, type_)


@pytest.mark.parametrize(
    ("raw", "type_", "why"),
    [
        (b'{"x": "1"}', Point, "Expected `int`, got `str` - at `$.x`"),
        (b"{}", Point, "missing required field `x`"),
        (b'{"repository": 5}', Diff, "repository: Input should be a valid string"),
        (b'[{"repository": ""}]', list[Diff], "repository: Value error, a repository has a name"),
        (b'{"repository": "r", "score": NaN}', Diff, "not JSON"),
        (b'{"repository": "r", "title": "R"}', Diff, "title: Extra inputs are not permitted"),
        (b'{"id": "a", "price": "-1"}', Order, "price must not be negative"),
        (b'{"kind": "cow"}', Cat | Dog, "does not fit"),
        (b"1e999", float, "Number out of range"),
    ],
)
def test_what_does_not_fit_the_type_is_refused_where_it_is(
    raw: bytes, type_: Any, why: str
) -> None:
    text = _decoding(raw, type_)
    assert why in text
    assert "https://" not in text and "\n" not in text


class Socket:
    """Something without a JSON form."""


@dataclasses.dataclass
class Forgotten:
    field: Nowhere  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable] -- the fault under test


@pytest.mark.parametrize("type_", [Socket, list[Socket], int | Socket, Forgotten])
def test_a_type_without_a_json_form_is_named(type_: Any) -> None:
    text = _decoding(b"1", type_)
    assert "Socket" in text or "Nowhere" in text


def test_a_name_that_cannot_be_looked_up_is_led_to_the_top_of_its_module() -> None:
    assert "Define or import it at the top of the module" in _decoding(b"1", Forgotten)


def test_metadata_of_any_kind_may_annotate_a_type() -> None:
    assert decode("x", b"[1]", Annotated[list[int], {"not": "hashable"}]) == [1]


def test_a_union_that_msgspec_cannot_express_is_read_by_pydantic() -> None:
    assert decode("x", b'[{"kind":"cat"}, 5]', list[int | Cat | str]) == [Cat(), 5]


@QUICK
@given(st.binary(max_size=60) | texts.map(str.encode))
def test_no_bytes_crash_the_reader(raw: bytes) -> None:
    for type_ in (Any, Point, Diff, Cat | Dog):
        try:
            decode("x", raw, type_)
        except InvalidPayload as exc:
            assert exc.what == "x"


# -------------------------------------------------------------------- schemas


def test_schemas_name_their_parts_and_resolve() -> None:
    import jsonschema  # type: ignore[import-untyped]

    for type_, value in (
        (Mixed, Mixed(_diff(), Point(1), {})),
        (Diff, _diff()),
        (list[Diff], [_diff()]),
        (Cat | Dog, Cat()),
        (dict[str, Order], {"a": Order("O-1", Decimal(1))}),
        (Any, 5),
        (object, 5),
    ):
        schema = json_schema(type_)
        jsonschema.validate(json.loads(encode("x", value)), schema)


def test_parts_of_models_keep_the_name_of_their_model() -> None:
    parts = json_schema(Shipment)["$defs"]
    assert set(parts) == {"Shipment", "Address.Place"}
    assert parts["Shipment"]["properties"]["to"]["properties"]["place"] == {
        "$ref": "#/$defs/Address.Place"
    }


@pytest.mark.parametrize("type_", [Socket, list[Socket], Forgotten])
def test_a_type_without_a_schema_is_named(type_: Any) -> None:
    with pytest.raises(InvalidPayload, match=r"Socket|Nowhere"):
        json_schema(type_)
