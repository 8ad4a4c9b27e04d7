"""How much of the window something fills, as far as can be known without the provider.

The provider's own count of the last call is the anchor; only what was added since is estimated,
from the characters of its JSON. Texts are cut here as well, because their bounds are tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from treadle.worker.agent.core.conversation import ModelRequest

CHARS_PER_TOKEN = 3.5
"""Fewer than English text has, so that an estimate errs towards compacting early."""
MEDIA_TOKENS = 1_600
"""What an image fills at most, whatever the length of its base64."""
ANSWER_TOKENS = 1_000
"""Of an answer whose length nobody knows yet; most bounds of answers are far above."""
RESULT_SHARE = 0.25
"""Of the context window: what one result may fill at most."""
_MEDIA = ("image", "document")


def of_chars(chars: int) -> int:
    """Return the estimate for so many characters of JSON."""
    return math.ceil(chars / CHARS_PER_TOKEN)


def to_chars(tokens: int) -> int:
    """Return how many characters fit into so many tokens."""
    return int(tokens * CHARS_PER_TOKEN)


def result_chars(context_window: int) -> int:
    """Return how many characters one result may have in a window of so many tokens."""
    return to_chars(int(context_window * RESULT_SHARE))


def chars_of(value: object) -> int:
    """Return the characters of the value's JSON; media count as what they fill."""
    if isinstance(value, str):
        return len(value) + 2
    if isinstance(value, Mapping):
        block = cast("Mapping[str, object]", value)
        if block.get("type") in _MEDIA and "source" in block:
            return to_chars(MEDIA_TOKENS)
        return 2 + sum(len(key) + 4 + chars_of(item) for key, item in block.items())
    if isinstance(value, (list, tuple)):
        return 2 + sum(chars_of(item) + 1 for item in cast("Sequence[object]", value))
    return len(msgspec.json.encode(value))


def estimate(value: Any) -> int:
    """Return the estimated tokens of messages, blocks or any other JSON value."""
    return of_chars(chars_of(value))


def estimate_request(request: ModelRequest) -> int:
    """Return the estimated tokens of all that a request sends."""
    return estimate(request.system) + estimate(request.tools) + estimate(request.messages)


def reserved(request: ModelRequest) -> int:
    """Return what is set aside for a call before it is made: its input, and a usual answer."""
    return estimate_request(request) + min(request.max_tokens, ANSWER_TOKENS)


def context_tokens(used: int, added_chars: int) -> int:
    """Return what the next request fills.

    ``used`` is what the last call alone read and wrote (``Usage.context_tokens``), never a sum
    over calls: each call reads the whole conversation again.
    """
    return used + of_chars(added_chars)


def cut(text: str, chars_max: int, what: str = "characters") -> str:
    """Return the text with its middle left out if it is longer than ``chars_max``.

    The notice in the middle counts; a text that was cut is short enough to be left alone.
    Characters are code points, so none is split.
    """
    if len(text) <= chars_max:
        return text
    notice = f"\n[... {len(text) - chars_max} or more {what} left out ...]\n"
    room = chars_max - len(notice)
    if room <= 0:
        return text[: max(0, chars_max)]
    head = room - room // 3
    return text[:head] + notice + text[len(text) - room // 3 :]
