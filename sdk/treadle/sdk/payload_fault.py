"""Where in a value lies what JSON cannot hold, so that an error can name the place."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

import msgspec

from treadle.sdk import models
from treadle.sdk.limits import DEPTH_MAX, WORD_CHARS_MAX

_CORRECT = "Correct the value, or pass text or None in its place"
_CONVERT = (
    "Use a msgspec Struct, a dataclass, a pydantic model or plain JSON types, or pass a reference "
    "instead of the thing itself"
)

_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]", re.DOTALL)

Fault = tuple[str, str]
"""Why, and what to do next."""


@dataclasses.dataclass(slots=True)
class _Key:
    """Stands among the leaves for a key of a mapping."""

    key: object


def non_finite_in(value: object) -> Fault | None:
    """Return where the value holds NaN or Infinity, if it does."""
    if _is_surely_finite(value):
        return None
    for path, leaf in _leaves(value, "", 0):
        if isinstance(leaf, float) and not math.isfinite(leaf):
            return f"{path or 'it'} is {leaf}, which JSON cannot hold", _CORRECT
    return None


def _is_surely_finite(value: object) -> bool:
    """Find out cheaply, and now and then too cautiously.

    MessagePack keeps such a number as it is: the mark of a float, then an exponent of ones. Other
    data may hold the same bytes, so what is found has to be looked at.
    """
    try:
        raw = msgspec.msgpack.encode(value, enc_hook=models.to_fields)
    except (TypeError, ValueError, ArithmeticError, msgspec.MsgspecError):
        return False
    return _NOT_FINITE.search(raw) is None


def unencodable_in(value: object, encoder: msgspec.json.Encoder) -> Fault | None:
    """Return where the value holds what the encoder refuses, if one part of it is to blame."""
    for path, leaf in _leaves(value, "", 0):
        is_key = isinstance(leaf, _Key)
        try:
            encoder.encode({leaf.key: None} if isinstance(leaf, _Key) else leaf)
        except UnicodeEncodeError:
            return f"{path or 'it'} holds half of a character (a lone surrogate)", _CORRECT
        except (TypeError, ValueError, ArithmeticError):
            kind = type(leaf.key if isinstance(leaf, _Key) else leaf).__name__
            use = "cannot be a key in JSON" if is_key else "has no JSON form"
            return f"{path or 'it'} is of type {kind}, which {use}", _CONVERT
    return None


def _leaves(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    """Yield what a value is made of, with paths such as ``items[2].price``."""
    parts = _parts(value) if depth <= DEPTH_MAX else ()
    if parts is None:
        yield path, value
        return
    for step, part in parts:
        yield from _leaves(part, f"{path}{step}".removeprefix("."), depth + 1)


def _parts(value: object) -> Iterable[tuple[str, object]] | None:
    if models.is_model(value):
        try:
            return [("", models.to_fields(value))]
        except ValueError:
            return None
    if isinstance(value, Mapping):
        return _entries(cast("Mapping[object, object]", value))
    if isinstance(value, (list, tuple, set, frozenset)):
        items = cast("Iterable[object]", value)
        return ((f"[{i}]", item) for i, item in enumerate(items))
    if isinstance(value, msgspec.Struct):
        return _attributes(value, value.__struct_fields__)
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, _Key)):
        return _attributes(value, [field.name for field in dataclasses.fields(value)])
    return None


def _entries(value: Mapping[object, object]) -> Iterator[tuple[str, object]]:
    for key, item in value.items():
        step = f".{key}" if isinstance(key, str) and key.isprintable() else f"[{key!r}]"
        step = step[:WORD_CHARS_MAX]
        yield step, _Key(key)
        yield step, item


def _attributes(value: object, names: Iterable[str]) -> Iterator[tuple[str, object]]:
    return ((f".{name}", getattr(value, name, None)) for name in names)
