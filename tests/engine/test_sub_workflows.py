"""Steps that start runs: results, failures, cancels through levels, budgets of time, bad requests.
Method: real workflows on a real server; a child's step is settled by a worker, or waits."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.engine.retention import Retention
from treadle.sdk import Retry, RunCancelled, RunFailed, Workflow
from treadle.sdk.children import CHILD_DEPTH_MAX, ParentRun
from treadle.sdk.errors import NonRetryable
from treadle.sdk.messages import ChildEnded, ParentEnded, RunRequested
from treadle.sdk.run import RunDocument, child_of
from treadle.worker import TaskContext, Worker

BIG = "x" * 100_000
undone: list[object] = []


class Order(msgspec.Struct):
    total: int


def child(**options: Any) -> Workflow[Any]:
    workflow = Workflow("child", **options)
    workflow.task("double")
    return workflow


def waiting_child() -> Workflow[Any]:
    workflow = Workflow("child")
    workflow.wait_for_signal("go")
    return workflow


def parent_of(name: str = "child", **step: Any) -> Workflow[Any]:
    workflow = Workflow("parent")
    started = workflow.sub_workflow("sub", name, **step)
    workflow.task("after", "echo", after=started)
    return workflow


def worker() -> Worker:
    made = Worker()

    @made.handler("double")
    async def double(ctx: TaskContext[Any]) -> Any:
        if ctx.input == "bad":
            raise NonRetryable("no such order")
        return ctx.input * 2

    @made.handler("echo")
    async def echo(ctx: TaskContext[Any]) -> Any:
        return ctx.input

    @made.handler("undo")
    async def undo(ctx: TaskContext[Any]) -> None:
        undone.append(ctx.input)

    @made.handler("break")
    async def break_(ctx: TaskContext[Any]) -> None:
        raise NonRetryable("broken")

    return made


async def serving(stand: Stand, *workflows: Workflow[Any]) -> None:
    await stand.engine()
    stand.worker(worker())
    for workflow in workflows:
        await stand.client.register(workflow)


async def child_id(stand: Stand, step: str = "sub", run: str = "r", attempt: int = 1) -> str:
    """Wait until a step has started its child, and return the child's id."""

    def is_it(document: RunDocument | None) -> bool:
        entry = document.steps.get(step) if document else None
        return entry is not None and entry.attempt >= attempt

    found = await stand.until(f"{run}.{step} is at {attempt}", lambda: stand.document(run), is_it)
    assert found is not None
    return child_of(found, step, attempt)


async def requests(stand: Stand, run: str) -> list[RunRequested]:
    stored = [msgspec.json.decode(event.data) for event in await stand.events(run)]
    return [each for each in stored if each["event"] == "run.requested"]


# ------------------------------------------------------------------ results


@pytest.mark.parametrize("value", [21, BIG], ids=["small", "large"])
def test_a_step_completes_with_its_childs_result(play: Play, value: Any) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, child())
        await stand.client.start(parent_of(), value, id="r")
        assert await stand.client.result("r", timeout_s=15) == value * 2
        document = await stand.document("r")
        assert document is not None
        found = await stand.document(child_of(document, "sub"))
        assert found is not None
        assert found.parent == ParentRun(run="r", step="sub", root="r")
        (request,) = await requests(stand, found.run)
        assert request["workflow"] == "child"

    play(story)


def test_the_result_outlives_the_child(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, child())
        workflow = Workflow("parent")
        workflow.sub_workflow("child")
        await stand.client.start(workflow, 4, id="r")
        assert await stand.client.result("r", timeout_s=15) == 8
        gone = await child_id(stand, "child")
        # Both have ended; the child's part is taken away first.
        await Retention(stand.js, stand.subjects)._delete(await stand.ended(gone))
        assert await stand.document(gone) is None
        assert await stand.client.result("r", timeout_s=5) == 8

    play(story)


def test_a_detached_step_names_its_run_and_leaves_it_alone(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, waiting_child())
        run = await stand.client.start(parent_of(detached=True), "in", id="r")
        result = await run.result(timeout_s=15)
        started = await child_id(stand)
        assert result == {"run_id": started}
        document = await stand.status(started, "running")
        assert document.parent == ParentRun(run="r", step="sub", root="r", detached=True)
        await stand.client.signal(started, "go", "now")
        assert await stand.client.result(started, timeout_s=15) == "now"
        events = [event.kind async for event in run.history()]
        assert "run.child_ended" not in events

    play(story)


def test_a_detached_run_goes_on_when_its_parent_is_cancelled(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, waiting_child())
        workflow = Workflow("parent")
        workflow.wait_for_signal(
            "never", after=workflow.sub_workflow("sub", "child", detached=True)
        )
        await stand.client.start(workflow, id="r")
        started = await child_id(stand)
        await stand.status(started, "running")
        await stand.client.cancel("r")
        await stand.ended("r")
        await stand.quiet(0.2)
        assert (await stand.status(started, "running")).status == "running"

    play(story)


# ------------------------------------------------------------------ failures


def test_a_failed_child_fails_the_step_with_its_cause(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, child())
        run = await stand.client.start(parent_of(), "bad", id="r")
        with pytest.raises(RunFailed) as caught:
            await run.result(timeout_s=15)
        failure = caught.value.failure
        assert (caught.value.step, failure.type) == ("sub", "child_failed")
        assert failure.message == (
            f"run {await child_id(stand)!r} of workflow 'child' failed in step 'double': "
            "NonRetryable: no such order"
        )
        assert "test_sub_workflows" in failure.place

    play(story)


def test_a_child_that_somebody_else_cancels_is_a_failure_of_its_own_kind(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, waiting_child())
        await stand.client.start(parent_of(retry=Retry(max_attempts=3)), id="r")
        started = await child_id(stand)
        await stand.status(started, "running")
        await stand.client.cancel(started, "not needed")
        ended = await stand.ended("r")
        assert ended.failure is not None
        assert (ended.failed_step, ended.failure.type) == ("sub", "child_cancelled")
        assert "was cancelled: not needed" in ended.failure.message

    play(story)


def test_a_failed_child_is_started_again_as_another_run(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, waiting_child())
        retry = Retry(max_attempts=2, delay_s=0.05, max_delay_s=0.05)
        workflow = parent_of(retry=retry, timeout=0.3)
        await stand.client.start(workflow, id="r")
        second = await child_id(stand, attempt=2)
        assert second != await child_id(stand)
        failed = await stand.ended(await child_id(stand))
        assert failed.failure is not None
        assert failed.failure.type == "run_timeout"
        await stand.status(second, "running")
        await stand.client.signal(second, "go", "late")
        assert await stand.client.result("r", timeout_s=15) == "late"

    play(story)


def test_a_child_that_takes_too_long_is_a_timeout(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, waiting_child())
        await stand.client.start(parent_of(timeout=0.2), id="r")
        ended = await stand.ended("r")
        assert ended.failure is not None
        assert ended.failure.type == "timeout"
        assert "0.2 s after its request" in ended.failure.message

    play(story)


@pytest.mark.parametrize(
    ("name", "value", "type", "said"),
    [
        ("unheard-of", {"total": 1}, "unknown_workflow", "'unheard-of' of step 'sub' is not"),
        ("child", {"sum": 1}, "InvalidPayload", "total is required"),
    ],
    ids=["unknown", "bad-input"],
)
def test_a_run_that_cannot_be_requested_fails_the_step(
    play: Play, name: str, value: Any, type: str, said: str
) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, child(input=Order))
        await stand.client.start(parent_of(name, retry=Retry(max_attempts=5)), value, id="r")
        ended = await stand.ended("r")
        assert ended.failure is not None
        assert (ended.failed_step, ended.failure.type) == ("sub", type)
        assert said in ended.failure.message
        assert await stand.events(child_of(ended, "sub")) == []

    play(story)


def test_a_workflow_may_start_itself_and_not_without_end(play: Play) -> None:
    async def story(stand: Stand) -> None:
        workflow = Workflow("again")
        workflow.sub_workflow("again")
        await serving(stand)
        await stand.client.start(workflow, id="r")
        ended = await stand.ended("r")
        assert ended.failure is not None
        assert ended.failure.message.count("child_failed") == CHILD_DEPTH_MAX - 1
        assert f"{CHILD_DEPTH_MAX + 1} levels below run 'r'" in ended.failure.message

    play(story)


# ------------------------------------------------------------------ the parent's end


def test_a_cancel_reaches_every_level(play: Play) -> None:
    async def story(stand: Stand) -> None:
        middle = Workflow("middle")
        middle.sub_workflow("sub", "child")
        await serving(stand, waiting_child(), middle)
        await stand.client.start(parent_of("middle"), id="r")
        second = await child_id(stand)
        third = await child_id(stand, run=second)
        await stand.status(third, "running")
        await stand.client.cancel("r", "enough")
        with pytest.raises(RunCancelled):
            await stand.client.result(third, timeout_s=15)
        ended = await stand.ended(second)
        assert ended.failure is not None
        assert "its parent, run 'r', ended" in ended.failure.message
        # A parent that is over hears nothing more.
        assert (await stand.ended("r")).status == "cancelled"

    play(story)


@pytest.mark.parametrize("end", ["timeout", "failure"])
def test_whatever_ends_the_parent_cancels_its_child(play: Play, end: str) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, waiting_child())
        workflow = Workflow("parent", timeout=0.3 if end == "timeout" else 0)
        workflow.sub_workflow("sub", "child")
        if end == "failure":
            workflow.wait_for_signal("go")
            workflow.task("break", after="go")
        await stand.client.start(workflow, id="r")
        started = await child_id(stand)
        await stand.status(started, "running")
        if end == "failure":
            await stand.client.signal("r", "go")
        assert (await stand.ended("r")).status == "failed"
        assert (await stand.ended(started)).status == "cancelled"

    play(story)


def test_a_child_that_undoes_is_not_cut_short_by_hearing_of_its_parent_twice(play: Play) -> None:
    async def story(stand: Stand) -> None:
        undone.clear()
        below = Workflow("child")
        done = below.task("double", compensate="undo")
        below.wait_for_signal("go", after=done)
        below.wait_for_signal("undo")
        await serving(stand, below)
        await stand.client.start(parent_of(), 3, id="r")
        started = await child_id(stand)
        await stand.until(
            "it waits",
            lambda: stand.document(started),
            lambda run: run is not None and "go" in run.steps,
        )
        await stand.client.cancel("r")
        await stand.until(
            "it undoes",
            lambda: stand.document(started),
            lambda run: run is not None and run.undoing != "",
        )
        await stand.publish(ParentEnded(reason="again"), started)
        await stand.quiet(0.2)
        assert (await stand.status(started, "running")).undoing == "cancelled"
        await stand.client.signal(started, "undo")
        assert (await stand.ended(started)).status == "cancelled"

    play(story)


def test_a_step_that_started_a_run_is_undone_with_its_result(play: Play) -> None:
    async def story(stand: Stand) -> None:
        undone.clear()
        workflow = Workflow("parent")
        started = workflow.sub_workflow("sub", "child", compensate="undo")
        workflow.task("break", after=started)
        workflow.task("undo")
        await serving(stand, child())
        await stand.client.start(workflow, 4, id="r")
        assert (await stand.ended("r")).status == "failed"
        assert undone == [8]

    play(story)


# ------------------------------------------------------------------ late and twice


def test_a_request_for_a_step_that_is_over_makes_a_run_that_is_cancelled(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, waiting_child())
        await stand.client.start(parent_of(), id="r")
        started = await child_id(stand)
        await stand.status(started, "running")
        await stand.client.cancel("r")
        await stand.ended(started)
        request = (await stand.events(started))[0]
        # As if an engine had been paused before it asked for the next attempt's run.
        parent = await stand.ended("r")
        late = child_of(parent, "sub", 2)
        event = msgspec.json.decode(request.data, type=RunRequested)
        assert event.parent is not None
        link = msgspec.structs.replace(event.parent, attempt=2)
        await stand.publish(msgspec.structs.replace(event, parent=link), late)
        ended = await stand.ended(late)
        assert (ended.status, ended.steps) == ("cancelled", {})

    play(story)


def test_an_end_that_is_told_twice_or_late_counts_once(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, waiting_child())
        await stand.client.start(parent_of(), id="r")
        started = await child_id(stand)
        told = ChildEnded(step="sub", child=started, outcome="completed", output=msgspec.Raw(b"1"))
        other = msgspec.structs.replace(told, child="another", output=msgspec.Raw(b"2"))
        earlier = msgspec.structs.replace(told, attempt=0, output=msgspec.Raw(b"3"))
        for event in (
            other,
            earlier,
            told,
            msgspec.structs.replace(told, output=msgspec.Raw(b"4")),
        ):
            await stand.publish(event, "r")
        assert await stand.client.result("r", timeout_s=15) == 1

    play(story)


def test_a_child_is_kept_while_its_parent_waits_to_hear_of_its_end(play: Play) -> None:
    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        await stand.client.register(waiting_child())
        await stand.client.start(parent_of(), id="r")
        started = await child_id(stand)
        running = await stand.status(started, "running")
        await stand.stop(engine)
        # As if the engine had died with the child's end stored and the parent not told.
        ended = msgspec.structs.replace(running, status="completed", ended_ms=1)
        await stand.js.store(stand.subjects.run_document(started), msgspec.json.encode(ended))
        sweep = Retention(stand.js, stand.subjects, keep_s=1)
        later_ms = round(time.time() * 1000) + 60_000
        assert await sweep.sweep(later_ms) == 0
        await stand.client.cancel("r")
        await stand.engine()
        await stand.ended("r")
        assert await sweep.sweep(later_ms) == 2

    play(story)


# ------------------------------------------------------------------ readers


def test_readers_see_the_link_from_both_ends(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, waiting_child())
        run = await stand.client.start(parent_of(), id="r")
        started = await child_id(stand)
        await stand.status(started, "running")
        step = (await run.get()).step("sub")
        assert (step.doing, step.child, step.workflow) == ("awaiting_child", started, "child")
        (below,) = await run.children()
        assert below.parent is not None
        assert (below.id, below.parent.run, below.parent.step) == (started, "r", "sub")
        assert await stand.client.children(started) == ()
        told = await run.explain()
        assert (told.main.kind, told.is_stuck) == ("child_wait", True)
        assert "step 'go' waits for the signal 'go'" in told.main.text
        assert told.main.command == f"treadle run signal {started} go"
        spans = (await stand.client.timeline("r")).spans
        assert [(span.kind, span.detail) for span in spans] == [("child", started)]
        await stand.client.signal(started, "go", 1)
        await run.result(timeout_s=15)
        (told_end,) = [each async for each in run.history() if each.kind == "run.child_ended"]
        assert (told_end.name, told_end.status, bytes(told_end.value)) == (
            started,
            "completed",
            b"1",
        )

    play(story)


def test_the_traces_of_parent_and_child_lead_to_each_other(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await serving(stand, child())
        await stand.client.start(parent_of(), 2, id="r")
        await stand.client.result("r", timeout_s=15)
        started = await child_id(stand)
        above, below = await stand.client.trace("r"), await stand.client.trace(started)
        (step,) = [span for span in above.spans if span.name == "run child"]
        (root,) = [span for span in below.spans if span.name.startswith("invoke_workflow")]
        assert [(link.trace_id, link.span_id) for link in root.links] == [
            (step.trace_id, step.span_id)
        ]
        assert [(link.trace_id, link.span_id) for link in step.links] == [
            (root.trace_id, root.span_id)
        ]
        assert step.attributes["treadle.child.run.id"] == started
        assert {span.attributes.get("session.id", "r") for span in below.spans} == {"r"}

    play(story)
