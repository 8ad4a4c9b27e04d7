"""Runs under a limit for crash tests, and what is true of its slots at the end."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.crash import audit
from tests.crash.member import GUARDED_TYPE
from tests.crash.namespace import Namespace
from tests.crash.stage import Stage

from treadle.sdk import Retry, Workflow
from treadle.sdk.flow import Concurrency, RateLimit
from treadle.sdk.messages import SlotRecord

_record = msgspec.json.Decoder(SlotRecord)


def guarded(limit: int, rates: tuple[RateLimit, ...] = ()) -> Workflow[Any]:
    """Return a workflow of one loop of which so many may run at a time for each key."""
    workflow = Workflow("guarded")
    workflow.agent_loop(
        "loop",
        GUARDED_TYPE,
        max_iterations=1000,
        retry=Retry(max_attempts=3, delay_s=0.02),
        concurrency=Concurrency(limit, key='input["key"]'),
        rate_limits=rates,
    )
    return workflow


async def start(stage: Stage, run: str, workflow: Workflow[Any], **given: Any) -> None:
    """Start a run of it; the end of the stage waits for it."""
    limit = workflow.build().steps[0].concurrency[0].limit  # type: ignore[union-attr]
    defaults = {"key": "k", "limit": limit, "iterations": 2, "work_ms": 20}
    stage.expected.append(audit.Expected(run, 0, ()))
    await stage.client.start(workflow, {**defaults, **given}, id=run)


async def records(place: Namespace) -> list[SlotRecord]:
    """Return the records of all concurrency limits."""
    s = place.subjects
    found = place.js.read(s.limits_stream, s.all_slots)
    return [_record.decode(stored.data) async for stored in found]


async def all_free(place: Namespace) -> None:
    """Wait until no slot is held; nothing else gives one back."""

    def is_it(found: list[SlotRecord]) -> bool:
        return not any(record.holders for record in found)

    await place.until("every slot is free", lambda: records(place), is_it)


async def all_can_be_used(stage: Stage, workflow: Workflow[Any], limit: int, key: str) -> None:
    """Start more runs than there are slots, and wait until every slot is used at once."""
    before = len(begun(stage))
    names = [f"after-{key}-{number}" for number in range(limit + 2)]
    for name in names:
        await start(stage, name, workflow, key=key, iterations=1, waits=f"gate-{key}")
    await stage.begun(before + limit)
    stage.open_gate(key)
    for name in names:
        await stage.ended(name)


def begun(stage: Stage) -> list[dict[str, Any]]:
    """Return the executions that began with a place."""
    return [each for each in stage.effects() if each["kind"] == "begin"]


def assert_never_too_many(stage: Stage) -> None:
    """Assert that no execution found all places taken."""
    assert not [each for each in stage.effects() if each["kind"] == "over"]
