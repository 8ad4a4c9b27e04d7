"""Runs made of other runs, on a real server: what is executed again, and what is not.
Method: an engine and a worker whose handlers count their executions."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.engine.forks import Forks
from treadle.engine.registers import Registers
from treadle.engine.retention import Retention
from treadle.sdk import Retry, RunHandle, Workflow
from treadle.sdk.errors import RunConflict, RunFailed, UnknownRun, UserError
from treadle.sdk.messages import OutcomeKept, RecordKept, StepGiven
from treadle.sdk.subjects import RegisterAddress
from treadle.sdk.tracing import names
from treadle.worker import LoopContext, TaskContext, Worker


class Shop:
    """A workflow of which each step can be made to fail, with what was executed."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.inputs: dict[str, Any] = {}
        self.broken: set[str] = {"ship"}
        self.iterations: list[int] = []
        self.saved: list[Any] = []
        self.worker = Worker()
        self.workflow = Workflow("shop")
        quote = self.workflow.task("quote")
        paid = self.workflow.wait_for_signal("paid", signal="paid", after=quote)
        pack = self.workflow.agent_loop("pack", after=[quote, paid], max_iterations=9)
        self.workflow.task("ship", after=pack)
        self.workflow.task("note", after=quote)

        for name in ("quote", "ship", "note"):
            self.worker.handler(name)(self._task)

        @self.worker.handler("pack")
        async def pack_one(ctx: LoopContext[Any]) -> Any:
            self.iterations.append(ctx.iteration)
            self.inputs.setdefault(f"pack {ctx.iteration}", ctx.input)
            self.saved.append(await ctx.load_checkpoint(int))
            if f"pack {ctx.iteration}" in self.broken:
                raise ValueError("the box is torn")
            await ctx.checkpoint(ctx.iteration)
            if ctx.iteration == 3:
                return ctx.complete("packed")
            return ctx.continue_({"packed": ctx.iteration})

    async def _task(self, ctx: TaskContext[Any]) -> str:
        self.done[ctx.step] += 1
        self.inputs[ctx.step] = ctx.input
        if ctx.step in self.broken:
            raise ValueError(f"{ctx.step} is out of order")
        return f"{ctx.step} {self.done[ctx.step]}"

    async def fail(self, stand: Stand) -> RunHandle:
        """Run it until it fails."""
        await stand.engine()
        stand.worker(self.worker)
        run = await stand.client.start(self.workflow, {"order": 7}, id="run")
        await run.signal("paid", {"by": "card"})
        with pytest.raises(RunFailed):
            await run.result(timeout_s=10)
        return run


def test_a_retry_takes_over_what_has_completed_and_executes_the_rest(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        run = await shop.fail(stand)
        shop.broken.clear()
        again = await run.retry()
        assert again.id == "run-r1"
        assert await again.result(timeout_s=10) == {"ship": "ship 2", "note": "note 1"}
        assert (shop.done, shop.iterations) == ({"quote": 1, "note": 1, "ship": 2}, [0, 1, 2, 3])
        assert shop.inputs["ship"] == "packed"
        view = await again.get()
        assert view.forked_from is not None
        assert (view.forked_from.run, view.forked_from.step, view.forked_from.kept) == (
            "run",
            "",
            4,
        )
        assert (await run.get()).status == "failed", "a terminal status never changes"
        # The same once more is the same run.
        assert (await run.retry()).id == "run-r1"
        assert shop.done["ship"] == 2
        (listed,) = [each for each in await stand.client.list() if each.id == "run-r1"]
        assert listed.forked_from is not None

    play(story)


@pytest.mark.slow
def test_what_a_retry_took_over_outlives_the_run_it_was_made_of(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        run = await shop.fail(stand)
        again = await run.retry()
        with pytest.raises(RunFailed):
            await again.result(timeout_s=10)
        stored = await stand.js.last(stand.subjects.runs_stream, stand.subjects.run_document("run"))
        assert stored is not None
        await Retention(stand.js, stand.subjects, keep_s=0.001).sweep(stored.time_ms + 1)
        with pytest.raises(UnknownRun):
            await run.get()
        shop.broken.clear()
        last = await again.retry()
        assert last.id == "run-r2"
        assert await last.result(timeout_s=10) == {"ship": "ship 3", "note": "note 1"}
        assert shop.done["quote"] == 1

    play(story)


def test_a_loop_that_failed_goes_on_at_its_iteration_with_its_checkpoint(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        shop.broken = {"pack 2"}
        run = await shop.fail(stand)
        shop.broken.clear()
        again = await run.retry(id="again")
        await again.result(timeout_s=10)
        assert shop.iterations == [0, 1, 2, 2, 3]
        assert shop.inputs["pack 2"] == {"packed": 1}
        assert shop.saved == [None, 0, 1, 1, 2]

    play(story)


def test_a_fork_starts_again_from_a_step_with_another_input(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        run = await shop.fail(stand)
        shop.broken.clear()
        other = await run.fork(from_step="ship", input={"by": "air"}, id="air")
        assert await other.result(timeout_s=10) == {"ship": "ship 2", "note": "note 1"}
        assert shop.inputs["ship"] == {"by": "air"}
        assert (await run.fork(from_step="ship", input={"by": "air"}, id="air")).id == "air"
        with pytest.raises(RunConflict, match="was not made of run 'run' in this way"):
            await run.fork(from_step="ship", input={"by": "sea"}, id="air")
        assert shop.done == {"quote": 1, "note": 1, "ship": 2}

    play(story)


def test_a_fork_of_an_iteration_begins_with_what_that_had(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        shop.broken = {"pack 3"}
        run = await shop.fail(stand)
        shop.broken.clear()
        del shop.iterations[:]
        with pytest.raises(RunConflict, match="has replaced the checkpoint with which iteration 2"):
            await run.fork(from_step="pack", iteration=2)
        other = await run.fork(from_step="pack", iteration=3, id="other")
        await other.result(timeout_s=10)
        assert shop.iterations == [3]
        whole = await run.fork(from_step="pack", id="whole")
        await whole.result(timeout_s=10)
        assert shop.iterations == [3, 0, 1, 2, 3]
        assert shop.done["quote"] == 1, "what does not depend on it is taken over"

    play(story)


@pytest.mark.slow
def test_a_fork_without_a_step_is_the_whole_run_with_another_input(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        run = await shop.fail(stand)
        shop.broken.clear()
        other = await run.fork(input={"order": 8})
        assert other.id.startswith("run-f")
        await other.signal("paid")
        await other.result(timeout_s=10)
        assert shop.inputs["quote"] == {"order": 8}
        assert shop.done == {"quote": 2, "note": 2, "ship": 2}

    play(story)


@pytest.mark.slow
def test_a_retry_on_the_newest_version_executes_what_is_new_or_changed(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        run = await shop.fail(stand)
        shop.broken.clear()
        mended = Workflow("shop")
        quote = mended.task("quote")
        paid = mended.wait_for_signal("paid", signal="paid", after=quote)
        pack = mended.agent_loop("pack", after=[quote, paid], max_iterations=9)
        mended.task("ship", after=pack, retry=Retry(max_attempts=3))
        mended.task("note", after=quote, timeout=30)
        version = await stand.client.register(mended)
        again = await run.retry(version="latest")
        await again.result(timeout_s=10)
        assert (await again.get()).definition == version
        assert shop.done == {"quote": 1, "ship": 2, "note": 2}

    play(story)


@pytest.mark.slow
def test_what_was_undone_is_done_again(play: Play) -> None:
    async def story(stand: Stand) -> None:
        done: list[str] = []
        broken = {"pay"}
        worker = Worker()

        async def act(ctx: TaskContext[Any]) -> str:
            done.append(ctx.step)
            if ctx.step in broken:
                raise ValueError("refused")
            return ctx.step

        for name in ("flight", "cancel", "map", "pay"):
            worker.handler(name)(act)
        trip = Workflow("trip")
        flight = trip.task("flight", compensate="cancel")
        map_ = trip.task("map")
        trip.task("pay", after=[flight, map_])
        trip.task("cancel")
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(trip, id="run")
        with pytest.raises(RunFailed):
            await run.result(timeout_s=10)
        broken.clear()
        again = await run.retry()
        assert await again.result(timeout_s=10) == "pay"
        assert Counter(done) == {"flight": 2, "map": 1, "pay": 2, "cancel": 1}

    play(story)


def test_what_cannot_be_forked_is_said_and_nothing_is_stored(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        run = await shop.fail(stand)
        before = (await stand.state(stand.subjects.events_stream))["last_seq"]
        with pytest.raises(UserError, match="has no step 'wrap'"):
            await run.fork(from_step="wrap")
        with pytest.raises(UserError, match="'ship' of workflow 'shop' is no agent loop"):
            await run.fork(from_step="ship", iteration=1)
        with pytest.raises(UserError, match="'paid' is not executed by a worker"):
            await run.fork(from_step="paid", input=1)
        with pytest.raises(RunConflict, match="no stored verdict of iteration 4"):
            await run.fork(from_step="pack", iteration=5)
        with pytest.raises(UnknownRun):
            await stand.client.retry("nowhere")
        quote = stand.register_subject("run", "quote", "quote")
        await stand.js.purge(stand.subjects.steps_stream, quote)
        with pytest.raises(RunConflict, match="has lost the output of step 'quote'"):
            await run.retry()
        assert (await stand.state(stand.subjects.events_stream))["last_seq"] == before

    play(story)


@pytest.mark.slow
def test_of_two_requests_of_one_id_the_first_is_the_run(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        run = await shop.fail(stand)
        shop.broken.clear()
        again = await run.retry()
        await again.result(timeout_s=10)
        found = [msgspec.json.decode(stored.data) for stored in await stand.events("run-r1")]
        (request,) = [each for each in found if each["event"] == "run.requested"]
        # Another client has asked for the same id, and keeps nothing.
        request["fork"]["kept"] = {}
        await stand.publish(msgspec.json.encode(request), "run-r1")
        await stand.quiet(0.3)
        assert shop.done == {"quote": 1, "note": 1, "ship": 2}

    play(story)


@pytest.mark.slow
def test_copies_whose_client_died_before_the_request_are_no_run_and_stand_in_no_way(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        run = await shop.fail(stand)
        shop.broken.clear()
        left = OutcomeKept(step="quote", outcome="completed", type="quote")
        await stand.publish(left, "run-r1")  # type: ignore[arg-type]
        await stand.quiet(0.3)
        assert await stand.document("run-r1") is None
        assert [letter.run for letter in await stand.letters()] == ["run"]
        again = await run.retry()
        assert await again.result(timeout_s=10) == {"ship": "ship 2", "note": "note 1"}

    play(story)


def test_two_engines_that_restore_a_step_write_it_once_and_nothing_over_what_a_worker_saved(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        js, s = stand.js, stand.subjects
        records = [RecordKept(step="a", record=msgspec.Raw(b"%d" % n)) for n in range(2)]
        kept = [await stand.publish(record, "new") for record in records]  # type: ignore[arg-type]
        given = StepGiven(step="a", iteration=2, checkpoint=msgspec.Raw(b"7"), records=tuple(kept))
        sequence = await stand.publish(given, "new")  # type: ignore[arg-type]
        address = RegisterAddress("main", "new", "a", "work")
        engines = [Forks(js, s, Registers(js, s)) for _ in range(2)]
        heads = await asyncio.gather(
            *(each.restore(address, sequence, given) for each in (*engines, *engines))
        )
        newest = await js.last(s.steps_stream, s.pair("new", "a"))
        assert newest is not None and max(heads) == newest.sequence
        journal = [stored.data async for stored in js.read(s.steps_stream, s.records("new", "a"))]
        assert journal == [b"0", b"1"]
        saved = await js.store(s.checkpoint("new", "a"), b'{"saved": "by a worker"}')
        assert await engines[1].restore(address, sequence, given) == saved
        stands = await js.last(s.steps_stream, s.checkpoint("new", "a"))
        assert stands is not None and stands.sequence == saved

    play(story)


@pytest.mark.slow
def test_a_map_that_has_completed_is_taken_over(play: Play) -> None:
    async def story(stand: Stand) -> None:
        done: Counter[str] = Counter()
        broken = {"sum"}
        worker = Worker()

        @worker.handler("each")
        async def each(ctx: TaskContext[int]) -> int:
            done["each"] += 1
            return ctx.input * 2

        @worker.handler("sum")
        async def total(ctx: TaskContext[list[int]]) -> int:
            if broken:
                raise ValueError("cannot add")
            return sum(ctx.input)

        workflow = Workflow("sums")
        workflow.task("sum", after=workflow.map("each"))
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, [1, 2, 3], id="run")
        with pytest.raises(RunFailed):
            await run.result(timeout_s=10)
        broken.clear()
        again = await run.retry()
        assert await again.result(timeout_s=10) == 12
        assert done["each"] == 3
        assert (await again.get()).step("each").status == "completed"

    play(story)


@pytest.mark.slow
def test_of_a_plan_only_the_step_that_failed_is_executed_again(play: Play) -> None:
    async def story(stand: Stand) -> None:
        done: Counter[str] = Counter()
        broken = {"plan--b"}
        worker = Worker()

        @worker.handler("plan")
        async def plan(ctx: TaskContext[Any]) -> Any:
            done[ctx.step] += 1
            steps = [
                {"kind": "task", "id": "a", "type": "work"},
                {"kind": "task", "id": "b", "type": "work", "after": ["a"]},
            ]
            return {"steps": steps}

        @worker.handler("work")
        async def work(ctx: TaskContext[Any]) -> str:
            done[ctx.step] += 1
            if ctx.step in broken:
                raise ValueError("not yet")
            return f"{ctx.step} of {ctx.input}"

        workflow = Workflow("planned")
        workflow.task("end", "work", after=workflow.planner("plan", max_steps=5))
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, "go", id="run")
        with pytest.raises(RunFailed):
            await run.result(timeout_s=10)
        broken.clear()
        again = await run.retry()
        assert await again.result(timeout_s=10) == "end of plan--b of plan--a of go"
        assert done == {"plan": 1, "plan--a": 1, "plan--b": 2, "end": 1}

    play(story)


@pytest.mark.slow
def test_runs_that_steps_have_started_are_taken_over_and_not_started_again(play: Play) -> None:
    async def story(stand: Stand) -> None:
        done: Counter[str] = Counter()
        given: list[Any] = []
        broken = {"last"}
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: TaskContext[Any]) -> str:
            done[ctx.run] += 1
            return "worked"

        @worker.handler("last")
        async def last(ctx: TaskContext[Any]) -> str:
            given.append(ctx.input)
            if broken:
                raise ValueError("not yet")
            return "done"

        child = Workflow("child")
        child.task("work")
        workflow = Workflow("parent")
        attached = workflow.sub_workflow("attached", child)
        detached = workflow.sub_workflow("detached", child, detached=True)
        workflow.task("last", after=[attached, detached])
        await stand.client.register(child)
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, id="run")
        with pytest.raises(RunFailed):
            await run.result(timeout_s=10)
        broken.clear()
        again = await run.retry()
        assert await again.result(timeout_s=10) == "done"
        assert len(done) == 2
        assert given[0]["attached"] == "worked"
        assert given[1] == given[0], "the same run of the detached step"
        child_of_it = given[0]["detached"]["run_id"]
        await stand.client.handle(child_of_it).result(timeout_s=10)
        assert set(done.values()) == {1}
        # A fork of a child is a run of its own: the step that started the child is over.
        own = await stand.client.fork(child_of_it, id="own")
        assert await own.result(timeout_s=10) == "worked"
        assert (await own.get()).parent is None

    play(story)


@pytest.mark.slow
def test_what_was_taken_over_has_no_time_in_the_trace_and_is_marked_for_people(play: Play) -> None:
    async def story(stand: Stand) -> None:
        shop = Shop()
        run = await shop.fail(stand)
        shop.broken.clear()
        again = await run.retry()
        await again.result(timeout_s=10)
        view = await again.get()
        assert {step.id for step in view.steps if step.is_kept} == {"quote", "paid", "pack", "note"}
        trace = await stand.client.trace(again.id)
        assert {span.attributes.get(names.STEP, "ship") for span in trace.spans} == {"ship"}
        (link,) = [link for span in trace.spans for link in span.links]
        assert link.relation == "forked_from"
        assert link.trace_id == (await stand.client.trace(run.id)).trace_id
        timeline = await stand.client.timeline(again.id)
        assert {span.step for span in timeline.spans} == {"ship"}

    play(story)
