"""Named points at which a process can be made to die, stop or wait; off unless asked for.

``TREADLE_FAILPOINTS="engine.register-stored=kill@3;worker.checkpoint-stored=pause:1.5"``
kills the process with SIGKILL the third time it reaches the first point, and holds it for 1.5 s
the first time it reaches the second. Actions: ``kill``, ``stop`` (SIGSTOP), ``pause:SECONDS``
(blocks the thread). ``@n`` is the n-th time, 1 by default; ``@n+`` the n-th and every later one.

The crash tests use it to hit one window exactly, with real processes and a real server.
"""

from __future__ import annotations

import os
import signal
import time

_ENV = "TREADLE_FAILPOINTS"


class _Point:
    __slots__ = ("action", "argument", "at", "count", "repeat")

    def __init__(self, action: str, argument: float, at: int, repeat: bool) -> None:
        self.action = action
        self.argument = argument
        self.at = at
        self.repeat = repeat
        self.count = 0


def _parse(text: str) -> dict[str, _Point]:
    points: dict[str, _Point] = {}
    for item in filter(None, (part.strip() for part in text.split(";"))):
        name, _, spec = item.partition("=")
        action, _, at = spec.partition("@")
        repeat = at.endswith("+")
        kind, _, argument = action.partition(":")
        points[name] = _Point(kind, float(argument or 0), int(at.rstrip("+") or 1), repeat)
    return points


_points = _parse(os.environ.get(_ENV, ""))
enabled = bool(_points)


def reach(name: str) -> None:
    """Pass the named point: nothing happens unless the environment asks for it."""
    if not enabled:
        return
    point = _points.get(name)
    if point is None:
        return
    point.count += 1
    if point.count != point.at and not (point.repeat and point.count > point.at):
        return
    match point.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "pause":
            time.sleep(point.argument)
        case other:
            raise ValueError(f"unknown failpoint action {other!r}")
