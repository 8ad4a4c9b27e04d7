"""An exception as data: its name, a bounded text, and whether trying again can help.

And as one line of the worker's log, with the place in the user's code: whoever runs the worker
sees what failed without asking for the run.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import sysconfig
import traceback
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, cast

import msgspec

from treadle.sdk.errors import HandlerError, InvalidPayload, NonRetryable, Retryable, UserError
from treadle.sdk.messages import Failure

if TYPE_CHECKING:
    from treadle.worker.held import HeldTask
    from treadle.worker.verdict import Fail

_log = logging.getLogger("treadle.worker")

MESSAGE_CHARS_MAX = 2_000
"""Longer messages are usually a whole response body; its beginning names the fault."""
TRACEBACK_CHARS_MAX = 8_000
"""Travels in an event and in the next attempt's task, so it must stay small beside a payload."""
RETRY_AFTER_S_MAX = 7 * 24 * 3600.0
"""A week: no service asks for more, and a mistyped unit does."""

PLACE_CHARS_MAX = 300
"""Of a file's path and a line."""
LOG_CHARS_MAX = 400
"""Of a message in the log: a few lines of a terminal. The run keeps more of it."""

FRAMES_MAX = 30

_LIBRARY = tuple({sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")})

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


def place_of(error: BaseException | None) -> str:
    """Return file and line of the user's code where it was raised; of None, where this is called.

    The last frame outside of this package, if possible one that is no library's either.
    """
    # Of a group the first that was raised.
    raised = next(_leaves(error), error) if error is not None else None
    if raised is not None and raised.__traceback__ is not None:
        frames = [*traceback.walk_tb(raised.__traceback__)]
    else:
        frames = [*traceback.walk_stack(inspect.currentframe())][::-1]
    outside = [(f.f_code.co_filename, line) for f, line in frames if not _is_own(f)]
    users = [(file, line) for file, line in outside if not file.startswith(_LIBRARY)]
    for file, line in (users or outside)[-1:]:
        return f"{_shown(file)}:{line}"
    return ""


def place_of_function(function: object) -> str:
    """Return file and line of a function; nothing if it is not defined in Python."""
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    return f"{_shown(code.co_filename)}:{code.co_firstlineno}" if code is not None else ""


def placed(failure: Failure, place: str) -> Failure:
    """Return the failure with the place where it was raised."""
    return msgspec.structs.replace(failure, place=bounded(place, PLACE_CHARS_MAX))


def is_own_function(function: object) -> bool:
    """Return True for a handler that is part of this package, such as an agent's."""
    unwrapped = inspect.unwrap(function) if callable(function) else function
    module = getattr(unwrapped, "__module__", None) or type(unwrapped).__module__
    return str(module).startswith("treadle.")


def log_failure(held: HeldTask, verdict: Fail) -> None:
    """Log one failed attempt, on one line."""
    task, address, failure = held.task, held.address, verdict.failure
    message = " ".join(str(failure).split())
    if len(message) > LOG_CHARS_MAX:
        message = f"{message[: LOG_CHARS_MAX - 1]}…"
    _log.warning(
        "worker.attempt-failed type=%s run=%s step=%s%s attempt=%d: %s%s%s",
        address.type,
        address.run,
        address.step,
        f" iteration={task.iteration}" if task.loop else "",
        task.attempt,
        message,
        f" (at {failure.place})" if failure.place else "",
        "" if failure.retryable else "; it is not tried again",
        extra={"place": held.place, "error_type": failure.type},
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
    # What this package explains itself: how it found out, and from what, helps nobody.
    is_explained = isinstance(error, UserError)
    if is_explained and start is None:
        return ""
    try:
        # The newest frames say most; a recursion has a thousand of them.
        found = traceback.TracebackException(
            type(error), error, start or error.__traceback__, limit=-FRAMES_MAX
        )
        if is_explained:
            users = ((f, line) for f, line in traceback.walk_tb(start) if not _is_own(f))
            found.stack = traceback.StackSummary.extract(users, limit=-FRAMES_MAX)
        return "".join(found.format(chain=not is_explained))
    except Exception as broken:  # noqa: BLE001 — it calls a user's __str__ too
        return f"(its traceback cannot be formatted: {type(broken).__name__})"


def _after_own_frames(start: TracebackType | None) -> TracebackType | None:
    """Skip the frames of this package that lead to the handler; None if nothing else is left."""
    while start is not None and _is_own(start.tb_frame):
        start = start.tb_next
    return start


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("treadle.")


def _shown(file: str) -> str:
    """Return the path as one would type it in this directory."""
    try:
        near = os.path.relpath(file)
    except (OSError, ValueError):  # The directory is gone, or on another drive.
        return file
    return file if near.startswith(os.pardir) else near
