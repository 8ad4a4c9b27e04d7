"""Approvals as steps on a real server: asked in the inbox, answered once, by client and command.
Method: real engines and workers, several people at once, engines killed while one waits."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import RunConflict, RunFailed, UserError, Workflow
from treadle.sdk.approvals import Approved
from treadle.sdk.asks import Reply
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.messages import MessageSent
from treadle.worker import TaskContext, Worker

BIG = "x" * 60_000


def release(**fields: Any) -> Workflow:
    """Return a workflow with one approval."""
    workflow = Workflow("release", input=dict)
    workflow.task("ship", after=workflow.approval("gate", prompt="Ship it?", **fields))
    return workflow


def shipper() -> Worker:
    """Return a worker that ships what was approved."""
    worker = Worker()

    @worker.handler("ship")
    async def ship(ctx: TaskContext[Approved]) -> str:
        return f"approved by {ctx.input.by}: {ctx.input.comment}"

    return worker


async def asked(stand: Stand) -> None:
    """Wait until the approval of the run is asked."""

    await stand.until("an approval is asked", stand.client.approvals, bool)


def test_an_approval_stands_in_the_inbox_with_its_input_and_holds_no_worker(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(release(approvers=["ada", "bob"], timeout=60), {"n": 1})
        await asked(stand)
        (found,) = await stand.client.approvals()
        assert found == (await run.approvals())[0]
        assert (found.run, found.step, found.ask.id) == (run.id, "gate", "gate")
        assert (found.ask.kind, found.ask.text, found.ask.to) == (
            "approval",
            "Ship it?",
            "ada, bob",
        )
        assert bytes(found.ask.input) == b'{"n":1}'
        assert found.ask.due_ms == found.ask.asked_ms + 60_000
        view = await run.get()
        assert view.step("gate").doing == "awaiting_approval"
        assert "asks ada, bob: Ship it? (until 2" in view.notes[0].text
        assert view.notes[0].text.endswith("; it fails with reason timeout then)")
        command = f"treadle approvals approve gate --run {run.id} --by ada"
        assert view.notes[0].command == command
        why = await run.explain()
        assert (why.main.kind, why.state, why.main.command) == ("ask", "stuck", command)

        stand.worker(shipper())
        await run.approve("gate", "gate", by="bob", text="fine")
        assert await run.result(timeout_s=10) == "approved by bob: fine"
        assert await stand.client.approvals() == ()
        timeline = await stand.client.timeline(run.id)
        assert [(s.kind, s.outcome) for s in timeline.of_step("gate").spans] == [
            ("approval", "completed")
        ]

    play(story)


def test_of_many_answers_at_once_one_counts_and_the_others_are_told(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        workflow = Workflow("vote")
        workflow.approval("gate")
        run = await stand.client.start(workflow)
        await asked(stand)
        votes = [
            (run.approve if n % 2 else run.reject)("gate", "gate", by=f"p{n}", text=f"n{n}")
            for n in range(8)
        ]
        results = await asyncio.gather(*votes, return_exceptions=True)
        told = [each for each in results if isinstance(each, RunConflict)]
        taken = {each for each in results if isinstance(each, int)}
        assert len(taken) == 1, results
        assert len(told) == 7
        assert "the first answer counts" in str(told[0])
        ended = await stand.ended(run.id)
        assert ended.steps["gate"].event == f"e{taken.pop()}"

    play(story)


def test_the_first_answer_counts_although_an_engine_is_told_of_a_later_one_first(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        workflow = Workflow("vote")
        workflow.approval("gate")
        run = await stand.client.start(workflow)
        await asked(stand)
        await stand.stop(engine)
        s = stand.subjects
        for n, verdict in enumerate(("approve", "reject")):
            reply = Reply(call_id="gate", verdict=verdict, by=f"p{n}")
            payload = msgspec.Raw(msgspec.json.encode(reply))
            message = MessageSent(step="gate", kind="reply", id=f"m{n}", payload=payload)
            await stand.js.store(s.messages(run.id, "gate"), msgspec.json.encode(message))
        # An engine that hangs has taken the first.
        consumer = s.engine_consumer(s.partition(run.id))
        taken: asyncio.Queue[Delivery] = asyncio.Queue()
        place = (stand.js, s.events_stream, consumer)
        hand = Puller(*place, capacity=1, on_delivery=taken.put_nowait)
        await hand.start()
        assert b'"m0"' in (await taken.get()).data
        await hand.stop()
        await stand.engine()
        assert (await run.result(timeout_s=10))["by"] == "p0"

    play(story)


def test_a_rejection_fails_the_run_with_who_and_why(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(release(), {})
        await asked(stand)
        first = await run.reject("gate", "gate", by="ada", text="not today")
        with pytest.raises(RunFailed, match="rejected by ada: not today"):
            await run.result(timeout_s=10)
        assert await run.reject("gate", "gate", by="ada") == first
        for other in ({"by": "bob"}, {"by": "ada", "text": "never"}):
            with pytest.raises(RunConflict, match="it was rejected by ada"):
                await run.reject("gate", "gate", **other)
        with pytest.raises(RunConflict, match="it was rejected by ada"):
            await run.approve("gate", "gate", by="bob")

    play(story)


def test_what_cannot_be_an_answer_is_refused_and_the_step_still_asks(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(release(approvers=["ada"]), {})
        await asked(stand)
        with pytest.raises(UserError, match="by ada, and 'eve' is none of them"):
            await run.approve("gate", "gate", by="eve")
        with pytest.raises(UserError, match="a text decides nothing"):
            await run.answer("gate", "gate", "yes", by="ada")
        with pytest.raises(UserError, match="no call that could have other arguments"):
            await run.approve("gate", "gate", by="ada", input={"n": 1})
        with pytest.raises(RunConflict, match="not about 'other'"):
            await run.approve("gate", "other", by="ada")
        assert len(await run.approvals()) == 1
        await run.approve("gate", "gate", by="ada")

    play(story)


def test_an_answer_that_comes_too_late_is_told_so(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("slow")
        workflow.approval("gate", timeout=0.2, on_timeout="complete")
        run = await stand.client.start(workflow)
        assert await run.result(timeout_s=10) is None
        with pytest.raises(RunConflict, match="does not ask any more at step 'gate'"):
            await run.approve("gate", "gate")

    play(story)


def test_an_answer_given_while_no_engine_runs_is_taken_by_the_next_one(play: Play) -> None:
    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        stand.worker(shipper())
        run = await stand.client.start(release(), {})
        await asked(stand)
        await stand.stop(engine)
        await run.approve("gate", "gate", by="ada", text="while nobody looks")
        await stand.engine()
        assert await run.result(timeout_s=10) == "approved by ada: while nobody looks"

    play(story)


def test_a_wide_step_reads_a_branch_and_an_approval_among_large_outputs(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("wide")
        a, b = workflow.task("a", "big"), workflow.task("b", "big")
        gate = workflow.approval("gate")
        route = workflow.choice("route", {"yes": "true"}, default="no")
        workflow.task("end", after=[a, b, gate, route])
        worker = Worker()

        @worker.handler("big")
        async def big(ctx: TaskContext[Any]) -> str:
            return BIG

        @worker.handler("end")
        async def end(ctx: TaskContext[dict[str, Any]]) -> Any:
            assert ctx.input["a"] == ctx.input["b"] == BIG
            return [ctx.input["gate"]["by"], ctx.input["route"]]

        stand.worker(worker)
        run = await stand.client.start(workflow)
        await asked(stand)
        await run.approve("gate", "gate", by="ada")
        assert await run.result(timeout_s=10) == ["ada", "yes"]
        view = await run.get()
        assert (view.step("route").branch, view.step("route").why) == ("yes", "took 'yes': true")
        timeline = await stand.client.timeline(run.id)
        assert [s.detail for s in timeline.of_step("route").spans] == ["took 'yes': true"]
        why = await run.explain()
        assert "choice 'route' took 'yes': true" in [reason.text for reason in why.reasons]

    play(story)


def test_the_whole_of_a_large_input_can_be_read_by_who_decides(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(release(), {"text": BIG})
        await asked(stand)
        (found,) = await run.approvals()
        assert found.ask.full_bytes > len(BIG)
        whole = await stand.client.whole_input(found)
        assert whole is not None
        assert bytes(whole) == b'{"text":"%b"}' % BIG.encode()

    play(story)
