"""A sleep by an expression is as long as its value says, and fails if that is no length; one by
cron lasts until the next time. Method: the decision over values of every kind, simulated runs."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from treadle.engine.core import StepDecided
from treadle.engine.core.given import decision
from treadle.engine.waking import woken_at
from treadle.sdk import Workflow
from treadle.sdk.definition import SleepStep
from treadle.sdk.rfc3339 import moment_ms
from treadle.sdk.run import RunDocument, StepEntry
from treadle.sdk.testing import simulate

NAP = SleepStep(id="nap", expression='input["for"]')
HOLDS = StepDecided("nap", True)


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
    assert told.failure is not None and "the input has no 'for'" in told.failure.message


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


def _woken(cron: str, turn: str, zone: str = "Europe/Berlin") -> StepDecided:
    step, turn_ms = SleepStep(id="nap", cron=cron, zone=zone), moment_ms(turn)
    assert turn_ms is not None
    entry = StepEntry("deciding", started_ms=turn_ms)
    run = RunDocument(run="r1", workflow="w", definition="d")
    return woken_at(msgspec.structs.replace(run, steps={"nap": entry}), step, HOLDS)


@pytest.mark.parametrize(
    ("cron", "turn", "until"),
    [
        ("0 9 * * mon-fri", "2026-03-27T18:00:00Z", "2026-03-30T07:00:00Z"),
        # At the time itself it is the one after it.
        ("0 9 * * *", "2026-01-05T08:00:00Z", "2026-01-06T08:00:00Z"),
        ("0 9 * * *", "2026-01-05T07:59:59.999Z", "2026-01-05T08:00:00Z"),
        # The clocks go forward over it, and back over it.
        ("30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-29T01:00:00Z"),
        ("30 2 * * *", "2026-10-24T12:00:00Z", "2026-10-25T00:30:00Z"),
        ("30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
        ("@every 1h", "2026-01-05T08:20:00Z", "2026-01-05T09:00:00Z"),
        ("0 0 29 2 *", "2026-01-05T08:00:00Z", "2028-02-28T23:00:00Z"),
    ],
)
def test_a_sleep_by_cron_ends_at_the_next_time_in_its_zone(
    cron: str, turn: str, until: str
) -> None:
    assert _woken(cron, turn).until_ms == moment_ms(until)


def test_what_does_not_begin_is_asked_for_no_time() -> None:
    run = RunDocument(run="r1", workflow="w", definition="d")
    for step in (SleepStep(id="nap", cron="@daily"), NAP):
        skipped = StepDecided("nap", False)
        assert woken_at(run, step, skipped) is skipped
    assert woken_at(run, NAP, HOLDS) is HOLDS


@pytest.mark.parametrize(
    ("cron", "zone", "told"),
    [
        ("0 0 29 2 */7", "UTC", "has no time in the next ten years (UTC)"),
        ("@daily", "Europe/Atlantis", "'Europe/Atlantis' is not known"),
    ],
)
def test_a_cron_without_a_next_time_fails_the_step_with_why(
    cron: str, zone: str, told: str
) -> None:
    failure = _woken(cron, "2033-01-01T00:00:00Z", zone).failure
    assert failure is not None and told in failure.message
    assert (failure.type, failure.retryable) == ("condition", False)


@pytest.mark.parametrize(("again", "elapsed_h"), [(False, 61), (True, 61 + 24)])
def test_a_simulated_run_sleeps_until_the_next_time_of_its_cron(
    again: bool, elapsed_h: int
) -> None:
    workflow = Workflow("digest", input=dict)
    first = workflow.sleep("first", cron="0 9 * * mon-fri", zone="Europe/Berlin")
    workflow.sleep("second", cron="0 7 * * *", after=first, when='input["again"]')
    run = asyncio.run(simulate(workflow, {"again": again}, now="2026-03-27T18:00:00Z"))
    assert run.step("second").status == ("completed" if again else "skipped")
    assert (run.status, run.elapsed_s) == ("completed", elapsed_h * 3600)
