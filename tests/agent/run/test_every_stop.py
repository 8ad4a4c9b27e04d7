"""Each reason to stop has a run that ends with it, and a run that ends with it leaves its marks.

The list is checked against the closed list of reasons, so that none is added without a test.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any, get_args

import pytest
from tests.agent.run.stage import Log, Stage, play

from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.entries import Stopped
from treadle.worker.agent.core.stops import StopReason
from treadle.worker.agent.models.prices import Price, PriceTable
from treadle.worker.agent.testing import error, text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool
from treadle.worker.agent.tools.policy import Policy
from treadle.worker.cancellation import CancelToken


@tool(idempotent=True)
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


@tool(idempotent=True, max_attempts=1)
async def broken(n: int) -> str:
    """Fail."""
    raise RuntimeError("the disk is full")


def looking(request: Any) -> Any:
    return turn(tool_use("look", {"n": request.index}))


def cancelled() -> dict[str, Any]:
    token = CancelToken()
    token.trip("cancelled")
    return {"cancelled": token}


def late() -> dict[str, Any]:
    times = iter(range(0, 10_000_000, 50_000))
    return {"clock": lambda: next(times)}


def insisting_on_a_broken_tool(request: Any) -> Any:
    calls = (5, 2, 1)[request.index]
    return turn(*(tool_use("broken", {"n": 10 * request.index + n}) for n in range(calls)))


bounded: dict[str, Any] = {"tools": [look], "on_limit": "fail"}
WAYS: dict[StopReason, Callable[[], dict[str, Any]]] = {
    "completed": lambda: {"turns": [turn(text("done"))]},
    "failed": lambda: {"turns": [error(401)]},
    "refused": lambda: {"turns": [turn(text("no"), stop_reason="refusal")]},
    "needs_human": lambda: {
        "turns": [turn(tool_use("ask_human", {"question": "?"}))],
        "ask_human": True,
    },
    "max_steps": lambda: {"turns": looking, "budget": Budget(max_steps=1), **bounded},
    "max_tool_calls": lambda: {"turns": looking, "budget": Budget(max_tool_calls=1), **bounded},
    "max_tokens": lambda: {"turns": looking, "budget": Budget(max_total_tokens=1), **bounded},
    "max_cost": lambda: {
        "turns": looking,
        "budget": Budget(max_cost_usd=0.000_001),
        "prices": PriceTable({"claude": Price(input=1, output=1)}),
        **bounded,
    },
    "timeout": lambda: {
        "turns": looking,
        "budget": Budget(max_duration=datetime.timedelta(minutes=5)),
        "run": late(),
        **bounded,
    },
    "cancelled": lambda: {"turns": [], "run": cancelled()},
    "loop_detected": lambda: {
        "turns": lambda _: turn(tool_use("look", {"n": 1})),
        "tools": [look],
    },
    "empty_turn": lambda: {"turns": lambda _: turn()},
    "context_exceeded": lambda: {
        "turns": lambda _: turn(text("I"), stop_reason="model_context_window_exceeded")
    },
    "policy_blocked": lambda: {
        "turns": looking,
        "tools": [look],
        "policy": Policy(forbidden={"look"}),
    },
    "tool_failure": lambda: {
        "turns": insisting_on_a_broken_tool,
        "tools": [broken, look],
    },
    "output_truncated": lambda: {"turns": lambda _: turn(text("I"), stop_reason="max_tokens")},
}


def test_there_is_a_way_to_every_reason() -> None:
    assert set(WAYS) == set(get_args(StopReason))


@pytest.mark.parametrize("reason", list(WAYS))
def test_a_run_ends_with_each_reason_once_and_can_go_on(reason: StopReason) -> None:
    options = WAYS[reason]()
    turns, run = options.pop("turns"), options.pop("run", {})
    played = play(turns, run=run, **options)
    assert played.reason == reason
    stops = [each for each in played.stage.entries if isinstance(each, Stopped)]
    if played.result.waiting_for:
        assert stops == []  # The run waits, it has not ended.
        return
    assert [each.reason for each in stops] == [reason]
    assert played.result.state.answer is None
    told = [name for name in played.stage.names if name.startswith("agent_run.")]
    assert told[-1] in (
        "agent_run.completed",
        "agent_run.failed",
        "agent_run.cancelled",
        "agent_run.stopped",
    )

    async def go() -> None:
        async with Stage(lambda _: turn(text("better"))) as stage:
            agent = stage.agent(tools=options.get("tools", ()), budget=Budget(max_steps=99))
            result = await stage.run(agent, "Go on.", state=played.result.state)
            assert result.output == "better"

    asyncio.run(go())


def test_the_log_of_a_stopped_run_says_why() -> None:
    log = Log()
    played = play(lambda _: turn(tool_use("look", {"n": 1})), tools=[look], run={"on_event": log})
    (stopped,) = [each for each in log.lines if each.name == "agent_run.stopped"]
    assert stopped.fields["reason"] == played.reason == "loop_detected"
    assert "direction" in stopped.fields["detail"]
