"""What a provider says in headers about what is left, Anthropic's way and OpenAI's.

    anthropic-ratelimit-requests-remaining / -limit / -reset      a time, RFC 3339
    anthropic-ratelimit-[input-|output-]tokens-...                the least of them counts
    x-ratelimit-remaining-requests / -limit- / -reset-            a duration: 1s, 6m0s, 20ms

https://docs.claude.com/en/api/rate-limits#response-headers
https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from treadle.sdk.rfc3339 import moment_ms
from treadle.worker.agent.core.conversation import RateLimits

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1.0, "s": 1e3, "m": 6e4, "h": 3.6e6, "d": 8.64e7}
_TOKENS = ("tokens", "input-tokens", "output-tokens")
NUMBER_MAX = 10**12


def rate_limits(headers: Mapping[str, str], now_s: float) -> RateLimits | None:
    """Return what the headers say; None if they say nothing of it.

    ``headers`` is looked up case-insensitively only if it is such a mapping.
    """
    requests = _anthropic(headers, "requests", now_s) or _openai(headers, "requests")
    told = [found for kind in _TOKENS if (found := _anthropic(headers, kind, now_s))]
    tokens = min(told, key=_share) if told else _openai(headers, "tokens")
    if requests is None and tokens is None:
        return None
    left_r, limit_r, reset_r = requests or (-1, 0, 0)
    left_t, limit_t, reset_t = tokens or (-1, 0, 0)
    return RateLimits(
        requests_left=left_r,
        requests_limit=limit_r,
        requests_reset_ms=reset_r,
        tokens_left=left_t,
        tokens_limit=limit_t,
        tokens_reset_ms=reset_t,
    )


_Left = tuple[int, int, int]


def _anthropic(headers: Mapping[str, str], kind: str, now_s: float) -> _Left | None:
    name = f"anthropic-ratelimit-{kind}"
    left = _number(headers.get(f"{name}-remaining"))
    if left is None:
        return None
    at_ms = moment_ms(headers.get(f"{name}-reset", ""))
    reset_ms = 0 if at_ms is None else max(0, round(at_ms - now_s * 1000))
    return left, _number(headers.get(f"{name}-limit")) or 0, reset_ms


def _openai(headers: Mapping[str, str], kind: str) -> _Left | None:
    left = _number(headers.get(f"x-ratelimit-remaining-{kind}"))
    if left is None:
        return None
    limit = _number(headers.get(f"x-ratelimit-limit-{kind}")) or 0
    return left, limit, _duration_ms(headers.get(f"x-ratelimit-reset-{kind}", ""))


def _share(left: _Left) -> float:
    return left[0] / left[1] if left[1] else 1.0


def _number(text: str | None) -> int | None:
    if text is None or not text.isdecimal() or len(text) > len(str(NUMBER_MAX)):
        return None
    return int(text)


def _duration_ms(text: str) -> int:
    parts = _PART.findall(text)
    if "".join(f"{number}{unit}" for number, unit in parts) != text:
        return 0
    return round(sum(float(number) * _UNITS_MS[unit] for number, unit in parts))
