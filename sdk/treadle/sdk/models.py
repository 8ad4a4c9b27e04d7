"""What msgspec does not know by itself: pydantic models, and subclasses of plain types.

Pydantic is never imported for its own sake: a model that is at hand has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, get_args

import msgspec

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

T = TypeVar("T")


def is_model(value: object) -> TypeGuard[BaseModel]:
    """True for an instance of a pydantic model."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, pydantic.BaseModel)


def is_model_type(type_: object) -> TypeGuard[type[BaseModel]]:
    """True for a pydantic model class."""
    pydantic = sys.modules.get("pydantic")
    return (
        pydantic is not None and isinstance(type_, type) and issubclass(type_, pydantic.BaseModel)
    )


def name_of(type_: Any) -> str:
    """Return the type as a reader would write it."""
    return type_.__name__ if isinstance(type_, type) and not get_args(type_) else str(type_)


def to_plain(value: Any) -> object:
    """Return what msgspec should encode instead of a value it does not know."""
    if is_model(value):
        # Round trip: computed fields are left out, which the model itself might refuse to read.
        # A field that holds a value of another type is an error here and not at the receiver.
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings="error")
    for base in (str, int, float):
        if isinstance(value, base):
            return base(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def to_fields(value: Any) -> object:
    """Return what a value msgspec does not know is made of, as it is.

    ``to_plain`` cannot serve to find a NaN: pydantic writes some of them as None.
    """
    if is_model(value):
        return value.model_dump(by_alias=True, round_trip=True, warnings=False)
    return to_plain(value)


def from_plain(type_: Any, plain: object) -> object:
    """Return an instance of a type msgspec does not know, made from plain data."""
    if type_ is object:
        return plain  # Whatever it is, as the JSON schema of such a type says.
    if not is_model_type(type_):
        raise TypeError(f"a {name_of(type_)} has no JSON form")
    return _validated(type_.model_validate_json, msgspec.json.encode(plain))


class Adapter:
    """Decodes, by pydantic alone, a type that msgspec cannot express."""

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._adapter = adapter

    def decode(self, raw: bytes) -> Any:
        # Pydantic accepts the NaN of JavaScript; msgspec accepts JSON.
        msgspec.json.decode(raw)
        try:
            return _validated(self._adapter.validate_json, raw)
        except ValueError as exc:
            raise msgspec.ValidationError(str(exc)) from exc

    def json_schema(self) -> dict[str, Any]:
        return self._adapter.json_schema()


def adapter(type_: Any) -> Adapter | None:
    """Return a decoder by pydantic alone, if the type is made of models."""
    if not _mentions_model(type_):
        return None
    return Adapter(sys.modules["pydantic"].TypeAdapter(type_))


def json_schema(type_: Any) -> dict[str, Any]:
    """Return the JSON schema of a type, its parts under ``$defs``; raise ``TypeError``."""
    if is_model_type(type_):
        return type_.model_json_schema()
    parts: dict[str, Any] = {}

    def hook(inner: Any) -> dict[str, Any]:
        if inner is object:
            return {"description": "Any value."}  # msgspec takes an empty schema for none.
        if not is_model_type(inner):
            raise TypeError(f"a {name_of(inner)} has no JSON form")
        # A prefix: pydantic's names and msgspec's could be the same.
        schema = inner.model_json_schema(ref_template=f"#/$defs/{inner.__name__}.{{model}}")
        defs: dict[str, Any] = schema.pop("$defs", {})
        parts.update({f"{inner.__name__}.{name}": part for name, part in defs.items()})
        return schema

    try:
        schema = msgspec.json.schema(type_, schema_hook=hook)
    except TypeError:
        fallback = adapter(type_)
        if fallback is None:
            raise
        return fallback.json_schema()
    if parts:
        schema["$defs"] = {**schema.get("$defs", {}), **parts}
    return schema


def _mentions_model(type_: Any) -> bool:
    return is_model_type(type_) or any(_mentions_model(inner) for inner in get_args(type_))


def _validated(validate: Callable[[bytes], T], raw: bytes) -> T:
    """Validate by pydantic; its errors become one line, without links to its site."""
    pydantic = sys.modules["pydantic"]
    try:
        return validate(raw)
    except pydantic.ValidationError as exc:
        found: list[dict[str, Any]] = exc.errors(include_url=False, include_context=False)
        lines = [f"{'.'.join(map(str, e['loc'])) or 'it'}: {e['msg']}" for e in found]
        raise ValueError("; ".join(lines)) from exc
