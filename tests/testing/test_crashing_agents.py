"""Agents under ``crash_everywhere``: a call that must happen once does, or the life is told.
Method: a real agent on a model that is a function of the request; its doubles tell of effects."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from treadle.sdk import Workflow
from treadle.sdk.testing import CrashesShow, crash_everywhere
from treadle.worker import Worker
from treadle.worker.agent import Agent, ToolContext, tool
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn

pytestmark = pytest.mark.timeout(120)
LEDGER: dict[str, int] = {}


def answer(request: RecordedRequest) -> Turn:
    """Pay once, then say so."""
    if not request.all_tool_results:
        return turn(tool_use("pay", {"cents": 5}, id="pay-1"))
    return turn(text("done"))


@pytest.fixture
def fake() -> Iterator[FakeAnthropic]:
    with FakeAnthropic(answer) as running:
        yield running


async def _paid(ctx: ToolContext[Any], args: dict[str, Any]) -> str | None:
    return "paid" if ctx.idempotency_key in LEDGER else None


async def pay(ctx: ToolContext[Any], cents: int) -> str:
    """Pay."""
    LEDGER[ctx.idempotency_key] = cents
    return "paid"


def explore(fake: FakeAnthropic, made: Any) -> Any:
    workflow = Workflow[Any]("cashier")
    workflow.agent_loop("agent", "cashier", max_iterations=9)

    async def story() -> Any:
        def worker() -> Worker:
            model = AnthropicModel("any", base_url=fake.base_url, api_key="test")
            one = Worker()
            one.agent("cashier", Agent("cashier", model=model, tools=[made]))
            return one

        return await crash_everywhere(workflow, "Pay.", worker, before=LEDGER.clear)

    return asyncio.run(story())


@pytest.mark.slow
def test_a_once_tool_that_can_find_out_survives(
    fake: FakeAnthropic, caplog: pytest.LogCaptureFixture
) -> None:
    report = explore(fake, tool(effect="once", reconcile=_paid)(pay))
    assert report.outcome == "done"
    assert any(each.what.startswith("journal record") for each in report.boundaries)
    assert "agent.model.retry" not in caplog.text, "virtual time has cut a real request"


@pytest.mark.slow
def test_a_once_tool_that_cannot_find_out_stops_for_a_person(fake: FakeAnthropic) -> None:
    with pytest.raises(CrashesShow) as shown:
        explore(fake, tool(effect="once")(pay))
    assert all("instead of 'done'" in fault for fault in shown.value.faults)
    assert any("parked" in fault for fault in shown.value.faults)


@pytest.mark.slow
def test_a_reconciliation_that_errs_is_caught(fake: FakeAnthropic) -> None:
    async def never(ctx: ToolContext[Any], args: dict[str, Any]) -> None:
        return None

    with pytest.raises(CrashesShow) as shown:
        explore(fake, tool(effect="once", reconcile=never)(pay))
    assert any("effect 'tool pay {\"cents\":5}' happens 2 times" in f for f in shown.value.faults)
