"""Which published events a step waits for: names of events, and what a match compares. Pure.

    event["order"]["id"] == input["order"]        ──> found by its value, among any number of steps
    event["total"] > input["limit"]               ──> asked of every step that waits

A match is a condition with ``event`` beside ``input`` and ``steps``. If it is an equality, or has
one among parts joined by ``and``, the steps that wait are kept by the value they wait for: an event
looks up its own value, and meets those few that may fit.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from typing import NamedTuple, cast

import msgspec

from treadle.sdk import conditions
from treadle.sdk.errors import UserError

NAME_CHARS_MAX = 128
NAME_PARTS_MAX = 8
NAME_PATTERN = (
    rf"[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*){{0,{NAME_PARTS_MAX - 1}}}"
)
"""Of the name of an event: words with dots between them, each a token of a subject."""
_NAME = re.compile(rf"{NAME_PATTERN}\Z")
MISSING = object()
"""What an event has not."""

Path = tuple[str | int, ...]


class Equality(NamedTuple):
    """An equality that a match demands."""

    path: Path
    """Keys and indices to the value in the event."""
    other: str
    """An expression over ``input`` and ``steps``."""
    is_all: bool
    """The match is this, and nothing else."""


def is_event_name(text: object) -> bool:
    """True when the text may name an event."""
    return isinstance(text, str) and len(text) <= NAME_CHARS_MAX and _NAME.match(text) is not None


def check_event_name(text: object) -> str:
    """Return the text if it may name an event; raise ``UserError`` otherwise."""
    if is_event_name(text):
        return cast("str", text)
    raise UserError(name_problem(text))


def name_problem(text: object) -> str:
    """Return why a text cannot name an event, and what to do."""
    shown = repr(text)[: NAME_CHARS_MAX + 2]
    return (
        f"event name {shown} is not valid: 1 to {NAME_PARTS_MAX} words of letters, digits, _ and - "
        f"are allowed, with dots between them, {NAME_CHARS_MAX} characters in all, because it "
        "becomes part of a subject. Choose a name such as 'order.paid'."
    )


def equality(match: str) -> Equality | None:
    """Return the first equality that the match demands of an event; None if there is none."""
    if not match:
        return None
    body = conditions.parsed(match).body
    parts = body.values if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And) else [body]
    for part in parts:
        if not isinstance(part, ast.Compare) or [type(op) for op in part.ops] != [ast.Eq]:
            continue
        for side, other in ((part.left, part.comparators[0]), (part.comparators[0], part.left)):
            path = _path(side)
            if path and "event" not in _names(other):
                return Equality(path, ast.unparse(other), len(parts) == 1)
    return None


def names_in(match: str) -> frozenset[str]:
    """Return which of event, input and steps a match asks for."""
    return frozenset(_names(conditions.parsed(match))) if match else frozenset()


def at(event: object, path: Path) -> object:
    """Return what an event has at a path; ``MISSING`` if nothing."""
    for key in path:
        if isinstance(event, dict) and isinstance(key, str):
            event = cast("dict[str, object]", event).get(key, MISSING)
        elif isinstance(event, list) and isinstance(key, int):
            items = cast("list[object]", event)
            event = items[key] if -len(items) <= key < len(items) else MISSING
        else:
            return MISSING
    return event


def fits(match: str, event: object, run_input: object, steps: Mapping[str, object]) -> bool:
    """True if the match holds; one that cannot be asked of this event does not."""
    if not match:
        return True
    try:
        return conditions.evaluate(match, run_input, steps, event=event)
    except conditions.ConditionError:
        return False


def path_key(path: Path) -> str:
    """Return the token that stands for a path."""
    return hashlib.sha256(msgspec.json.encode(path)).hexdigest()[:16]


def value_key(value: object) -> str:
    """Return the token that stands for a value: the same for values that are equal."""
    raw = msgspec.json.encode(_canonical(value), order="sorted")
    return hashlib.sha256(raw).hexdigest()[:32]


def _canonical(value: object) -> object:
    """Return the value with what Python takes for equal made the same: 1, 1.0 and true."""
    match value:
        case bool():
            return str(int(value))
        case float() if value.is_integer():
            return str(int(value))
        case int():
            return str(value)
        case str():
            return f"'{value}"
        case list():
            return [_canonical(each) for each in cast("list[object]", value)]
        case dict():
            members = cast("dict[str, object]", value)
            return {key: _canonical(each) for key, each in members.items()}
        case _:
            return value


def _path(node: ast.expr) -> Path:
    """Return the path of an expression such as ``event["a"][0]``; empty for any other."""
    keys: list[str | int] = []
    while isinstance(node, ast.Subscript):
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if not isinstance(key, (str, int)) or isinstance(key, bool):
            return ()
        keys.append(key)
        node = node.value
    is_event = isinstance(node, ast.Name) and node.id == "event"
    return tuple(reversed(keys)) if is_event else ()


def _names(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
