"""A sleep by an expression is as long as its value says, and fails if that is no length.
Method: the decision over values of every kind, and simulated runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.engine.core.given import decision
from treadle.sdk import Workflow
from treadle.sdk.definition import SleepStep
from treadle.sdk.testing import simulate

NAP = SleepStep(id="nap", expression='input["for"]')


@pytest.mark.parametrize(
    ("value", "duration_ms", "until_ms"),
    [
        (0, 0, 0),
        (1.25, 1_250, 0),
        (86_400, 86_400_000, 0),
        ("1970-01-01T00:00:05Z", 0, 5_000),
        ("1970-01-01T01:00:05+01:00", 0, 5_000),
        ("1960-01-01T00:00:00Z", 0, 1),
    ],
)
def test_a_number_is_seconds_and_a_text_is_a_time(
    value: object, duration_ms: int, until_ms: int
) -> None:
    told = decision(NAP, {"for": value}, {})
    assert (told.holds, told.duration_ms, told.until_ms) == (True, duration_ms, until_ms)


@pytest.mark.parametrize(
    "value",
    [
        -1,
        True,
        None,
        "soon",
        "2027-01-31T09:00:00",
        "9999-12-31T23:59:59-12:00",
        [],
        {"s": 1},
        1e12,
        float("inf"),
    ],
)
def test_what_is_no_length_fails_the_step_with_what_it_is(value: object) -> None:
    told = decision(NAP, {"for": value}, {})
    assert told.failure is not None and told.failure.type == "condition"
    assert not told.failure.retryable
    assert "a sleep takes 0 to" in told.failure.message


def test_a_length_that_is_not_there_fails_the_step() -> None:
    told = decision(NAP, {}, {})
    assert told.failure is not None and "nothing at 'for'" in told.failure.message


@pytest.mark.parametrize(
    ("input", "elapsed_s"),
    [
        ({"for": 90}, 90),
        ({"for": "2026-01-01T00:00:00Z"}, 0),
        ({"for": "2026-01-05T10:30:00+00:00"}, 5_400),
    ],
)
def test_a_simulated_run_sleeps_as_long_as_its_input_says(input: Any, elapsed_s: float) -> None:
    workflow = Workflow("remind", input=dict)
    workflow.sleep("nap", expression='input["for"]')
    run = asyncio.run(simulate(workflow, input, now="2026-01-05T09:00:00Z"))
    assert (run.status, run.elapsed_s) == ("completed", elapsed_s)


def test_a_step_may_say_how_long_the_next_one_sleeps() -> None:
    workflow = Workflow("backoff", input=dict)
    first = workflow.sleep("first", expression='input["n"] * 2')
    workflow.sleep("second", expression='input["n"] * 3', after=first, when='input["n"] > 1')
    run = asyncio.run(simulate(workflow, {"n": 5}))
    assert run.elapsed_s == 25
