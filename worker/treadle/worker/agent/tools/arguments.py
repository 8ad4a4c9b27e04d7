"""The arguments of a tool: their JSON schema, and the check of proposed ones against it.

Checked strictly, as JSON: "5" is no integer, but a date is given as text. What the model sends
beyond the parameters is refused, because it meant something by it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, Protocol, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticSerializationError, core_schema, to_jsonable_python
from typing_extensions import TypedDict

# As Any: the checkers know it as a statement only, and these are made at run time.
_typed_dict: Any = TypedDict


class Fault(NamedTuple):
    """One way in which arguments do not fit."""

    path: tuple[str | int, ...]
    """Where; names of union members may be in it."""
    kind: str
    """Pydantic's name of the fault."""
    text: str
    value: object
    """What was found there."""


class ArgumentFaults(Exception):
    """Raised for arguments that do not fit their schema."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("; ".join(f"{'.'.join(map(str, f.path))}: {f.text}" for f in faults))


class Arguments(Protocol):
    """What a tool takes."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema, of type object."""
        ...

    def validate(self, proposed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, as the function takes them, without its defaults.

        Raises ``ArgumentFaults``.
        """
        ...


class Parameter(NamedTuple):
    """One parameter of a function."""

    name: str
    type: Any
    description: str = ""
    has_default: bool = False
    default: object = None


class TypedArguments:
    """Arguments described by the annotations of a function."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        fields: dict[str, Any] = {
            p.name: NotRequired[p.type] if p.has_default else p.type for p in parameters
        }
        # A TypedDict and no model: any name is free, also `schema`, `json` and `_id`.
        shape: Any = _typed_dict("Arguments", fields)
        shape.__pydantic_config__ = ConfigDict(extra="forbid")
        self._adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(shape)
        self._schema = _described(json_schema(self._adapter), parameters)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema, with the descriptions and defaults of the parameters."""
        return self._schema

    def validate(self, proposed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as Python values; raise ``ArgumentFaults``."""
        validated: dict[str, Any] = _validated(self._adapter, proposed)
        return validated


class ModelledArguments:
    """Arguments that are the fields of one type: a model, a dataclass, a TypedDict."""

    def __init__(self, type_: Any) -> None:
        """Raise ``TypeError`` if the type cannot be described to a model, or is no object."""
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(type_)
            self._schema = json_schema(self._adapter)
        except Exception as exc:
            raise TypeError(f"{type_!r} cannot be described to a model: {exc}") from exc
        if self._schema.get("type") != "object":
            raise TypeError(f"{type_!r} has no fields, so a call could not give them by name")

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the type."""
        return self._schema

    def validate(self, proposed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as they are; raise ``ArgumentFaults``."""
        _validated(self._adapter, proposed)
        if not self._schema.get("additionalProperties"):
            text = "Extra inputs are not permitted"
            faults = [
                Fault((name,), "extra_forbidden", text, value)
                for name, value in proposed.items()
                if name not in self._schema.get("properties", {})
            ]
            if faults:
                raise ArgumentFaults(faults)
        return dict(proposed)


def _validated(adapter: TypeAdapter[Any], proposed: Mapping[str, Any]) -> Any:
    try:
        raw = json.dumps(proposed, allow_nan=False)
        return adapter.validate_json(raw, strict=True)
    except ValidationError as exc:
        found = exc.errors(include_url=False, include_context=False)
        raise ArgumentFaults(
            [Fault(e["loc"], e["type"], e["msg"], e["input"]) for e in found]
        ) from exc
    except (TypeError, ValueError) as exc:
        raise ArgumentFaults([Fault((), "json", f"they are not JSON: {exc}", None)]) from exc


class UntypedArguments:
    """Arguments of which only a JSON schema is known: another process checks them for good.

    Checked here: that all required ones are there, and none that the schema rules out.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema: dict[str, Any] = {"type": "object", "properties": {}, **schema}

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema as it was given."""
        return self._schema

    def validate(self, proposed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as they are; raise ``ArgumentFaults``."""
        known = cast("dict[str, Any]", self._schema["properties"])
        faults = [
            Fault((name,), "missing", "Field required", None)
            for name in self._schema.get("required", ())
            if name not in proposed
        ]
        for name, value in proposed.items():
            if name not in known:
                if self._schema.get("additionalProperties") is False:
                    text = "Extra inputs are not permitted"
                    faults.append(Fault((name,), "extra_forbidden", text, value))
                continue
            expected = known[name].get("type") if isinstance(known[name], dict) else None
            if isinstance(expected, str) and not _is_a(value, expected):
                text = f"Input should be of type {expected}"
                faults.append(Fault((name,), f"{_KINDS.get(expected, expected)}_type", text, value))
        if faults:
            raise ArgumentFaults(faults)
        return dict(proposed)


# Schema types by pydantic's names of them, so that both kinds of arguments are repaired alike.
_KINDS = {"array": "list", "object": "dict", "integer": "int"}
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "array": (list,),
    "object": (dict,),
    "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
}


def _is_a(value: object, expected: str) -> bool:
    types = _TYPES.get(expected)
    if types is None:
        return True
    if isinstance(value, bool) and expected != "boolean":
        return False
    if expected == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, types)


class _Schema(GenerateJsonSchema):
    """Without titles, which repeat the names and cost tokens in every request."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        made = super().typed_dict_schema(schema)
        made.pop("title", None)
        return made


def json_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the schema of what the adapter accepts, as it is shown to a model."""
    return adapter.json_schema(schema_generator=_Schema)


def _described(schema: dict[str, Any], parameters: Sequence[Parameter]) -> dict[str, Any]:
    properties: dict[str, dict[str, Any]] = schema.setdefault("properties", {})
    for parameter in parameters:
        shown = properties[parameter.name]
        if parameter.description:
            shown.setdefault("description", parameter.description)
        if parameter.has_default and parameter.default is not None:
            try:
                shown.setdefault("default", to_jsonable_python(parameter.default))
            except PydanticSerializationError:
                pass  # The function has its default all the same; the model need not see it.
    return schema
