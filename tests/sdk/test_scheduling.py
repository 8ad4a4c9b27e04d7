"""When a run is to begin, as callers say it, and what is refused. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from treadle.cli.options import read_delay
from treadle.sdk.beginning import AT_ONCE, When
from treadle.sdk.errors import UserError
from treadle.sdk.scheduling import begins_text, when


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        ({}, AT_ONCE),
        ({"start_at": datetime(2027, 1, 31, 8, tzinfo=UTC)}, When(at_ms=1_801_382_400_000)),
        ({"start_at": "2027-01-31T09:00:00+01:00"}, When(at_ms=1_801_382_400_000)),
        (
            {"start_at": datetime(2027, 1, 31, 9, tzinfo=ZoneInfo("Europe/Berlin"))},
            When(at_ms=1_801_382_400_000),
        ),
        ({"start_at": datetime(1969, 1, 1, tzinfo=UTC)}, When(at_ms=1)),
        ({"start_after": timedelta(minutes=1.5)}, When(after_ms=90_000)),
        ({"start_after": 0.25}, When(after_ms=250)),
        ({"start_after": 0}, AT_ONCE),
    ],
)
def test_a_time_and_a_delay_are_told_in_milliseconds(given: dict[str, Any], begins: When) -> None:
    assert when(**given) == begins


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"start_at": datetime(2027, 1, 31)}, "no time zone"),
        ({"start_at": "tomorrow"}, "'tomorrow' is not a time with its offset"),
        ({"start_at": "2027-01-31T09:00:00"}, "is not a time with its offset"),
        ({"start_at": "2199-01-01T00:00:00Z"}, "the longest that it can wait is ten years"),
        ({"start_at": 5}, "start_at is 5"),
        ({"start_after": "15m"}, "start_after is '15m'"),
        ({"start_after": -1}, "-1 s after its request"),
        ({"start_after": float("nan")}, "nan s after its request"),
        ({"start_after": timedelta(days=36_500)}, "from 0 to ten years"),
        ({"start_after": 1, "start_at": datetime(2027, 1, 31, tzinfo=UTC)}, "both were given"),
    ],
)
def test_what_is_no_time_is_refused_with_a_way_out(given: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as refused:
        when(**given)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("text", "delay_s"), [("90", 90), ("1.5s", 1.5), ("15m", 900), ("2h", 7200), ("1d", 86_400)]
)
def test_the_command_reads_a_delay_with_its_unit(text: str, delay_s: float) -> None:
    assert read_delay("--in", text) == timedelta(seconds=delay_s)


@pytest.mark.parametrize("text", ["", "m", "soon", "1w", "nan", "1e300d"])
def test_the_command_refuses_what_is_no_delay(text: str) -> None:
    with pytest.raises(UserError, match=r"--in .* is not a delay"):
        read_delay("--in", text)


def test_a_beginning_is_told_in_words() -> None:
    assert begins_text(AT_ONCE) == "at once"
    assert begins_text(When(after_ms=1500)) == "1.5 s after its request"
    assert begins_text(When(at_ms=1_801_382_400_000)).startswith("at 2027-01-31")
