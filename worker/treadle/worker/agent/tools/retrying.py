"""Which failures of a tool may pass, and how long to wait for that. Pure."""

from __future__ import annotations

from typing import cast
from urllib.error import HTTPError, URLError

from treadle.worker.agent.tools.errors import TransientToolError

DELAYS_S = (0.5, 2.0, 8.0)
"""Before the second, third and every later attempt."""
JITTER_SHARE = 0.25
"""Up to a quarter more, so that parallel calls do not come back together."""
RETRY_AFTER_S_MAX = 60.0
"""Waiting longer inside a call would hold a worker: the model is told instead."""

_TOO_MANY_REQUESTS = 429

# Timeouts and broken connections of HTTP libraries, which do not derive from Python's own.
_LIBRARY_ERRORS = frozenset(
    {
        ("aiohttp", "ClientConnectionError"),
        ("httpcore", "NetworkError"),
        ("httpcore", "TimeoutException"),
        ("httpx", "TransportError"),
        ("httpx2", "TransportError"),
        ("requests", "ConnectionError"),
        ("requests", "Timeout"),
        ("urllib3", "TimeoutError"),
        ("urllib3", "ProtocolError"),
        ("urllib3", "NewConnectionError"),
    }
)
# A wrong address is no broken connection.
_PERMANENT = frozenset({("httpx", "UnsupportedProtocol"), ("httpx2", "UnsupportedProtocol")})


def is_transient(error: BaseException) -> bool:
    """True if the same call may succeed a little later."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(is_transient(inner) for inner in group.exceptions)
    if isinstance(error, (TransientToolError, TimeoutError, ConnectionError)):
        return True
    if status := http_status(error):
        return status == _TOO_MANY_REQUESTS or 500 <= status <= 599
    if isinstance(error, URLError) and isinstance(error.reason, BaseException):
        return is_transient(error.reason)
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return bool(kinds & _LIBRARY_ERRORS) and not kinds & _PERMANENT


def http_status(error: BaseException) -> int:
    """Return the HTTP status that the exception of some library carries, or 0."""
    if isinstance(error, HTTPError):
        return int(error.code)
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            value = getattr(holder, name, None)
            if isinstance(value, int) and 100 <= value <= 599:
                return int(value)
    return 0


def delay_s(error: BaseException | None, attempt: int, jitter: float) -> float | None:
    """Return the wait after the failed attempt (from 1), or ``None`` if it would be too long.

    ``jitter`` is a random number from 0 to 1.
    """
    own = DELAYS_S[min(attempt, len(DELAYS_S)) - 1] * (1 + JITTER_SHARE * jitter)
    asked = error.retry_after_s if isinstance(error, TransientToolError) else 0.0
    if asked > RETRY_AFTER_S_MAX:
        return None
    return max(own, asked)
