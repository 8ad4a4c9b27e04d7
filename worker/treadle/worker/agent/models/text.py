"""Text and JSON as a model sends them: checked strictly, and free of lone surrogates. Pure.

A JSON escape may name half of a character. Such a half cannot be encoded as UTF-8: a conversation
that holds one can be neither stored nor sent again.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

CHARS_PER_TOKEN = 3.5
"""For estimates where a provider's own count is missing."""


class MalformedAnswer(ValueError):
    """The answer is not what the protocol says."""


def whole_characters(text: str) -> str:
    """Return the text with its halves joined, and halves that are alone replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean(value: Any) -> Any:
    """Return the JSON value with whole characters in all its strings and keys."""
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, list):
        return [clean(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {
            clean(key): clean(item)
            for key, item in value.items()  # pyright: ignore[reportUnknownVariableType]
        }
    return value


class Halves:
    """Joins the halves of characters that were split between two deltas of a text."""

    def __init__(self) -> None:
        self._half = ""

    def push(self, text: str) -> str:
        """Return what can be given out now; a first half at the end is kept for the next."""
        text = self._half + text
        self._half = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return whole_characters(text)


def parse_json(raw: str | bytes, what: str) -> Any:
    """Return the value. Raises ``MalformedAnswer`` for anything but strict JSON."""
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise MalformedAnswer(f"{what} is no JSON ({exc}): {excerpt(raw)}") from exc


def parse_object(raw: str | bytes, what: str) -> dict[str, Any]:
    """Return the JSON object. Raises ``MalformedAnswer`` for anything else."""
    value = parse_json(raw, what)
    if not isinstance(value, dict):
        raise MalformedAnswer(f"{what} is no JSON object: {excerpt(raw)}")
    return value  # pyright: ignore[reportUnknownVariableType]


def count(value: object) -> int:
    """Return the number of tokens that an answer states, 0 for what is no such number."""
    return value if isinstance(value, int) and value > 0 else 0


def estimated_tokens(chars: int) -> int:
    """Return about how many tokens so many characters are."""
    return math.ceil(chars / CHARS_PER_TOKEN)


def excerpt(raw: str | bytes, chars_max: int = 200) -> str:
    """Return the start of what was received, for a message."""
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return repr(text if len(text) <= chars_max else f"{text[:chars_max]}…")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
