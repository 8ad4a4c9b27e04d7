"""Mends arguments that models often get slightly wrong, where they do not fit and only there.

null for an optional parameter        left out
JSON text where a list or object is   parsed
{} where a list is expected           []
a bare text where a list is expected  a list of it
[text](target) where that is refused  target
1.0 where an integer is expected      1
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from treadle.worker.agent.tools.arguments import Fault

_LISTS = frozenset({"list_type", "tuple_type", "set_type", "frozen_set_type"})
_OBJECTS = frozenset({"dict_type", "model_type", "model_attributes_type", "dataclass_type"})
_LINK = re.compile(r"\s*\[[^\]]*\]\(\s*<?([^)\s<>]+)>?\s*\)\s*")
_UNREPAIRED = object()


class Repaired(NamedTuple):
    """Arguments after the repairs; whether they fit now is not known."""

    arguments: dict[str, Any]
    repairs: tuple[str, ...]


def repair(arguments: dict[str, Any], faults: Sequence[Fault]) -> Repaired:
    """Return a mended copy of the arguments, and what was mended. Pure."""
    mended = copy.deepcopy(arguments)
    repairs: list[str] = []
    done: set[tuple[str | int, ...]] = set()
    for fault in faults:
        place = _place(mended, fault.path)
        if not place or place in done:
            continue
        holder = _at(mended, place[:-1])
        value = holder[place[-1]]
        shown = ".".join(map(str, place))
        if value is None and isinstance(holder, dict):
            del holder[place[-1]]
            repairs.append(f"{shown}: null left out")
        else:
            better, how = _better(value, fault.kind)
            if better is _UNREPAIRED:
                continue
            holder[place[-1]] = better
            repairs.append(f"{shown}: {how}")
        done.add(place)
    return Repaired(mended, tuple(repairs))


def parse_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object that the text holds, or ``None``."""
    value = _parsed(text)
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _better(value: object, kind: str) -> tuple[object, str]:
    if kind in _LISTS:
        if value == {}:
            return [], "an empty object taken as an empty list"
        if isinstance(value, str):
            parsed = _parsed(value)
            if isinstance(parsed, list):
                return cast("list[object]", parsed), "JSON text parsed"
            return [value], "a single text put into a list"
    elif kind in _OBJECTS or kind.endswith("_type"):
        if isinstance(value, float) and kind == "int_type" and value.is_integer():
            return int(value), "written without a fraction"
        if isinstance(value, str) and kind in _OBJECTS and (found := parse_object(value)):
            return found, "JSON text parsed"
    if isinstance(value, str) and (link := _LINK.fullmatch(value)):
        return link.group(1), "a link replaced by its target"
    return _UNREPAIRED, ""


def _place(data: object, path: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return the part of the path that exists in the data; names of union members are left out."""
    place: list[str | int] = []
    for key in path:
        if isinstance(data, dict) and key in data:
            data = cast("dict[object, object]", data)[key]
        elif isinstance(data, list) and isinstance(key, int) and key < len(data):  # pyright: ignore[reportUnknownArgumentType]
            data = cast("list[object]", data)[key]
        else:
            continue
        place.append(key)
    return tuple(place)


def _at(data: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        data = data[key]
    return data


def _parsed(text: str) -> object:
    if text.lstrip()[:1] not in ("[", "{"):
        return _UNREPAIRED
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _UNREPAIRED
