"""Does a value fit a JSON schema? As far as can be said for sure, before a worker has it.

Of a run that is started by name only the stored definition is known, with the schema of its
input. The worker's reader decides in the end, and takes some things that a schema does not say: a
text for a number, a number for an amount. So a problem is a field that is missing or unknown, an
object for a list, a word that is none of those listed, a number out of its bounds. What is not
known here (``pattern``, ``format``, ``not``) is no objection. Draft 2020-12, with references within
the schema.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from treadle.sdk import wording

DEPTH_MAX = 64
"""Of references that lead to references: a schema may refer to itself."""
PROBLEMS_MAX = 10
"""Told of one value; whoever mends ten has understood."""

Schema = Mapping[str, Any]
_Bounds = dict[str, tuple[str, Callable[[float, float], bool]]]
_OF_NUMBERS: _Bounds = {
    "minimum": ("at least", operator.lt),
    "maximum": ("at most", operator.gt),
    "exclusiveMinimum": ("more than", operator.le),
    "exclusiveMaximum": ("less than", operator.ge),
}
_OF_TEXTS: _Bounds = {
    "minLength": ("at least", operator.lt),
    "maxLength": ("at most", operator.gt),
}
_OF_LISTS: _Bounds = {"minItems": ("at least", operator.lt), "maxItems": ("at most", operator.gt)}
_ROOM = frozenset({"object", "array", "null"})
"""Types that no reader takes for another one; numbers, texts and booleans are."""
_BOOLEANS = frozenset({"true", "false", "t", "f", "yes", "no", "y", "n", "on", "off", "0", "1"})


def problems(value: object, schema: Schema) -> tuple[str, ...]:
    """Return why the value cannot fit, each beginning with its place; nothing if it may."""
    found: list[str] = []
    for problem in _Check(schema).of(value, schema, "", 0):
        found.append(problem)
        if len(found) == PROBLEMS_MAX:
            break
    return tuple(found)


def problems_of_list(values: object, schema: Schema | None) -> tuple[str, ...]:
    """Return why a value is no list of values that may fit, or an empty one."""
    if not isinstance(values, list):
        return (f"it is {_named(values)}, and must be array: the inputs of a batch",)
    if not values:
        return ("it is an empty list, and a batch has one input at least",)
    found: list[str] = []
    for number, value in enumerate(cast("list[object]", values)):
        found += (f"{wording.item('', number)}: {each}" for each in problems(value, schema or {}))
        if len(found) >= PROBLEMS_MAX:
            break
    return tuple(found[:PROBLEMS_MAX])


class _Check:
    def __init__(self, root: Schema) -> None:
        self._root = root

    def of(self, value: object, schema: object, path: str, depth: int) -> Iterator[str]:
        if not isinstance(schema, Mapping) or depth > DEPTH_MAX:
            return
        schema = cast("Schema", schema)
        if (reference := schema.get("$ref")) is not None:
            yield from self.of(value, self._referred(reference), path, depth + 1)
        types = _types(schema)
        if types and not any(_may_be(value, each, schema) for each in types):
            yield f"{_at(path)} is {_named(value)}, and must be {' or '.join(types)}"
            return
        listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(listed, list) and value not in cast("list[object]", listed):
            have = ", ".join(wording.shown(each) for each in cast("list[object]", listed))
            yield f"{_at(path)} is {wording.shown(value)}, and must be one of {have}"
            return
        for kind in ("anyOf", "oneOf"):
            yield from self._one_of(value, schema.get(kind), path, depth + 1)
        for part in _list(schema.get("allOf")):
            yield from self.of(value, part, path, depth + 1)
        yield from _bounds(value, schema, path)
        if isinstance(value, dict):
            yield from self._object(cast("dict[str, object]", value), schema, path, depth + 1)
        elif isinstance(value, list):
            yield from self._array(cast("list[object]", value), schema, path, depth + 1)

    def _one_of(self, value: object, options: object, path: str, depth: int) -> Iterator[str]:
        found = [list(self.of(value, each, path, depth)) for each in _list(options)]
        if found and all(found):
            # Of what comes nearest: not of another type, then the fewest faults.
            yield from min(
                found, key=lambda each: (each[0].startswith(f"{_at(path)} is"), len(each))
            )

    def _object(
        self, value: dict[str, object], schema: Schema, path: str, depth: int
    ) -> Iterator[str]:
        fields = _mapping(schema.get("properties"))
        for name in _list(schema.get("required")):
            if name in value:
                continue
            yield f"{wording.field(path, wording.key(name))} is required and not there"
        others = schema.get("additionalProperties", True)
        patterns = "patternProperties" in schema
        for name, item in value.items():
            where = wording.field(path, wording.key(name))
            if name in fields:
                yield from self.of(item, fields[name], where, depth)
            elif others is False and not patterns:
                near = wording.Suggestions().nearest(name, fields)
                hint = f"did you mean {near!r}?" if near else f"known are {', '.join(fields)}"
                yield f"{where} is no field of it: {hint}"
            elif not patterns:
                yield from self.of(item, others, where, depth)

    def _array(self, value: list[object], schema: Schema, path: str, depth: int) -> Iterator[str]:
        first = _list(schema.get("prefixItems"))
        for number, item in enumerate(value):
            of = first[number] if number < len(first) else schema.get("items", True)
            yield from self.of(item, of, wording.item(path, number), depth)

    def _referred(self, reference: object) -> object:
        found: object = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        for part in filter(None, reference[1:].split("/")):
            name = part.replace("~1", "/").replace("~0", "~")
            found = _mapping(found).get(name, True)
        return found


def _bounds(value: object, schema: Schema, path: str) -> Iterator[str]:
    """Yield the bounds that a number, a text or a list does not keep."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        size, unit, bounds = value, "", _OF_NUMBERS
    elif isinstance(value, (str, list)):
        is_text = isinstance(value, str)
        size, unit = len(cast("str", value)), " characters" if is_text else " items"
        bounds = _OF_TEXTS if is_text else _OF_LISTS
    else:
        return
    for name, (words, is_broken) in bounds.items():
        bound = schema.get(name)
        is_bound = isinstance(bound, (int, float)) and not isinstance(bound, bool)
        if is_bound and is_broken(size, cast("float", bound)):
            yield f"{_at(path)} is {size}{unit}, and must be {words} {bound}{unit}"


def _types(schema: Schema) -> list[str]:
    given = schema.get("type")
    names: list[object] = [given] if isinstance(given, str) else _list(given)
    return [name for name in names if isinstance(name, str)]


def _may_be(value: object, name: str, schema: Schema) -> bool:
    """Return False if no reader takes the value for that type."""
    is_type = _named(value)
    if name in _ROOM or is_type in _ROOM or is_type == name:
        return is_type == name
    match name:
        case "string":
            return "format" in schema  # An amount, a time: some are read from numbers.
        case "boolean":
            return value in (0, 1) or str(value).lower() in _BOOLEANS
        case "integer" if isinstance(value, float):
            return value.is_integer()
        case "integer" | "number":
            return not isinstance(value, str) or _is_number(value)
        case _:
            return True


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _named(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


def _at(path: str) -> str:
    return path or "it"


def _mapping(value: object) -> Schema:
    return cast("Schema", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return cast("list[object]", value) if isinstance(value, list) else []
