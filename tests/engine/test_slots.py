"""Limits on a real server: how many at a time, in a while, and whose turn it is.
Method: handlers note when they begin and end, each in its own words; engines run in this loop."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import msgspec
import pytest
from tests.crash.process import wait_until
from tests.crash.slots import all_free, records
from tests.engine.conftest import Play
from tests.engine.stand import Stand
from typer.testing import CliRunner

from treadle.cli.main import app
from treadle.sdk import Retry, Workflow
from treadle.sdk.flow import Concurrency, RateLimit
from treadle.sdk.messages import Parked, Queued, Sleeping, SlotRecord, StepContinued, Task
from treadle.sdk.settings import Settings
from treadle.worker import LoopContext, TaskContext, Worker


class Notes:
    """What handlers noted: how many ran at a time, by key, and in which order they began."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun: list[Any] = []
        self.together: Counter[str] = Counter()

    async def run(self, key: str, what: Any) -> None:
        self.now[key] += 1
        self.most[key] = max(self.most[key], self.now[key])
        self.begun.append(what)
        await wait_until("as many run as may", lambda: self.most[key] >= self.together[key])
        await asyncio.sleep(0.02)
        self.now[key] -= 1


def working(notes: Notes, type: str = "work") -> Worker:
    worker = Worker()

    @worker.handler(type)
    async def work(ctx: TaskContext[Any]) -> str:
        await notes.run(ctx.input["customer"], ctx.run)
        return "done"

    return worker


def test_no_more_than_the_limit_of_each_key_run_at_a_time(play: Play) -> None:
    workflow = Workflow("orders")
    workflow.task("charge", "work", concurrency=Concurrency(2, key='input["customer"]'))

    async def story(stand: Stand) -> None:
        notes = Notes()
        notes.together.update(c0=2, c1=2)
        await stand.engine()
        await stand.engine()
        stand.worker(working(notes))
        runs = [
            await stand.client.start(workflow, {"customer": f"c{n % 2}"}, id=f"r{n}")
            for n in range(14)
        ]
        for run in runs:
            assert await run.result(timeout_s=15) == "done"
        assert notes.most == {"c0": 2, "c1": 2}
        assert len(notes.begun) == 14

    play(story)


def test_a_queue_gives_way_to_a_higher_priority_and_to_nobody_else(play: Play) -> None:
    workflow = Workflow("orders")
    workflow.task("charge", "work", concurrency=Concurrency(1))

    async def story(stand: Stand) -> None:
        await stand.engine()
        for name, priority in (("first", 0), ("low", 0), ("high", 50), ("next", 0)):
            await stand.client.start(workflow, {"customer": "c"}, id=name, priority=priority)
            await stand.holds(Task if name == "first" else Queued, name, "charge", "work")
        notes = Notes()
        stand.worker(working(notes))
        for name in ("first", "low", "high", "next"):
            await stand.ended(name)
        assert notes.begun == ["first", "high", "low", "next"]

    play(story)


def test_the_priority_of_a_step_is_asked_of_each_run_that_names_none_itself(play: Play) -> None:
    workflow = Workflow("orders")
    workflow.task("charge", "work", concurrency=Concurrency(1), priority='input["urgency"]')

    async def story(stand: Stand) -> None:
        await stand.engine()
        asked = (("first", 0, 0), ("low", 0, 0), ("high", 50, 0), ("highest", 10, 90))
        for name, urgency, priority in asked:
            given = {"customer": "c", "urgency": urgency}
            await stand.client.start(workflow, given, id=name, priority=priority)
            await stand.holds(Task if name == "first" else Queued, name, "charge", "work")
        notes = Notes()
        stand.worker(working(notes))
        for name, _, _ in asked:
            await stand.ended(name)
        assert notes.begun == ["first", "highest", "high", "low"]

    play(story)


@pytest.mark.slow
def test_those_with_a_weight_have_as_many_turns_when_others_have_one(play: Play) -> None:
    workflow = Workflow("orders")
    workflow.task(
        "charge",
        "work",
        concurrency=Concurrency(1),
        fair_by='input["customer"]',
        weights={"gold": 3.0},
    )

    async def story(stand: Stand) -> None:
        await stand.engine()
        names = ["holder", *(f"{who}{n}" for n in range(6) for who in ("free", "gold"))]
        for name in names:
            await stand.client.start(workflow, {"customer": name[:4]}, id=name)
            await stand.holds(Task if name == "holder" else Queued, name, "charge", "work")
        notes = Notes()
        stand.worker(working(notes))
        for name in names:
            await stand.ended(name)
        turns = Counter(name[:4] for name in notes.begun[1:9])
        assert turns == {"gold": 6, "free": 2}

    play(story)


def test_those_who_wait_take_turns_by_whom_they_belong_to(play: Play) -> None:
    workflow = Workflow("orders")
    workflow.task("charge", "work", concurrency=Concurrency(1), fair_by='input["customer"]')

    async def story(stand: Stand) -> None:
        await stand.engine()
        names = ["holder", *(f"busy{n}" for n in range(4)), "quiet0", "quiet1"]
        for name in names:
            customer = "quiet" if name.startswith("quiet") else "busy"
            await stand.client.start(workflow, {"customer": customer}, id=name)
            await stand.holds(Task if name == "holder" else Queued, name, "charge", "work")
        notes = Notes()
        stand.worker(working(notes))
        for name in names:
            await stand.ended(name)
        assert max(notes.begun.index("quiet0"), notes.begun.index("quiet1")) <= 4
        assert [each for each in notes.begun if each.startswith("busy")] == names[1:5]

    play(story)


def test_each_iteration_and_retry_asks_for_its_slot_anew(play: Play) -> None:
    workflow = Workflow("loops")
    workflow.agent_loop(
        "loop",
        "work",
        max_iterations=9,
        retry=Retry(max_attempts=2, delay_s=0.01),
        concurrency=Concurrency(1),
    )
    notes, worker = Notes(), Worker()

    @worker.handler("work")
    async def work(ctx: LoopContext[Any]) -> Any:
        await notes.run("k", (ctx.run, ctx.iteration, ctx.attempt))
        if ctx.iteration == 1 and ctx.attempt == 1:
            raise ValueError("once")
        return ctx.complete() if ctx.iteration == 2 else ctx.continue_()

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        for name in ("a", "b", "c"):
            await stand.client.start(workflow, id=name)
        for name in ("a", "b", "c"):
            await stand.client.result(name, timeout_s=15)
        assert notes.most["k"] == 1
        assert len(notes.begun) == 12
        order = [run for run, _, _ in notes.begun]
        assert order[:3] != ["a", "a", "a"], "an iteration goes behind those that wait"
        await all_free(stand)

    play(story)


def test_an_end_frees_the_slot_of_its_own_register_and_of_no_other(play: Play) -> None:
    workflow = Workflow("pairs")
    shared = Concurrency(2, scope="workflow")
    for step in ("one", "two", "three"):
        workflow.task(step, "link", concurrency=shared)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(workflow, id="run")
        given = [await stand.holds(Task, "run", step, "link") for step in ("one", "two")]
        await stand.holds(Queued, "run", "three", "link")
        for _ in range(2):  # The second verdict is a duplicate, and frees nothing.
            await stand.completes(given[0].token, step="one", type="link")
        third = await stand.holds(Task, "run", "three", "link")
        (record,) = await records(stand)
        assert {h.address for h in record.holders} == {"main.run.two.link", "main.run.three.link"}
        await stand.completes(given[1].token, step="two", type="link")
        await stand.completes(third.token, step="three", type="link")
        await stand.ended()
        await all_free(stand)

    play(story)


def test_a_loop_that_fails_at_its_bound_leaves_its_slot(play: Play) -> None:
    workflow = Workflow("bounded")
    workflow.agent_loop(
        "loop", "link", max_iterations=1, on_failure="tell", concurrency=Concurrency(1)
    )
    workflow.task("tell", "link")

    async def story(stand: Stand) -> None:
        await stand.engine()
        for name in ("first", "second"):
            await stand.client.start(workflow, id=name)
        first = await stand.holds(Task, "first")
        await stand.holds(Queued, "second")
        await stand.publish(
            StepContinued(step="loop", type="link", token=first.token, head=first.token), "first"
        )
        await stand.holds(Task, "second")
        await stand.holds(Task, "first", "tell")
        document = await stand.document("first")
        assert document is not None and document.steps["loop"].status == "failed"
        await stand.client.cancel("second")
        await stand.ended("second")
        await all_free(stand)

    play(story)


def test_a_task_that_came_too_early_holds_no_slot_and_uses_no_attempt(play: Play) -> None:
    pool = Concurrency(1, scope="namespace", name="pool")
    paced = Workflow("paced")
    paced.task("send", "work", concurrency=pool, rate_limits=RateLimit(1, 3600.0))
    free = Workflow("free")
    free.task("charge", "work", concurrency=pool)

    async def story(stand: Stand) -> None:
        notes = Notes()
        await stand.engine()
        stand.worker(working(notes))
        for name in ("now", "later"):
            await stand.client.start(paced, {"customer": "c"}, id=name)
        await stand.ended("now")
        asleep = await stand.holds(Sleeping, "later", "send", "work")
        await stand.client.start(free, {"customer": "c"}, id="free")
        assert (await stand.client.result("free", timeout_s=15)) == "done"
        assert isinstance(asleep.register, Sleeping)
        assert (asleep.register.task.attempt, asleep.register.task.failures) == (1, 0)
        explained = await stand.client.explain("later")
        assert explained.main.kind == "limited"
        assert "rate limit 'step paced/send'" in explained.main.text
        await stand.client.cancel("later")
        await stand.ended("later")
        await all_free(stand)

    play(story)


def test_what_its_rate_lets_begin_is_given_out_at_once_and_holds_its_slot(play: Play) -> None:
    workflow = Workflow("paced")
    limits: dict[str, Any] = {"concurrency": Concurrency(2), "rate_limits": RateLimit(60, 60)}
    workflow.task("send", "work", **limits)

    async def story(stand: Stand) -> None:
        await stand.engine()
        for name in ("r1", "r2", "r3"):
            await stand.client.start(workflow, id=name)
        for name in ("r1", "r2"):
            await stand.holds(Task, name, "send", "work")  # No worker is there to wait for it.
        await stand.holds(Queued, "r3", "send", "work")
        (record,) = await records(stand)
        assert len(record.holders) == 2

    play(story)


def test_no_more_begin_than_the_rate_allows_and_each_on_its_first_attempt(play: Play) -> None:
    workflow = Workflow("paced")
    workflow.task("send", "work", rate_limits=RateLimit(10, 1.0, burst=1))
    worker, begun = Worker(), list[tuple[float, int]]()

    @worker.handler("work")
    async def work(ctx: TaskContext[Any]) -> None:
        begun.append((time.time(), ctx.attempt))

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        since = time.time()
        names = [f"r{n}" for n in range(6)]
        for name in names:
            await stand.client.start(workflow, id=name)
        for name in names:
            await stand.ended(name)
        assert [attempt for _, attempt in begun] == [1] * 6
        # A clock may be as much ahead as a delay tolerates; nothing else is early.
        assert all(at - since >= n * 0.1 - 0.06 for n, (at, _) in enumerate(sorted(begun)))

    play(story)


def test_a_key_without_a_value_fails_its_step_with_the_reason(play: Play) -> None:
    workflow = Workflow("keyed")
    workflow.task("charge", "work", concurrency=Concurrency(1, key='input["customer"]'))

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(workflow, {}, id="run")
        document = await stand.ended()
        assert document.failure is not None
        assert document.failure.type == "condition"
        assert "'customer'" in document.failure.message

    play(story)


def test_a_paused_run_holds_no_slot_and_goes_on_where_it_was(play: Play) -> None:
    workflow = Workflow("orders")
    workflow.task("charge", "work", concurrency=Concurrency(1))

    async def story(stand: Stand) -> None:
        await stand.engine()
        for name in ("first", "second", "third"):
            await stand.client.start(workflow, {"customer": "c"}, id=name)
            await stand.holds(Task if name == "first" else Queued, name, "charge", "work")
        await stand.client.pause("second")
        await stand.status("second", "paused")
        notes = Notes()
        stand.worker(working(notes))
        for name in ("first", "third"):
            await stand.ended(name)
        await stand.holds(Parked, "second", "charge", "work")
        await all_free(stand)
        await stand.client.resume("second")
        await stand.ended("second")
        assert notes.begun == ["first", "third", "second"]
        await all_free(stand)

    play(story)


@pytest.mark.slow
def test_a_record_that_was_garbled_is_made_anew_from_the_registers(play: Play) -> None:
    workflow = Workflow("orders")
    workflow.task("charge", "work", concurrency=Concurrency(1))

    async def story(stand: Stand) -> None:
        await stand.engine()
        for name in ("first", "second"):
            await stand.client.start(workflow, {"customer": "c"}, id=name)
        await stand.holds(Task, "first", "charge", "work")
        await stand.holds(Queued, "second", "charge", "work")
        s = stand.subjects
        found = stand.js.read(s.limits_stream, s.all_slots)
        (subject,) = [stored.subject async for stored in found]
        await stand.js.store(subject, b"\xff")

        async def holders() -> list[str]:
            stored = await stand.js.last(s.limits_stream, subject)
            assert stored is not None
            try:
                record = msgspec.json.decode(stored.data, type=SlotRecord)
            except ValueError:
                return []
            return [holder.address for holder in record.holders]

        await stand.until("the record is back", holders, lambda it: len(it) == 1)
        assert await holders() == ["main.first.charge.work"]
        notes = Notes()
        stand.worker(working(notes))
        for name in ("first", "second"):
            await stand.ended(name, timeout_s=45)
        assert notes.most == {"c": 1}

    play(story)


def test_people_see_who_holds_a_limit_and_who_waits_for_it(play: Play, settings: Settings) -> None:
    workflow = Workflow("orders")
    workflow.task("charge", "work", concurrency=Concurrency(1, key='input["customer"]'))

    async def story(stand: Stand) -> None:
        await stand.engine()
        for name in ("first", "second", "third"):
            await stand.client.start(workflow, {"customer": "c"}, id=name)
            await stand.holds(Task if name == "first" else Queued, name, "charge", "work")
        # A register waits a moment before its place in the line is stored.
        (view,) = await stand.until(
            "both wait", stand.client.limits, lambda views: views[0].waiting == 2
        )
        assert view.label == "step orders/charge [c]"
        assert view.limit == 1
        assert [(each.run, each.step) for each in view.holders] == [("first", "charge")]
        explained = await stand.client.explain("third")
        (reason,) = [each for each in explained.reasons if each.kind == "limited"]
        assert "limit 'step orders/charge [c]', held by first/charge; 1 before it" in reason.text
        step = (await stand.client.get("third")).step("charge")
        assert step.doing == "limited"

    play(story)
    runner = CliRunner(env={"TREADLE_NATS_URL": settings.url})
    done = runner.invoke(app, ["limits", "--namespace", settings.namespace])
    assert done.exit_code == 0
    assert "step orders/charge [c]" in done.output
    assert "1/1" in done.output
    assert "first/charge" in done.output
