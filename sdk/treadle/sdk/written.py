"""Data as a text has it, before it is known to be a definition; and how it becomes plain."""

from __future__ import annotations

import math
from typing import cast

from treadle.sdk import wording
from treadle.sdk.errors import Problem
from treadle.sdk.limits import DEPTH_MAX, NODES_MAX


class Pairs(list[tuple[str, object]]):
    """A mapping as it was written: a key may be there twice."""


class Malformed(Exception):
    """The text cannot be read any further."""

    def __init__(self, path: str, text: str) -> None:
        self.problem = Problem(path, text)
        super().__init__(repr(self.problem))


class Plain:
    """Turns written data into plain data and collects what it may not hold."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._nodes = 0

    def value(self, written: object, path: str = "", depth: int = 0) -> object:
        """Return plain data: dicts, lists, text, finite numbers, booleans and None."""
        self._count(path, depth)
        if isinstance(written, Pairs):
            return self._mapping(written, path, depth)
        if isinstance(written, list):
            items = cast("list[object]", written)
            return [
                self.value(item, wording.item(path, i), depth + 1) for i, item in enumerate(items)
            ]
        if isinstance(written, float) and not math.isfinite(written):
            self._report(path, f"{written} is not a number JSON has. Write a finite one.")
            return 0.0
        if isinstance(written, str) and not _is_text(written):
            self._report(path, "it holds half of a character (a lone surrogate). Remove it.")
            return ""
        return written

    def _mapping(self, written: Pairs, path: str, depth: int) -> dict[str, object]:
        plain: dict[str, object] = {}
        for key, item in written:
            where = wording.field(path, wording.key(key))
            if not _is_text(key):
                self._report(where, "the key holds half of a character. Remove it.")
            elif key in plain:
                self._report(where, "it is written twice in one mapping. Remove one of the two.")
            else:
                plain[key] = self.value(item, where, depth + 1)
        return plain

    def _count(self, path: str, depth: int) -> None:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise Malformed(
                "",
                f"it holds more than {NODES_MAX} values once its aliases are followed. Write it "
                "without aliases, or split the workflow.",
            )
        if depth > DEPTH_MAX:
            raise Malformed(path, f"it is nested deeper than {DEPTH_MAX} levels. Flatten it.")

    def _report(self, path: str, text: str) -> None:
        self.problems.append(Problem(path, text))


def _is_text(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)
