"""What a failed call of a model is: from statuses, error types and exceptions to a fault.

Only what is known to pass by itself is transient. What is not known is permanent: a repeated
call costs money, and the same question mostly gets the same refusal.
"""

from __future__ import annotations

import email.utils
import math
from collections.abc import Mapping

import httpx2

from treadle.worker.agent.core.conversation import (
    TRANSIENT,
    ErrorKind,
    ModelError,
    ModelFault,
    Usage,
)
from treadle.worker.agent.models.rate_headers import rate_limits

MESSAGE_CHARS_MAX = 1000
"""Some proxies answer with whole web pages."""

_BY_TYPE: dict[str, ErrorKind] = {
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "api_error": "server",
    "server_error": "server",
    "timeout_error": "timeout",
    "authentication_error": "auth",
    "permission_error": "auth",
    "billing_error": "other",
    "insufficient_quota": "other",
    "not_found_error": "invalid_request",
    "invalid_request_error": "invalid_request",
    "request_too_large": "context_exceeded",
    "context_length_exceeded": "context_exceeded",
    "exceed_context_size_error": "context_exceeded",
}
_BY_STATUS: dict[int, ErrorKind] = {
    401: "auth",
    402: "other",
    403: "auth",
    408: "timeout",
    409: "server",
    413: "context_exceeded",
    429: "rate_limited",
    501: "other",
    504: "timeout",
    529: "overloaded",
}
_TOO_LONG = (
    "prompt is too long",
    "exceed context limit",
    "maximum context length",
    "context length exceeded",
    "exceeds the available context size",
    "exceeds the context window",
)


def of_answer(
    who: str,
    status: int,
    text: str,
    *,
    error_type: str = "",
    code: str = "",
    headers: Mapping[str, str] | None = None,
    now_s: float = 0.0,
) -> ModelFault:
    """Return the fault of an error that the provider answered, also one inside a stream."""
    named = f"{error_type}: " if error_type else ""
    return ModelFault(
        kind=_kind(status, text, error_type, code),
        message=_bounded(f"{who} answered {status} ({named}{text or 'no message'})"),
        status=status,
        retry_after_s=retry_after_s(headers or {}, now_s),
        limits=rate_limits(headers or {}, now_s),
    )


def of_exception(who: str, exc: BaseException) -> ModelFault:
    """Return the fault of an exception of the HTTP client, or of what reads its answer."""
    said = f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__
    match exc:
        case ModelError():
            return exc.fault
        case UnicodeEncodeError():
            kind: ErrorKind = "invalid_request"
            said = (
                f"the request holds half of a character, which cannot be sent ({exc.reason}). "
                "Replace lone surrogates in what users and tools give"
            )
        case httpx2.TimeoutException() | TimeoutError():
            kind = "timeout"
        case (
            httpx2.UnsupportedProtocol()
            | httpx2.LocalProtocolError()
            | httpx2.TooManyRedirects()
            | httpx2.InvalidURL()
        ):
            kind = "other"
        case httpx2.HTTPError() | httpx2.StreamError() | OSError():
            kind = "network"
        case ValueError():
            kind = "malformed"
        case _:
            kind = "other"
    return ModelFault(kind=kind, message=_bounded(f"{who}: {said}"))


def failure(fault: ModelFault, usage: Usage, is_committed: bool) -> ModelError:
    """Return the error to raise, with what is known of the call so far."""
    return ModelError(
        ModelFault(
            kind=fault.kind,
            message=fault.message,
            status=fault.status,
            retry_after_s=fault.retry_after_s,
            usage=usage,
            is_committed=is_committed,
            limits=fault.limits,
        )
    )


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float:
    """Return the seconds that the answer asks to wait, 0 if it does not (RFC 9110 §10.2.3).

    ``headers`` is looked up case-insensitively only if it is such a mapping.
    """
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * scale
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    if date is None:
        return 0.0
    try:
        return max(0.0, email.utils.mktime_tz(date) - now_s)
    except (ValueError, OverflowError):
        return 0.0


def _kind(status: int, text: str, error_type: str, code: str) -> ErrorKind:
    if code.endswith("spend_limit_reached"):
        return "other"  # It is a 429, but waiting some seconds does not lift a limit of a month.
    by_type = _BY_TYPE.get(code) or _BY_TYPE.get(error_type)
    by_status = _by_status(status)
    if any(words in text.lower() for words in _TOO_LONG) and status in (200, 400, 413, 422, 500):
        return "context_exceeded"
    if by_type is None:
        return by_status
    if by_type == "invalid_request" and by_status in TRANSIENT:
        return by_status  # The least telling of the types, also given with a 409.
    return by_type


def _by_status(status: int) -> ErrorKind:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:
        return "server"
    return "invalid_request" if 400 <= status < 500 else "other"


def _bounded(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARS_MAX else f"{text[:MESSAGE_CHARS_MAX]}…"
