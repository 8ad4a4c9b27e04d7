"""Maps on a real server: results, attempts, failures, stops, and what they cost.
Method: lists of every length through real engines and workers; bytes are counted in the streams."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import NonRetryable, Retry, RunCancelled, RunFailed, Workflow
from treadle.sdk.messages import Ended, Task
from treadle.sdk.run import MapState
from treadle.worker import SyncTaskContext, TaskContext, Worker

QUICK = Retry(max_attempts=3, delay_s=0.05, jitter=0)


class Items:
    """A worker that doubles numbers, and notes what it was given."""

    def __init__(self, **options: Any) -> None:
        self.worker = Worker(**options)
        self.seen: list[tuple[int, int]] = []
        self.at_once = self.most_at_once = 0
        self.flaky: set[int] = set()
        self.broken: set[int] = set()
        self.gate: asyncio.Event | None = None

        @self.worker.handler("double")
        async def double(ctx: TaskContext[int]) -> int:
            self.seen.append((ctx.index, ctx.attempt))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await (self.gate.wait() if self.gate else asyncio.sleep(0))
            finally:
                self.at_once -= 1
            if ctx.input in self.broken:
                raise NonRetryable(f"{ctx.input} is broken")
            if ctx.input in self.flaky and ctx.attempt == 1:
                raise ValueError(f"{ctx.input} is flaky")
            return ctx.input * 2

        @self.worker.handler("size")
        async def size(ctx: TaskContext[Any]) -> int:
            return len(ctx.input)


def mapping(**options: Any) -> Workflow[Any]:
    """A workflow that doubles a list."""
    workflow = Workflow[Any]("mapping")
    workflow.map("double", **{"retry": QUICK, **options})
    return workflow


async def state_of(stand: Stand, run: str = "run", step: str = "double") -> MapState:
    document = await stand.document(run)
    assert document is not None
    return document.maps[step]


@pytest.mark.parametrize("count", [0, 1, 3, 300, 1_000])
def test_the_results_are_in_the_order_of_the_items(play: Play, count: int) -> None:
    items = Items()

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(items.worker)
        await stand.client.start(mapping(), list(range(count)), id="run")
        assert await stand.client.result("run", timeout_s=20) == [2 * n for n in range(count)]
        assert sorted(items.seen) == [(n, 1) for n in range(count)]
        view = (await stand.client.get("run")).step("double")
        assert (view.status, view.items, view.items_done) == ("completed", count, count)
        assert view.chunks <= 256

    play(story)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": 1}, "is an object, and a map needs a list"),
        (7, "is a number, and a map needs a list"),
        (None, "is null, and a map needs a list"),
        ([0] * 100_001, "has 100001 items, and 100000 are allowed"),
    ],
    ids=["object", "number", "nothing", "too-many"],
)
def test_what_is_no_list_fails_the_run_at_once_with_a_clear_reason(
    play: Play, value: object, said: str
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(mapping(), value, id="run")
        with pytest.raises(RunFailed, match=said) as raised:
            await stand.client.result("run", timeout_s=15)
        assert raised.value.failure.type == "not_a_list"

    play(story)


def test_one_flaky_item_is_tried_again_and_no_other(play: Play) -> None:
    items = Items()
    items.flaky = {3, 11}

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(items.worker)
        await stand.client.start(mapping(chunk=5), list(range(12)), id="run")
        assert await stand.client.result("run", timeout_s=15) == [2 * n for n in range(12)]
        again = [index for index, attempt in items.seen if attempt > 1]
        assert sorted(again) == [3, 11]
        assert len(items.seen) == 14

    play(story)


def test_the_first_item_that_fails_for_good_fails_the_map_and_stops_the_others(
    play: Play,
) -> None:
    items = Items()
    items.broken = {4}

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(items.worker)
        await stand.client.start(mapping(chunk=2, max_parallel=2), list(range(100)), id="run")
        with pytest.raises(RunFailed, match="item 4: 4 is broken") as raised:
            await stand.client.result("run", timeout_s=15)
        assert (raised.value.step, raised.value.failure.type) == ("double", "NonRetryable")
        state = await state_of(stand)
        assert state.next < 50, "nothing begins after the failure"
        for number in range(state.next):
            held = await stand.register(step=f"double={number}", type="double")
            assert held is not None
            assert isinstance(held.register, Ended)

    play(story)


def test_tolerated_failures_are_listed_beside_the_results(play: Play) -> None:
    items = Items()
    items.broken, items.flaky = {2, 5}, {6}
    workflow = mapping(chunk=3, tolerated_failures=2)
    workflow.task("size", after="double", when='len(steps["double"]["failures"]) == 2')

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(items.worker)
        await stand.client.start(mapping(chunk=3, tolerated_failures=2), list(range(8)), id="run")
        found = await stand.client.result("run", timeout_s=15)
        assert found["results"] == [0, 2, None, 6, 8, None, 12, 14]
        assert [(each["index"], each["type"]) for each in found["failures"]] == [
            (2, "NonRetryable"),
            (5, "NonRetryable"),
        ]
        assert found["failures"][0]["message"] == "2 is broken"
        await stand.client.start(workflow, list(range(8)), id="conditional")
        assert await stand.client.result("conditional", timeout_s=15) == 2

    play(story)


def test_more_failures_than_are_tolerated_fail_the_map(play: Play) -> None:
    items = Items()
    items.broken = {1, 2, 3}

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(items.worker)
        workflow = mapping(tolerated_failures=2)
        await stand.client.start(workflow, list(range(5)), id="run")
        with pytest.raises(RunFailed, match="3 items failed, and 2 are tolerated") as raised:
            await stand.client.result("run", timeout_s=15)
        assert raised.value.failure.type == "tolerated_failures"

    play(story)


def test_no_more_items_are_at_work_than_may_be(play: Play) -> None:
    items = Items(concurrency=50)
    items.gate = asyncio.Event()

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(items.worker)
        await stand.client.start(mapping(max_parallel=7, chunk=2), list(range(60)), id="run")

        async def at_once() -> int:
            return items.at_once

        await stand.until("seven are at work", at_once, lambda count: count == 7)
        assert items.gate is not None
        items.gate.set()
        assert await stand.client.result("run", timeout_s=15) == [2 * n for n in range(60)]
        assert items.most_at_once == 7

    play(story)


def test_a_map_is_given_the_run_s_input_an_output_or_what_is_under_a_key(play: Play) -> None:
    worker = Worker()

    @worker.handler("list")
    async def listed(ctx: TaskContext[Any]) -> list[int]:
        return [1, 2]

    @worker.handler("double")
    async def double(ctx: TaskContext[int]) -> int:
        return ctx.input * 2

    workflow = Workflow[Any]("inputs")
    first = workflow.task("list")
    of_run = workflow.map("of-run", "double", over="numbers")
    of_step = workflow.map("of-step", "double", after=first)
    of_map = workflow.map("of-map", "double", after=of_step)
    workflow.map("of-several", "double", after=[of_run, of_map], over="of-map")

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        await stand.client.start(workflow, {"numbers": [5]}, id="run")
        assert await stand.client.result("run", timeout_s=15) == [8, 16]
        wrong = Workflow[Any]("inputs")
        wrong.map("of-run", "double", over="numbers")
        await stand.client.start(wrong, {"number": [5]}, id="wrong")
        with pytest.raises(RunFailed, match="has no key 'numbers'; its keys are: 'number'"):
            await stand.client.result("wrong", timeout_s=15)

    play(story)


def test_results_larger_than_a_message_reach_what_follows_and_are_stored_once(play: Play) -> None:
    worker = Worker()
    big = "x" * 40_000

    @worker.handler("make")
    async def make(ctx: TaskContext[int]) -> str:
        return f"{ctx.input}{big}"

    @worker.handler("sizes")
    async def sizes(ctx: TaskContext[list[str]]) -> list[int]:
        return [len(each) for each in ctx.input]

    workflow = Workflow[Any]("large")
    made = workflow.map("make", chunk=25)
    workflow.task("sizes", after=made)

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        await stand.client.start(workflow, list(range(50)), id="run")
        assert await stand.client.result("run", timeout_s=20) == [
            len(f"{n}{big}") for n in range(50)
        ]
        stored = (await stand.state(stand.subjects.steps_stream))["bytes"]
        assert stored < 1.3 * 50 * len(big)

    play(story)


def test_a_cancelled_run_stops_what_is_at_work(play: Play) -> None:
    items = Items()
    items.gate = asyncio.Event()

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(items.worker)
        await stand.client.start(mapping(max_parallel=3), list(range(20)), id="run")

        async def at_once() -> int:
            return items.at_once

        await stand.until("three are at work", at_once, lambda count: count == 3)
        await stand.client.cancel("run", "enough")
        with pytest.raises(RunCancelled):
            await stand.client.result("run", timeout_s=15)
        await stand.until("nothing is at work", at_once, lambda count: count == 0)
        assert len(items.seen) == 3

    play(story)


def test_a_timeout_is_an_item_s_and_the_others_go_on(play: Play) -> None:
    worker = Worker()
    seen: list[tuple[int, int]] = []

    @worker.handler("wait")
    async def wait(ctx: TaskContext[int]) -> int:
        seen.append((ctx.index, ctx.attempt))
        if ctx.input == 1 and ctx.attempt == 1:
            await ctx.cancelled.wait()
        return ctx.input

    @worker.handler("block")
    def block(ctx: SyncTaskContext[int]) -> int:
        if ctx.input == 1 and ctx.attempt == 1:
            ctx.cancelled.wait(10)
        return ctx.input

    workflow = Workflow[Any]("timeouts")
    for kind in ("wait", "block"):
        workflow.map(kind, timeout=0.1, chunk=4, retry=QUICK)

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        await stand.client.start(workflow, [0, 1, 2, 3], id="run")
        found = await stand.client.result("run", timeout_s=15)
        assert found == {"wait": [0, 1, 2, 3], "block": [0, 1, 2, 3]}
        assert seen == [(0, 1), (1, 1), (2, 1), (3, 1), (1, 2)]

    play(story)


def test_an_item_finds_its_own_checkpoint_and_its_last_failure(play: Play) -> None:
    worker = Worker()
    found: list[tuple[int, object, str]] = []

    @worker.handler("save")
    async def save(ctx: TaskContext[int]) -> int:
        before = await ctx.load_checkpoint(int)
        found.append((ctx.index, before, ctx.last_failure.message if ctx.last_failure else ""))
        if before is None:
            await ctx.checkpoint(ctx.input * 10)
            raise ValueError(f"after {ctx.input}")
        return before

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        workflow = Workflow[Any]("checkpoints")
        workflow.map("save", chunk=2, retry=QUICK)
        await stand.client.start(workflow, [1, 2, 3], id="run")
        assert await stand.client.result("run", timeout_s=15) == [10, 20, 30]
        assert sorted(found, key=str) == sorted(
            [
                *((index, None, "") for index in range(3)),
                *((index, 10 * (index + 1), f"after {index + 1}") for index in range(3)),
            ],
            key=str,
        )

    play(story)


def test_two_hundred_chunks_that_settle_at_once_are_each_counted(play: Play) -> None:
    items = Items(concurrency=200)
    items.gate = asyncio.Event()

    async def story(stand: Stand) -> None:
        for _ in range(2):
            await stand.engine()
        stand.worker(items.worker)
        await stand.client.start(mapping(max_parallel=200), list(range(200)), id="run")

        async def at_once() -> int:
            return items.at_once

        await stand.until("all are at work", at_once, lambda count: count == 200)
        assert items.gate is not None
        items.gate.set()
        assert await stand.client.result("run", timeout_s=15) == [2 * n for n in range(200)]
        assert len(items.seen) == 200

    play(story)


@pytest.mark.slow
def test_the_document_is_as_large_as_what_is_at_work_and_the_bytes_are_linear(play: Play) -> None:
    items = Items()

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(items.worker)
        written: dict[int, int] = {}
        for count in (1_000, 4_000):
            before = await _written(stand)
            run = f"run-{count}"
            await stand.client.start(mapping(), list(range(10_000, 10_000 + count)), id=run)
            await stand.client.result(run, timeout_s=20)
            written[count] = await _written(stand) - before
            document = await stand.document(run)
            assert len(msgspec.json.encode(document)) < 1_000
        assert written[4_000] < 3 * written[1_000]

    play(story)


async def _written(stand: Stand) -> int:
    """Return the bytes of the events and registers that are stored: none is stored over."""
    events = (await stand.state(stand.subjects.events_stream))["bytes"]
    return int(events) + int((await stand.state(stand.subjects.steps_stream))["bytes"])


def test_a_worker_that_takes_a_chunk_for_one_task_is_refused(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(mapping(), [1], id="run")
        held = await stand.holds(Task, step="double=0", type="double")
        await stand.completes(held.token, 2, step="double=0", type="double", worker="old")
        with pytest.raises(RunFailed, match="worker 'old' took the items 0 and following"):
            await stand.client.result("run", timeout_s=15)

    play(story)
