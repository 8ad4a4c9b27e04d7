"""``treadle run show`` and ``timeline`` of what did not go as wished: waits without an end, steps
that never began. A real server, an engine and a worker; the entry point when the run has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.cli.conftest import Run
from tests.engine.stand import open_stand

from treadle.sdk import NonRetryable, Workflow
from treadle.sdk.settings import Settings
from treadle.worker import TaskContext, Worker


def unmet() -> Workflow[Any]:
    """Return a workflow of a signal and an event that do not come, and a task that fails then."""
    workflow = Workflow("unmet")
    waits = [
        workflow.wait_for_signal("word", signal="go", timeout=0.05, on_timeout="complete"),
        workflow.wait_for_event("paid", "order.paid", timeout=0.05, on_timeout="complete"),
    ]
    broken = workflow.task("broken", after=waits)
    workflow.task("behind", after=[broken])
    return workflow


def breaking() -> Worker:
    worker = Worker("w")

    @worker.handler("broken")
    async def break_(ctx: TaskContext[Any]) -> None:
        raise NonRetryable(f"given {ctx.input}")

    return worker


@pytest.mark.slow
def test_waits_that_ran_out_and_steps_never_reached_are_told_apart_from_others(
    treadle: Run, settings: Settings
) -> None:
    async def ran() -> None:
        async with open_stand(settings) as stand:
            await stand.engine()
            stand.worker(breaking())
            await stand.client.start(unmet(), id="r1")
            await stand.ended("r1")

    asyncio.run(ran())
    shown = treadle("run", "show", "r1").out
    rows = {line.split()[0]: " ".join(line.split()) for line in shown.splitlines() if line}
    assert rows["word"].endswith("timed out without go; completed with null")
    assert rows["paid"].endswith("timed out without order.paid; completed with null")
    assert rows["behind"] == "behind not reached after broken"
    steps = {step["id"]: step for step in treadle("run", "show", "r1", "--json").json["steps"]}
    assert (steps["word"]["timed_out"], steps["behind"]["status"]) == ("complete", "not_reached")
    spans = treadle("run", "timeline", "r1", "--json").lines
    told = {span["step"]: (span["outcome"], span.get("detail")) for span in spans}
    assert told["word"] == ("timed out", "go; completed with null")
    assert told["paid"] == ("timed out", "order.paid; completed with null")
    assert "timed out  go; completed with null" in treadle("run", "timeline", "r1").out
