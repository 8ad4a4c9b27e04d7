"""Plain data into Structs: every fault at once, each with its path. Nothing unknown is ignored.

Reads the few kinds of types that a case is made of. A Struct with a ``short`` field may be written
as that field's value alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin

import msgspec
import msgspec.structs

from treadle.sdk import wording
from treadle.sdk.errors import Problem
from treadle.sdk.wording import Suggestions

_UNREADABLE = object()
_EXPECTED: dict[object, str] = {str: "text", int: "a whole number", float: "a number"}


class PlainReader:
    """Reads values of Struct types and collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._suggestions = Suggestions()

    def read(self, value: object, cls: type[msgspec.Struct], path: str) -> Any:
        """Return the Struct, or ``None`` after reporting what is wrong."""
        found = self._value(value, cls, path)
        return None if found is _UNREADABLE else found

    def _value(self, value: object, kind: Any, path: str) -> object:
        if kind is Any:
            return value
        origin, args = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            return self._value(value, next(a for a in args if a is not NoneType), path)
        if origin is tuple:
            return self._items(value, args[0], path)
        if origin is dict:
            return self._mapping(value, args[1], path)
        if origin is Literal:
            return self._choice(value, args, path)
        if kind not in _EXPECTED:
            return self._struct(value, cast("type[msgspec.Struct]", kind), path)
        try:
            return cast("object", msgspec.convert(value, kind, strict=True))
        except msgspec.ValidationError:
            return self._expect(path, _EXPECTED[kind], value)

    def _struct(self, value: object, cls: type[msgspec.Struct], path: str) -> object:
        known = _fields_of(cls)
        short: str = getattr(cls, "short", "")
        if short and isinstance(value, str):
            value = {short: value}
        if not isinstance(value, Mapping):
            return self._expect(path, f"a mapping with {', '.join(known)}", value)
        fields = cast("Mapping[object, object]", value)
        sound = True
        for key in fields:
            if key not in known:
                sound = self._unknown(path, key, known)
        values: dict[str, Any] = {}
        for name, info in known.items():
            where = wording.field(path, name)
            if name in fields:
                values[name] = self._value(fields[name], info.type, where)
                sound = sound and values[name] is not _UNREADABLE
            elif info.required:
                sound = self._report(where, f"it is required, and missing. Give {name}.")
        return cls(**values) if sound else _UNREADABLE

    def _items(self, value: object, kind: Any, path: str) -> object:
        if not isinstance(value, list):
            return self._expect(path, "a list", value)
        items = [
            self._value(each, kind, wording.item(path, i))
            for i, each in enumerate(cast("list[object]", value))
        ]
        return _UNREADABLE if any(each is _UNREADABLE for each in items) else tuple(items)

    def _mapping(self, value: object, kind: Any, path: str) -> object:
        if not isinstance(value, Mapping):
            return self._expect(path, "a mapping", value)
        read = {
            str(key): self._value(each, kind, wording.field(path, wording.key(key)))
            for key, each in cast("Mapping[object, object]", value).items()
        }
        return _UNREADABLE if any(each is _UNREADABLE for each in read.values()) else read

    def _choice(self, value: object, options: tuple[str, ...], path: str) -> object:
        if isinstance(value, str) and value in options:
            return value
        nearest = self._suggestions.nearest(value, options)
        remedy = f"Did you mean {nearest!r}?" if nearest else "Choose one of them."
        names = ", ".join(options)
        self._report(path, f"{wording.shown(value)} is none of {names}. {remedy}")
        return _UNREADABLE

    # ---------------------------------------------------------------- problems

    def _unknown(self, path: str, key: object, known: Mapping[str, object]) -> bool:
        nearest = self._suggestions.nearest(key, known)
        remedy = f"Did you mean {nearest!r}?" if nearest else f"Known are: {', '.join(known)}."
        where = wording.field(path, wording.key(key))
        return self._report(where, f"there is no such field here. {remedy}")

    def _expect(self, path: str, expected: str, value: object) -> object:
        got = "nothing" if value is None else f"{wording.shown(value)} ({type(value).__name__})"
        self._report(path, f"expected {expected}, got {got}. Correct it.")
        return _UNREADABLE

    def _report(self, path: str, text: str) -> bool:
        self.problems.append(Problem(path, text))
        return False


@cache
def _fields_of(cls: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {info.name: info for info in msgspec.structs.fields(cls)}
