"""Words for problems: paths, values as they are shown, the nearest spelling."""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from treadle.sdk.errors import UserError
from treadle.sdk.limits import SUGGESTIONS_MAX, WORD_CHARS_MAX

Word = TypeVar("Word", bound=str)
CUT = "it holds half of a character (a lone surrogate). Remove it."

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = WORD_CHARS_MAX
_repr.maxlevel = 2


def field(path: str, name: str) -> str:
    """Return the path of a field: ``steps[2]`` and ``after`` give ``steps[2].after``."""
    return f"{path}.{name}" if path else name


def item(path: str, index: int) -> str:
    """Return the path of an item: ``steps`` and 2 give ``steps[2]``."""
    return f"{path}[{index}]"


def places(path: str) -> Iterator[str]:
    """Yield the path and every path it lies within, the whole definition (``""``) last."""
    yield path
    for i in range(len(path) - 1, 0, -1):
        if path[i] in ".[":
            yield path[:i]
    yield ""


def order(path: str) -> list[tuple[int, str]]:
    """Return a sort key by which ``steps[2]`` comes before ``steps[10]``."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)
    ]


def shown(value: object) -> str:
    """Return the value as text of bounded length."""
    try:
        return _repr.repr(value)
    except ValueError:  # An integer of more than 4300 digits has no repr.
        return f"a huge {type(value).__name__}"


def is_cut(text: str) -> bool:
    """True for a text that holds half of a character, so that it cannot be stored."""
    return any("\ud800" <= char <= "\udfff" for char in text)


def key(word: object) -> str:
    """Return a key as a path shows it: itself, if that is short and printable."""
    if isinstance(word, str) and len(word) <= WORD_CHARS_MAX and word.isprintable():
        return word
    return shown(word)


class Suggestions:
    """Finds the nearest spelling, for a bounded number of words."""

    def __init__(self) -> None:
        self._left = SUGGESTIONS_MAX

    def nearest(self, word: object, known: Iterable[str]) -> str:
        """Return the known word most like this one, or nothing."""
        if not isinstance(word, str) or len(word) > WORD_CHARS_MAX or self._left == 0:
            return ""
        self._left -= 1
        lower = {name.lower(): name for name in known if len(name) <= WORD_CHARS_MAX}
        matches = difflib.get_close_matches(word.lower(), lower, n=1)
        return lower[matches[0]] if matches else ""


def one_of(word: str, known: tuple[Word, ...], refused: Callable[[str], str]) -> Word:
    """Return the word if it is known; raise ``UserError`` otherwise.

    Its text is what ``refused`` makes of a hint, which is empty if no known word is like this one.
    """
    for each in known:
        if each == word:
            return each
    nearest = Suggestions().nearest(word, known)
    raise UserError(refused(f"Did you mean {nearest!r}?" if nearest else ""))


def items_text(done: int, items: int, failed: int) -> str:
    """Return how far a map is."""
    text = f"{done} of {items} items"
    return f"{text}, {failed} failed" if failed else text
