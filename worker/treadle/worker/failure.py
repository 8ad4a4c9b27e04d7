"""An exception as data: its name, a bounded text, and whether trying again can help."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import cast

from treadle.sdk.errors import HandlerError, InvalidPayload, NonRetryable, Retryable
from treadle.sdk.messages import Failure

MESSAGE_CHARS_MAX = 2_000
"""Longer messages are usually a whole response body; its beginning names the fault."""
TRACEBACK_CHARS_MAX = 8_000
"""Travels in an event and in the next attempt's task, so it must stay small beside a payload."""
RETRY_AFTER_S_MAX = 7 * 24 * 3600.0
"""A week: no service asks for more, and a mistyped unit does."""

# What the handler's code got wrong comes out the same the next time.
_FINAL = (NonRetryable, HandlerError, InvalidPayload)


def describe(error: BaseException) -> Failure:
    """Return the failure that an exception stands for."""
    causes = tuple(_leaves(error))
    after_s = max((_after_s(cause) for cause in causes), default=0.0)
    return Failure(
        type=type(error).__name__,
        message=bounded(_text(error), MESSAGE_CHARS_MAX),
        retryable=not any(isinstance(cause, _FINAL) for cause in causes),
        retry_after_ms=round(after_s * 1000),
        traceback=bounded(_traceback(error), TRACEBACK_CHARS_MAX),
    )


def bounded(text: str, chars_max: int) -> str:
    """Return the text, storable as UTF-8, with its middle cut out if it is too long."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= chars_max:
        return text
    half = (chars_max - 40) // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group, so that a task group does not hide a ``NonRetryable``."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _after_s(error: BaseException) -> float:
    if not isinstance(error, Retryable) or not math.isfinite(error.after_s):
        return 0.0
    return min(max(float(error.after_s), 0.0), RETRY_AFTER_S_MAX)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 — a user's __str__ may raise anything
        return f"(its text cannot be read: {type(broken).__name__})"


def _traceback(error: BaseException) -> str:
    start = _after_own_frames(error.__traceback__)
    try:
        # The newest frames say most; a recursion has a thousand of them.
        lines = traceback.format_exception(type(error), error, start, limit=-30)
    except Exception as broken:  # noqa: BLE001 — it calls a user's __str__ too
        return f"(its traceback cannot be formatted: {type(broken).__name__})"
    return "".join(lines)


def _after_own_frames(start: TracebackType | None) -> TracebackType | None:
    """Skip the frames of this package that lead to the handler, unless nothing else is left."""
    inner = start
    while inner is not None and inner.tb_frame.f_globals.get("__package__") == __package__:
        inner = inner.tb_next
    return inner or start
