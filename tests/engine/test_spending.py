"""Budgets that the engine counts, end to end: each execution tells, nothing counts twice.
Method: a real engine on a real server; a real worker, or a hand that repeats itself."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.sdk import Retry, RunConflict, RunFailed, Spent
from treadle.sdk.messages import Failure, Parked, Task
from treadle.worker import LoopContext, Worker
from treadle.worker.verdict import Complete, Continue

QUICK = Retry(max_attempts=3, backoff="fixed", delay_s=0.05, jitter=0)


def spender(seen: list[tuple[int, Spent]], *, fails_at: int = -1) -> Worker:
    """Return a worker that uses two tool calls, 100 tokens and ten cents in each iteration."""
    worker = Worker()

    @worker.handler("link")
    async def spend(ctx: LoopContext[Any]) -> Continue | Complete:
        if ctx.wrap_up:
            return ctx.complete(f"wrapped up: {ctx.wrap_up}")
        each = Spent(tool_calls=1, input_tokens=40, output_tokens=10, cost_micro_usd=50_000)
        ctx.report_spent(ctx.spent_now + each)
        seen.append((ctx.attempt, ctx.spent))
        if ctx.iteration == fails_at and ctx.attempt == 1:
            raise RuntimeError("after half of it")
        ctx.report_spent(ctx.spent_now + each)
        return ctx.continue_()

    return worker


@pytest.mark.parametrize(
    ("bound", "reason", "iterations"),
    [
        ({"max_tool_calls": 6}, "max_tool_calls", 3),
        ({"max_tool_calls": 5}, "max_tool_calls", 3),
        ({"max_input_tokens": 81}, "max_tokens", 2),
        ({"max_output_tokens": 40}, "max_tokens", 2),
        ({"max_total_tokens": 100}, "max_tokens", 1),
        ({"max_cost_usd": 0.35}, "max_cost", 4),
    ],
)
def test_a_bound_on_spending_ends_the_loop(
    play: Play, bound: dict[str, Any], reason: str, iterations: int
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(spender([]))
        await stand.client.start(loop(**bound), None, id="run")
        with pytest.raises(RunFailed, match=reason) as caught:
            await stand.client.result("run", timeout_s=10)
        assert caught.value.iteration is None, "it was reached between two"
        assert f" in {iterations} iterations of at most " in caught.value.failure.message
        entry = (await stand.ended()).steps["loop"]
        assert entry.spent == Spent(
            tool_calls=2 * iterations,
            input_tokens=80 * iterations,
            output_tokens=20 * iterations,
            cost_micro_usd=100_000 * iterations,
        )
        assert (await stand.client.get("run")).step("loop").spent == entry.spent

    play(story)


def test_a_failed_attempt_counts_and_counts_once(play: Play) -> None:
    async def story(stand: Stand) -> None:
        seen: list[tuple[int, Spent]] = []
        await stand.engine()
        stand.worker(spender(seen, fails_at=1))
        await stand.client.start(loop(max_tool_calls=7, retry=QUICK), None, id="run")
        with pytest.raises(RunFailed, match="7 of 7 tool calls"):
            await stand.client.result("run", timeout_s=10)
        assert [(attempt, spent.tool_calls) for attempt, spent in seen] == [
            (1, 1),
            (1, 3),
            (2, 4),
            (1, 6),
        ]

    play(story)


def test_a_loop_parks_at_its_budget_and_goes_on_when_it_is_raised(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(spender([]))
        await stand.client.start(loop(max_cost_usd=0.2, on_limit="park"), None, id="run")
        document = await stand.status("run", "parked")
        assert document.failure is not None
        assert document.failure.type == "max_cost"
        notes = (await stand.client.get("run")).notes
        assert any(note.command.endswith("--add-cost 5") for note in notes)
        with pytest.raises(RunConflict, match="would stop there again at max_cost"):
            await stand.client.resume("run", add_iterations=10)
        token, _ = await stand.holds(Parked)
        await stand.client.resume("run", add_cost_usd=0.2, add_tool_calls=5)
        _, parked = await stand.holds(Parked, since=token)
        assert isinstance(parked, Parked)
        assert (parked.task.iteration, parked.task.limits.cost_micro_usd) == (4, 400_000)
        assert parked.task.limits.tool_calls == 0, "what is unlimited stays so"

    play(story)


def test_a_loop_wraps_up_at_its_budget(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(spender([]))
        await stand.client.start(loop(max_tool_calls=3, on_limit="wrap_up"), None, id="run")
        result = await stand.client.result("run", timeout_s=10)
        assert result == "wrapped up: max_tool_calls"

    play(story)


def test_what_is_told_twice_or_late_counts_once(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        at_once = Retry(max_attempts=3, delay_s=0, jitter=0)
        await stand.client.start(loop(retry=at_once), None, id="run")
        token, _ = await stand.holds(Task)
        five, seven = Spent(tool_calls=5), Spent(tool_calls=7)
        for _ in range(2):
            await stand.fails(token, Failure("broke"), spent=five)
        again, task = await stand.holds(Task, since=token)
        assert isinstance(task, Task)
        assert (task.spent.tool_calls, task.spent_now.tool_calls) == (0, 5)
        for _ in range(2):
            await stand.continues(again, 1, spent=seven)
        await stand.continues(token, 1, spent=Spent(tool_calls=100))
        last, task = await stand.holds(Task, since=again)
        assert isinstance(task, Task)
        assert (task.iteration, task.spent, task.spent_now) == (1, seven, Spent())
        await stand.completes(last, 1, spent=Spent(tool_calls=1))
        assert (await stand.ended()).steps["loop"].spent == Spent(tool_calls=8)

    play(story)
