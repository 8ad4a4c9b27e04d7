"""Maps in a simulated run: the real core, the real worker of chunks, virtual time.
Method: small workflows run to their end; what was executed, and when, is noted by handlers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.sdk import NonRetryable, Retry, RunFailed, Workflow
from treadle.sdk.mapped import Mapped
from treadle.sdk.testing import simulate
from treadle.worker import SyncTaskContext, TaskContext, Worker

RETRY = Retry(max_attempts=3, delay_s=1, jitter=0)


class Notes:
    """A worker that notes its executions."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.seen: list[tuple[int, int, Any]] = []

        @self.worker.handler("slow")
        async def slow(ctx: TaskContext[int]) -> int:
            self.seen.append((ctx.index, ctx.attempt, ctx.input))
            await asyncio.sleep(0.7)
            if ctx.input < 0 and ctx.attempt < 3:
                raise ValueError("negative")
            return abs(ctx.input)

        @self.worker.handler("broken")
        async def broken(ctx: TaskContext[Any]) -> None:
            raise NonRetryable("it broke")

        @self.worker.handler("list")
        async def listed(ctx: TaskContext[Any]) -> list[int]:
            return [3, 4]


def test_slow_items_are_saved_as_they_come_and_only_the_others_are_tried_again() -> None:
    notes = Notes()
    workflow = Workflow[Any]("m")
    workflow.map("slow", chunk=4, retry=RETRY)
    run = asyncio.run(simulate(workflow, [1, -2, 3, 4, 5, 6, 7, 8], notes.worker))
    assert run.result() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [seen for seen in notes.seen if seen[1] > 1] == [(1, 2, -2), (1, 3, -2)]
    assert len(notes.seen) == 10
    # Four items, a delay of one second, the item, a delay of two, the item.
    assert run.elapsed_s == pytest.approx(4 * 0.7 + 1 + 0.7 + 2 + 0.7, abs=0.01)


def test_at_most_so_many_items_are_at_work() -> None:
    workflow, notes = Workflow[Any]("m"), Notes()
    workflow.map("slow", max_parallel=2)
    run = asyncio.run(simulate(workflow, list(range(6)), notes.worker))
    assert run.elapsed_s == pytest.approx(3 * 0.7, abs=0.01)


def test_a_map_undoes_what_another_step_has_done_for_each_item() -> None:
    workflow, notes = Workflow[Any]("m"), Notes()
    booked = workflow.task("list", compensate="cancel")
    workflow.task("broken", after=booked)
    workflow.map("cancel", "slow")
    run = asyncio.run(simulate(workflow, None, notes.worker))
    assert (run.status, run.reason) == ("failed", "NonRetryable")
    assert sorted(seen[2] for seen in notes.seen) == [3, 4]
    assert run.step("cancel").status == "completed"


@pytest.mark.parametrize("value", [[], {"no": "list"}])
def test_a_map_that_has_nothing_to_undo_or_cannot_does_not_hold_the_run_up(value: object) -> None:
    workflow, notes = Workflow[Any]("m"), Notes()

    @notes.worker.handler("value")
    async def given(ctx: TaskContext[Any]) -> object:
        return ctx.input

    first = workflow.task("value", compensate="cancel")
    workflow.task("broken", after=first)
    workflow.map("cancel", "slow")
    run = asyncio.run(simulate(workflow, value, notes.worker))
    assert (run.status, notes.seen) == ("failed", [])
    assert run.step("cancel").status == ("failed" if value else "completed")


def test_a_failed_map_is_handled_like_a_failed_step_and_stops_at_once() -> None:
    workflow, notes = Workflow[Any]("m"), Notes()

    @notes.worker.handler("each")
    async def each(ctx: TaskContext[int]) -> int:
        await asyncio.sleep(ctx.input)
        if ctx.index == 0:
            raise NonRetryable("it broke")
        raise AssertionError("it was to be stopped")

    workflow.map("each", on_failure="list")
    workflow.task("list")
    run = asyncio.run(simulate(workflow, [1, 60, 60], notes.worker))
    assert (run.status, run.result()) == ("completed", [3, 4])
    assert run.elapsed_s == pytest.approx(1, abs=0.01)


def test_a_condition_that_is_false_skips_a_map_and_its_list_is_not_looked_at() -> None:
    workflow, notes = Workflow[Any]("m"), Notes()
    workflow.map("slow", when="len(input) > 3")
    run = asyncio.run(simulate(workflow, [1], notes.worker))
    assert run.step("slow").status == "skipped"
    run = asyncio.run(simulate(workflow, {"no": "list"}, notes.worker))
    assert run.step("slow").status == "skipped"


def test_a_timeout_stops_one_item_and_the_one_after_it_runs() -> None:
    workflow, worker = Workflow[Any]("m"), Worker()

    @worker.handler("each")
    def each(ctx: SyncTaskContext[int]) -> int:
        return ctx.input

    @worker.handler("hang")
    async def hang(ctx: TaskContext[int]) -> int:
        await asyncio.sleep(ctx.input)
        return ctx.input

    workflow.map("hang", timeout=5, chunk=3, tolerated_failures=1)
    workflow.map("each")
    run = asyncio.run(simulate(workflow, [1, 60, 2], worker))
    found = run.result()
    assert found["each"] == [1, 60, 2]
    assert found["hang"]["results"] == [1, None, 2]
    assert found["hang"]["failures"][0]["type"] == "timeout"
    assert run.elapsed_s == pytest.approx(1 + 5 + 2, abs=0.01)


def test_what_a_map_hands_on_has_a_type() -> None:
    workflow, notes = Workflow[Any]("m"), Notes()
    mapped = workflow.map("slow", tolerated_failures=1)

    @notes.worker.handler("read")
    async def read(ctx: TaskContext[Mapped[int]]) -> list[int | None]:
        assert [failure.index for failure in ctx.input.failures] == [1]
        assert str(ctx.input.failures[0]) == "item 1: ValueError: negative"
        return ctx.input.results

    workflow.task("read", after=mapped)
    run = asyncio.run(simulate(workflow, [1, -2], notes.worker))
    assert run.result() == [1, None]


def test_an_item_that_asks_for_what_only_a_loop_has_is_told_so() -> None:
    workflow, worker = Workflow[Any]("m"), Worker()

    @worker.handler("each")
    async def each(ctx: TaskContext[int]) -> Any:
        return await ctx.messages()  # type: ignore[attr-defined]

    @worker.handler("big")
    async def big(ctx: TaskContext[int]) -> str:
        return "x" * 600_000

    workflow.map("each")
    with pytest.raises(RunFailed, match="item 0: 'TaskContext' object has no attribute"):
        asyncio.run(simulate(workflow, [1], worker)).result()
    large = Workflow[Any]("large")
    large.map("big")
    with pytest.raises(RunFailed, match=r"item 0: .*600002 bytes as JSON"):
        asyncio.run(simulate(large, [1], worker)).result()


def test_a_map_in_a_plan_names_the_list_as_its_plan_does() -> None:
    workflow, worker = Workflow[Any]("w"), Notes().worker
    workflow.planner("p", "plan", max_steps=5)

    @worker.handler("plan")
    async def plan(ctx: TaskContext[Any]) -> dict[str, Any]:
        lists = [{"kind": "task", "id": each, "type": "list"} for each in ("a", "b")]
        mapped = {"kind": "map", "id": "m", "type": "slow", "after": ["a", "b"], "over": "a"}
        return {"steps": [*lists, mapped]}

    assert asyncio.run(simulate(workflow, None, worker)).result() == [3, 4]
