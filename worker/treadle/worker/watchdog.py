"""Notices that the event loop stands still, and names the line that holds it.

The loop stamps the time a few times a second. Another thread compares, and looks at the stack of
the loop's thread while it is still blocked. Code that keeps the interpreter's lock stops that
thread too, and is then only seen afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import sysconfig
import threading
import time
import traceback
from types import FrameType
from typing import Any, NamedTuple

_log = logging.getLogger("treadle.worker")

STAMP_S = 0.1
STALL_REPORT_S = 1.0
"""Above any pause of a garbage collection or a busy machine, below what a user notices."""
STACK_FRAMES_MAX = 12

_LIBRARY = tuple({sysconfig.get_path(name) for name in ("stdlib", "platlib", "purelib")})


class Stall(NamedTuple):
    """What holds the loop."""

    at: str
    """``file:line``."""
    task: asyncio.Task[Any] | None
    """The asyncio task that does not let go; None if a callback does."""


class LoopWatch:
    """Watches one event loop; ``start`` on it, ``check`` from another thread."""

    def __init__(self) -> None:
        self._stamp_s = time.monotonic()
        self._thread_id = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reported_s = 0.0
        self._checked_s = time.monotonic()
        self.stall: Stall | None = None
        """What holds the loop, once ``check`` has found that it stands still."""

    def start(self) -> None:
        """Begin to stamp the time, on the loop that is to be watched."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._stamp()

    def stop(self) -> None:
        """End the stamps."""
        if self._timer is not None:
            self._timer.cancel()

    def stalled_s(self, now_s: float) -> float:
        """Return for how long the loop has not come round; 0 while it is on time."""
        late_s = now_s - self._stamp_s - STAMP_S
        return late_s if late_s > STAMP_S else 0.0

    def check(self, now_s: float) -> None:
        """Notice and log the beginning of a stall, once, and its end. From the other thread."""
        slept_s, self._checked_s = now_s - self._checked_s, now_s
        stalled_s = self.stalled_s(now_s)
        if self._reported_s and stalled_s < self._reported_s:
            _log.warning(
                "worker.loop-resumed: the event loop was blocked for more than %.1f s",
                self._reported_s,
            )
            self._reported_s = 0.0
            self.stall = None
        # If this thread did not run either, the process was stopped: nobody is to blame.
        if stalled_s < STALL_REPORT_S or slept_s > STALL_REPORT_S:
            return
        if not self._reported_s:
            self._report(stalled_s)
        self._reported_s = stalled_s

    def _report(self, stalled_s: float) -> None:
        # Documented, in spite of its name.
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        frame = frames.get(self._thread_id)
        if frame is None:
            return
        culprit = _user_frame(frame)
        where = f"{culprit.f_code.co_filename}:{culprit.f_lineno}"
        self.stall = Stall(where, asyncio.current_task(self._loop) if self._loop else None)
        stack = "".join(traceback.format_stack(frame, limit=STACK_FRAMES_MAX))
        _log.warning(
            "worker.loop-blocked: the event loop has been blocked for %.1f s at %s in %s. Every "
            "handler of this worker waits for it. Await instead, or make the handler a plain "
            "function (def), which runs in a thread.\n%s",
            stalled_s,
            where,
            culprit.f_code.co_name,
            stack,
        )

    def _stamp(self) -> None:
        assert self._loop is not None
        self._stamp_s = time.monotonic()
        self._timer = self._loop.call_later(STAMP_S, self._stamp)


def _user_frame(innermost: FrameType) -> FrameType:
    """Return the innermost frame that is no library's, or the innermost one."""
    frame: FrameType | None = innermost
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARY):
            return frame
        frame = frame.f_back
    return innermost
