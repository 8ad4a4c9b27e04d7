"""Conditions of steps: an expression over JSON values, without side effects, that always ends.

    input["total"] > 100 and steps["review"]["verdict"] == "ok"

``input`` is the run's input, ``steps`` the outputs of the steps in ``after`` by id; of a step that
was skipped it is null. The expression is in Python's syntax, evaluated by the library simpleeval
with what could be used against an engine taken away: attributes, formatting, powers, shifts,
comprehensions; and with a bound on what it may do (``condition_work``).
"""

from __future__ import annotations

import ast
import importlib
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import msgspec

from treadle.sdk import wording
from treadle.sdk.condition_work import TooMuch, Work
from treadle.sdk.errors import clause
from treadle.sdk.wording import Suggestions

_simpleeval: Any = importlib.import_module("simpleeval")  # It has no types.

OF_STEPS = ("input", "steps")
"""What the condition of a step may ask for."""
OF_EVENTS = ("event", *OF_STEPS)
"""What a match may ask for, of a step that waits for an event."""
_CONSTANTS = {"true": True, "false": False, "null": None}


def _length(value: object) -> int:
    return len(cast("Any", value)) if isinstance(value, (str, list, dict)) else 0


def _get(value: object, key: object, default: object = None) -> object:
    """Return what is at a key or an index, or the default if there is nothing."""
    try:
        return cast("Any", value)[key]
    except (KeyError, IndexError, TypeError):
        return default


def _remainder(left: object, right: object) -> object:
    if isinstance(left, str):
        raise TypeError("% is for numbers")
    return operator.mod(cast("Any", left), cast("Any", right))


_FUNCTIONS: dict[str, Callable[..., object]] = {
    "abs": abs,
    "float": float,
    "get": _get,
    "int": int,
    "len": _length,
    "max": max,
    "min": min,
    "round": round,
    "str": str,
}
_DEFAULTS: dict[type[ast.AST], Callable[..., object]] = _simpleeval.DEFAULT_OPERATORS
_OPERATORS: dict[type[ast.AST], Callable[..., object]] = {
    kind: function
    for kind, function in _DEFAULTS.items()
    if kind not in (ast.Pow, ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor, ast.Invert)
} | {ast.Mod: _remainder}
_NODES = (
    *(ast.Expression, ast.Name, ast.Load, ast.Constant, ast.UnaryOp, ast.BinOp, ast.BoolOp),
    *(ast.Compare, ast.IfExp, ast.Call, ast.Subscript, ast.List, ast.Tuple, ast.Dict, ast.Slice),
    *(ast.And, ast.Or),
)


class ConditionError(Exception):
    """A condition could not be evaluated: what it asked for is not there, or does not fit."""


def _evaluator(names: Mapping[str, object]) -> Any:
    """Return simpleeval on plain JSON data, with a bound on its work."""
    work = Work()
    operators, functions = work.bound(_OPERATORS, _FUNCTIONS)
    made: Any = _simpleeval.EvalWithCompoundTypes(
        operators=operators, functions=functions, names={**_CONSTANTS, **names}
    )
    handlers: dict[type[ast.AST], Callable[[Any], object]] = {
        kind: handler for kind, handler in made.nodes.items() if kind in _NODES
    }

    def step(node: ast.AST) -> object:
        # In the library's place: it looks through all data at each step, for what JSON has not.
        work.step()
        handler = handlers.get(type(node))
        if handler is None:
            raise ValueError(f"it uses {type(node).__name__}, which conditions have not")
        value = handler(node)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            work.touch(len(cast("Any", value)) >> 3)  # It is a copy.
        return value

    made._eval = step
    return made


def problems_of(
    text: str, after: tuple[str, ...], names: tuple[str, ...] = OF_STEPS
) -> Iterator[str]:
    """Yield what is wrong with a condition of a step that waits for these."""
    try:
        tree = parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
        reason = exc.msg if isinstance(exc, SyntaxError) else str(exc)
        yield f'it is not an expression: {clause(reason)}. Write one, for example input["n"] > 3.'
        return
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield f'it asks for .{node.attr}, and values have keys only. Write ["{node.attr}"].'
        elif isinstance(node, ast.Name):
            yield from _name(node.id, names, is_function=id(node) in functions)
        elif not isinstance(node, _NODES) and type(node) not in _OPERATORS:
            yield f"it uses {type(node).__name__}, which conditions have not. Let a step decide it."
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            yield from _step_name(node, after)


def evaluate(text: str, run_input: object, steps: Mapping[str, object], **more: object) -> bool:
    """Return whether a condition holds; raise ``ConditionError`` if that cannot be said."""
    return bool(value_of(text, run_input, steps, **more))


def value_of(text: str, run_input: object, steps: Mapping[str, object], **more: object) -> object:
    """Return what an expression of this language stands for; raise ``ConditionError``."""
    try:
        evaluator = _evaluator({"input": run_input, "steps": steps, **more})
        return cast("object", evaluator.eval(text, previously_parsed=parsed(text).body))
    except TooMuch as exc:
        raise ConditionError(
            f"condition {text} cannot be evaluated: {clause(exc)}. Let a step find out what it "
            "asks, and ask for its output."
        ) from exc
    except Exception as exc:  # Whatever the data brings about is the condition's.
        what = _missing(exc, text, run_input) or _told(exc)
        raise ConditionError(f"condition {text} cannot be evaluated: {what}") from exc


def _told(exc: Exception) -> str:
    what = f"nothing at {exc}" if isinstance(exc, (KeyError, IndexError)) else str(exc)
    return f'{what} ({type(exc).__name__}). Ask for what may be missing with get(value, "key").'


def _missing(exc: Exception, text: str, run_input: object) -> str:
    """Return what to do if the input itself lacks the key; nothing for any other fault."""
    key = exc.args[0] if isinstance(exc, KeyError) and exc.args else None
    if not isinstance(key, str) or not isinstance(run_input, dict) or key in run_input:
        return ""
    for node in ast.walk(parsed(text)):
        match node:
            case ast.Subscript(value=ast.Name(id="input"), slice=ast.Constant(value=asked)):
                if asked == key:
                    return (
                        f"the input has no {key!r} (KeyError). Defaults of a type are applied in "
                        f'handlers only: write get(input, "{key}", DEFAULT).'
                    )
            case _:
                pass
    return ""


def key_of(text: str, run_input: object, steps: Mapping[str, object]) -> str:
    """Return what a key stands for, as text: what is not a text is written as JSON.

    Raise ``ConditionError`` as ``value_of`` and ``as_key`` do.
    """
    return as_key(text, value_of(text, run_input, steps))


def as_key(text: str, value: object) -> str:
    """Return the value of a key as text; raise ``ConditionError`` for what JSON cannot write."""
    if isinstance(value, str):
        return value
    try:
        Work().walk(value)
        return msgspec.json.encode(value, order="sorted").decode()
    except (TooMuch, ValueError, TypeError, RecursionError) as exc:  # Too long, or too deep.
        raise ConditionError(
            f"key {text} gives {wording.shown(value)}, which is no key ({exc}). Name a shorter "
            "part of it."
        ) from exc


def compared(text: str) -> Iterator[tuple[str, object]]:
    """Yield each output that a condition compares with a constant: the step, and the constant."""
    if not text:
        return
    try:
        tree = parsed(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Compare(
                left=ast.Subscript(value=ast.Name(id="steps"), slice=ast.Constant(value=str(step))),
                ops=[ast.Eq() | ast.NotEq()],
                comparators=[ast.Constant(value=value)],
            ):
                yield step, value
            case ast.Compare(
                left=ast.Subscript(value=ast.Name(id="steps"), slice=ast.Constant(value=str(step))),
                ops=[ast.In() | ast.NotIn()],
                comparators=[ast.List(elts=items) | ast.Tuple(elts=items)],
            ):
                yield from ((step, each.value) for each in items if isinstance(each, ast.Constant))
            case _:
                pass


@lru_cache(maxsize=1_024)
def parsed(text: str) -> ast.Expression:
    """Return the syntax of an expression; raise ``SyntaxError`` or ``ValueError``."""
    return ast.parse(text.strip(), mode="eval")


def _name(name: str, names: tuple[str, ...], *, is_function: bool) -> Iterator[str]:
    known = tuple(_FUNCTIONS) if is_function else (*names, *_CONSTANTS)
    if name not in known:
        nearest = Suggestions().nearest(name, known)
        remedy = f"Did you mean {nearest!r}?" if nearest else f"Known are {', '.join(known)}."
        yield f"{wording.shown(name)} is not known. {remedy}"


def _step_name(node: ast.Subscript, after: tuple[str, ...]) -> Iterator[str]:
    assert isinstance(node.value, ast.Name)
    if node.value.id != "steps" or not isinstance(node.slice, ast.Constant):
        return
    name = node.slice.value
    if name not in after:
        yield (
            f"it asks for the output of {wording.shown(name)}, which is not in after. Add it there."
        )
