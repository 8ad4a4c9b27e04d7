"""What providers say is left is read as they write it, and anything else says nothing.

Method: headers of both kinds, and broken ones.
"""

from __future__ import annotations

import pytest

from treadle.sdk.rfc3339 import written
from treadle.worker.agent.core.conversation import RateLimits
from treadle.worker.agent.models.rate_headers import rate_limits

NOW_S = 1_700_000_000.0
IN_9_S = written(round(NOW_S * 1000) + 9_000)


def anthropic(kind: str, left: str, limit: str = "50", reset: str = IN_9_S) -> dict[str, str]:
    name = f"anthropic-ratelimit-{kind}"
    return {f"{name}-remaining": left, f"{name}-limit": limit, f"{name}-reset": reset}


def openai(kind: str, left: str, reset: str) -> dict[str, str]:
    values = {"remaining": left, "limit": "100", "reset": reset}
    return {f"x-ratelimit-{name}-{kind}": value for name, value in values.items()}


def test_anthropics_times_and_the_scarcest_tokens() -> None:
    headers = {
        **anthropic("requests", "49"),
        **anthropic("tokens", "900", "1000"),
        **anthropic("input-tokens", "100", "800"),
        **anthropic("output-tokens", "190", "200"),
    }
    assert rate_limits(headers, NOW_S) == RateLimits(
        requests_left=49,
        requests_limit=50,
        requests_reset_ms=9_000,
        tokens_left=100,
        tokens_limit=800,
        tokens_reset_ms=9_000,
    )


@pytest.mark.parametrize(
    ("text", "ms"), [("6m0s", 360_000), ("1.5s", 1_500), ("20ms", 20), ("1h2m", 3_720_000)]
)
def test_openais_durations(text: str, ms: int) -> None:
    found = rate_limits({**openai("requests", "3", text), **openai("tokens", "0", text)}, NOW_S)
    assert found == RateLimits(
        requests_left=3,
        requests_limit=100,
        requests_reset_ms=ms,
        tokens_left=0,
        tokens_limit=100,
        tokens_reset_ms=ms,
    )


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"retry-after": "3"},
        anthropic("requests", "-1"),
        anthropic("requests", "many"),
        anthropic("tokens", "9" * 40),
    ],
)
def test_what_is_no_number_says_nothing(headers: dict[str, str]) -> None:
    assert rate_limits(headers, NOW_S) is None


@pytest.mark.parametrize("reset", ["soon", "", "2023-11-14T22:13:20", written(1)])
def test_a_time_that_is_none_or_is_over_is_now(reset: str) -> None:
    found = rate_limits(anthropic("requests", "0", reset=reset), NOW_S)
    assert found is not None
    assert found.requests_reset_ms == 0
