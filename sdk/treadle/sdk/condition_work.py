"""How much one evaluation of a condition may do, counted by the size of what it looks at.

Units are counted before the work is done, so nothing that is refused has cost its time:

    numbers     the digits of the one by those of the other; none is longer than ``DIGITS_MAX``
    texts       one for some tens of characters
    lists       one for each value in them, at any depth, as often as it is looked at
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

UNITS_MAX = 1_000_000
"""A unit is what it takes to compare two values: an evaluation ends within tenths of a second."""
STEPS_MAX = 1_000
"""Steps of one evaluation. A condition of a thousand characters cannot have so many; it is what
is left when a library's bounds are not what they seem."""
DIGITS_MAX = 4_300
"""Digits of a whole number: as many as Python reads and writes."""

_NUMBER_END = 10**DIGITS_MAX
_BITS_MAX = _NUMBER_END.bit_length()
_TOO_LONG = f"it makes a number of more than {DIGITS_MAX:,} digits"
_SMALL, _SMALL_TEXT = 2**64, 16
_PLAIN = frozenset((float, bool, type(None)))
_SHORT_TEXT = 30_000
"""Characters of a text that Python may search by trying each place."""

_Function = Callable[..., object]


class TooMuch(Exception):
    """An evaluation takes too many steps, looks at too many values, or makes too large a number."""


class Work:
    """What one evaluation has done so far."""

    __slots__ = ("_steps", "_units")

    def __init__(self) -> None:
        self._steps = 0
        self._units = 0

    def step(self) -> None:
        """Count one part of the expression; raise ``TooMuch``."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise TooMuch(f"it takes more than {STEPS_MAX:,} steps")

    def touch(self, units: int) -> None:
        """Count work about to be done; raise ``TooMuch``."""
        self._units += units
        if self._units > UNITS_MAX:
            raise TooMuch(
                f"it would look at more than {UNITS_MAX:,} values, or at as much of long texts "
                "and numbers"
            )

    def walk(self, value: object, times: int = 1) -> None:
        """Count all that a value holds, each as often as it occurs; raise ``TooMuch``."""
        rest = [value]
        while rest:
            item = rest.pop()
            if isinstance(item, str):
                self.touch(times * (1 + (len(item) >> 4)))
            elif isinstance(item, int):
                self.touch(times * (1 + _product(item, item)))
            elif isinstance(item, dict):
                named = cast("dict[object, object]", item)
                self.touch(times)
                rest.append(list(named))
                rest.append(list(named.values()))
            elif isinstance(item, (list, tuple)):
                items = cast("list[object]", item)
                self.touch(times * (4 + len(items)))
                rest.extend(_large(items))
            else:
                self.touch(times)

    def bound(
        self, operators: Mapping[type[ast.AST], _Function], functions: Mapping[str, _Function]
    ) -> tuple[dict[type[ast.AST], _Function], dict[str, _Function]]:
        """Return operators and functions that count their work first."""
        counted = {
            kind: partial(_COUNTED[kind], self, function) if kind in _COUNTED else function
            for kind, function in operators.items()
        }
        named = {
            name: partial(_CALLED[name], self, function) if name in _CALLED else function
            for name, function in functions.items()
        }
        return counted, named


def _large(items: list[object]) -> list[object]:
    """Return what takes more than the unit that its place in a list takes."""
    if all(map(_PLAIN.__contains__, map(type, items))):
        return []
    return [
        each
        for each in items
        if (kind := type(each)) not in _PLAIN
        and not (kind is str and len(cast("str", each)) < _SMALL_TEXT)
        and not (kind is int and -_SMALL < cast("int", each) < _SMALL)
    ]


def _product(left: int, right: int) -> int:
    """Return the units of a multiplication, a division, or a change of base."""
    return (left.bit_length() * right.bit_length()) >> 15


def _checked(value: object) -> object:
    if isinstance(value, int) and abs(value) >= _NUMBER_END:
        raise TooMuch(_TOO_LONG)
    return value


def _calculated(work: Work, function: _Function, left: object, right: object) -> object:
    if isinstance(left, int) and isinstance(right, int):
        _checked(left)
        _checked(right)
        work.touch(_product(left, right))
        return _checked(function(left, right))
    made = function(left, right)  # Of texts and lists the library bounds the length.
    work.walk(made)
    return made


def _multiplied(work: Work, function: _Function, left: object, right: object) -> object:
    if isinstance(left, int) and isinstance(right, int) and left and right:
        bits = left.bit_length() + right.bit_length()  # The product has so many, or one less.
        if bits > _BITS_MAX + 1:
            raise TooMuch(_TOO_LONG)
    return _calculated(work, function, left, right)


def _compared(work: Work, function: _Function, left: object, right: object) -> object:
    if isinstance(left, str) and isinstance(right, str):
        work.touch(min(len(left), len(right)) >> 6)
    elif isinstance(left, (list, tuple, dict)) and isinstance(right, (list, tuple, dict)):
        first, second = cast("list[object]", left), cast("list[object]", right)
        if len(first) == len(second) or function not in (operator.eq, operator.ne):
            work.walk(min(first, second, key=len))
    return function(left, right)


def _sought(work: Work, function: _Function, what: object, where: object) -> object:
    if isinstance(where, str) and isinstance(what, str):
        tries = min(len(what), 100) if len(where) < _SHORT_TEXT else 6
        work.touch((len(where) * tries) >> 6)
    elif isinstance(where, (list, tuple)):
        items = cast("list[object]", where)
        if isinstance(what, (list, tuple, dict)):
            work.walk(items)
        else:
            size = len(what) >> 8 if isinstance(what, str) else 0
            size += what.bit_length() >> 10 if isinstance(what, int) else 0
            work.touch(len(items) * (1 + size))
    return function(what, where)


def _chosen(work: Work, function: _Function, *values: object) -> object:
    for value in values:
        if isinstance(value, str):
            work.touch(len(value))  # Its characters are what is chosen from.
        else:
            work.walk(value)
    return function(*values)


def _number(work: Work, function: _Function, *values: object) -> object:
    for value in values:
        if isinstance(value, str):
            digits = min(len(value), DIGITS_MAX)
            work.touch((len(value) >> 2) + (digits * digits >> 12))
    return _checked(function(*values))


def _text(work: Work, function: _Function, *values: object) -> object:
    for value in values:
        if not isinstance(value, str):
            work.walk(value, times=4)
    return function(*values)


def _rounded(work: Work, function: _Function, value: object, digits: object = None) -> object:
    if isinstance(value, int) and isinstance(digits, int):
        # Rounded to thousands is divided by a thousand, and the power is made first.
        if digits < -DIGITS_MAX:
            raise TooMuch(f"it rounds to a number of more than {DIGITS_MAX:,} digits")
        bits = value.bit_length() + 4 * max(0, -digits)
        work.touch(bits * bits >> 15)
    return _checked(function(value, digits))


_COUNTED: dict[type[ast.AST], Callable[..., object]] = {
    **dict.fromkeys((ast.Add, ast.Sub, ast.Div, ast.FloorDiv, ast.Mod), _calculated),
    ast.Mult: _multiplied,
    **dict.fromkeys((ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE), _compared),
    **dict.fromkeys((ast.In, ast.NotIn), _sought),
}
_CALLED: dict[str, Callable[..., object]] = {
    **dict.fromkeys(("min", "max"), _chosen),
    **dict.fromkeys(("int", "float"), _number),
    "round": _rounded,
    "str": _text,
}
