"""What a waiting step asks, seen and answered by a client: each once, in any order, or refused.
Method: a real engine on a real server, and a handler of a few lines that asks by hand."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.sdk import RunConflict, UserError
from treadle.sdk.client import PendingAsk
from treadle.sdk.messages import Ended, Parked
from treadle.worker import Ask, LoopContext, Reply, Worker

PAY = Ask(
    id="outer/pay-1",
    kind="approval",
    tool="pay",
    input=msgspec.Raw(b'{"cents":5}'),
    args_hash="5" * 64,
)
SEND = msgspec.structs.replace(PAY, id="outer/send-2", tool="send", args_hash="6" * 64)
COLOUR = Ask(id="colour", text="Which?", options=("red", "blue"))
NINE_MONTHS = timedelta(days=270)


def asking(*asks: Ask, until: timedelta | None = None) -> Worker:
    """Return a worker that waits until all it asks is answered; the answers are its output."""
    worker = Worker()

    @worker.handler("link")
    async def ask(ctx: LoopContext[Any]) -> Any:
        said: dict[str, Any] = dict(ctx.input or {})
        for message in await ctx.messages():
            if message.kind == "reply":
                reply = message.decode(Reply)
                said.setdefault(reply.call_id, [reply.verdict, reply.by, reply.input, reply.text])
        left = [each for each in asks if each.id not in said]
        if not left:
            return ctx.complete(said)
        return ctx.wait("people", until=until, state=said, asks=left)

    return worker


async def waiting(stand: Stand, *asks: Ask, **options: Any) -> Any:
    await stand.engine()
    run = await stand.client.start(loop(), None, id="run")
    stand.worker(asking(*asks, **options))
    await stand.status("run", "parked")
    return run


def test_what_is_asked_is_listed_until_it_is_answered(play: Play) -> None:
    async def story(stand: Stand) -> None:
        run = await waiting(stand, PAY, COLOUR)
        found = await stand.client.approvals()
        assert [(each.run, each.workflow, each.step) for each in found] == [
            ("run", "one-loop", "loop")
        ] * 2
        assert {each.ask.id for each in found} == {PAY.id, COLOUR.id}
        (pay,) = (each.ask for each in found if each.ask.id == PAY.id)
        assert pay.asked_ms > 0
        assert msgspec.structs.replace(pay, asked_ms=0) == PAY
        assert await run.approvals() == found
        view = await run.get()
        assert {ask.id for ask in view.step("loop").asks} == {PAY.id, COLOUR.id}
        assert any("pay({" in note.text and PAY.id in note.command for note in view.notes)

        await run.answer("loop", "colour", "blue", by="ada")
        await stand.reached(2)
        await stand.holds(Parked)
        assert [each.ask.id for each in await run.approvals()] == [PAY.id]
        await run.approve("loop", PAY.id, args_hash=PAY.args_hash, by="bob")
        said = await run.result(timeout_s=10)
        assert said == {
            "colour": ["answer", "ada", None, "blue"],
            PAY.id: ["approve", "bob", None, ""],
        }
        assert await stand.client.approvals() == () == await run.approvals()

    play(story)


@pytest.mark.parametrize("first", [0, 1])
def test_two_approvals_are_given_in_either_order_or_at_once(play: Play, first: int) -> None:
    async def story(stand: Stand) -> None:
        run = await waiting(stand, PAY, SEND)
        order = [PAY, SEND][:: -1 if first else 1]
        await asyncio.gather(
            *(run.approve("loop", each.id, args_hash=each.args_hash) for each in order)
        )
        assert set(await run.result(timeout_s=10)) == {PAY.id, SEND.id}

    play(story)


def test_an_approval_given_twice_or_by_many_at_once_is_one_message(play: Play) -> None:
    async def story(stand: Stand) -> None:
        run = await waiting(stand, PAY, COLOUR)
        sent = await asyncio.gather(
            *(run.approve("loop", PAY.id, args_hash=PAY.args_hash, by="ada") for _ in range(5))
        )
        await stand.reached(2)
        # It was taken, and is not asked any more.
        await stand.until("it is taken", run.approvals, lambda found: len(found) == 1)
        sent.append(await run.approve("loop", PAY.id, args_hash=PAY.args_hash, by="ada"))
        assert len(set(sent)) == 1
        kinds = [event.kind async for event in run.history()]
        assert kinds.count("run.message") == 1

    play(story)


def test_the_first_of_two_different_answers_counts_and_the_second_is_refused(play: Play) -> None:
    async def story(stand: Stand) -> None:
        run = await waiting(stand, PAY, COLOUR)
        answers = await asyncio.gather(
            run.approve("loop", PAY.id, args_hash=PAY.args_hash, by="ada"),
            run.reject("loop", PAY.id, by="bob", text="No."),
            return_exceptions=True,
        )
        (refused,) = (each for each in answers if isinstance(each, BaseException))
        assert isinstance(refused, RunConflict)
        assert "already" in str(refused) and "first answer counts" in str(refused)
        await stand.until("it is taken", run.approvals, lambda found: len(found) == 1)
        is_approved = not isinstance(answers[0], BaseException)
        with pytest.raises(RunConflict, match="by ada" if is_approved else "by bob"):
            await run.answer("loop", PAY.id, "It was paid.")
        await run.answer("loop", "colour", "red")
        said = await run.result(timeout_s=10)
        assert said[PAY.id][0] == ("approve" if is_approved else "reject")

    play(story)


def test_what_does_not_fit_what_is_asked_is_refused_and_stores_nothing(play: Play) -> None:
    async def story(stand: Stand) -> None:
        unsafe = Ask(id="unsafe", kind="unsafe", tool="pay", args_hash="8" * 64)
        run = await waiting(stand, PAY, COLOUR, unsafe)
        for verb, arguments, error, told in (
            (run.approve, {"args_hash": "7" * 64}, RunConflict, "777777777777"),
            (run.approve, {}, UserError, "does not say of which"),
            (stand.client.reject, {"args_hash": "7" * 64}, RunConflict, "777777777777"),
        ):
            place = () if verb == run.approve else ("run",)
            with pytest.raises(error, match=told):
                await verb(*place, "loop", PAY.id, **arguments)
        with pytest.raises(UserError, match="may have run already"):
            await run.approve("loop", "unsafe", args_hash="8" * 64, input={"cents": 6})
        with pytest.raises(UserError, match="is a question"):
            await run.approve("loop", "colour")
        with pytest.raises(RunConflict, match=r"does not ask about 'nothing'.*'colour'"):
            await run.approve("loop", "nothing", args_hash="7" * 64)
        kinds = [event.kind async for event in run.history()]
        assert "run.message" not in kinds
        await run.cancel()
        await stand.ended("run")
        with pytest.raises(RunConflict):
            await run.approve("loop", PAY.id, args_hash=PAY.args_hash)
        _, register = await stand.holds(Ended)
        assert b'"asks"' not in msgspec.json.encode(register)
        assert await stand.client.approvals() == ()

    play(story)


def test_an_answer_is_taken_while_a_worker_is_busy_with_another_one(play: Play) -> None:
    async def story(stand: Stand) -> None:
        worker, busy, go_on = Worker(), asyncio.Event(), asyncio.Event()

        @worker.handler("link")
        async def ask(ctx: LoopContext[Any]) -> Any:
            said = [*(ctx.input or []), *(m.decode(Reply).call_id for m in await ctx.messages())]
            if len(said) == 1:
                busy.set()
                await go_on.wait()
            asks = [each for each in (PAY, SEND) if each.id not in said]
            return ctx.wait("people", state=said, asks=asks) if asks else ctx.complete(said)

        await stand.engine()
        run = await stand.client.start(loop(), None, id="run")
        stand.worker(worker)
        await stand.status("run", "parked")
        first = await run.approve("loop", PAY.id, args_hash=PAY.args_hash)
        await busy.wait()
        assert await run.approvals() == (), "it does not wait now"
        assert await run.approve("loop", PAY.id, args_hash=PAY.args_hash) == first
        with pytest.raises(RunConflict, match="already"):
            await run.reject("loop", PAY.id)
        with pytest.raises(RunConflict, match="777777777777"):
            await run.approve("loop", SEND.id, args_hash="7" * 64)
        await run.approve("loop", SEND.id, args_hash=SEND.args_hash)
        go_on.set()
        assert await run.result(timeout_s=10) == [PAY.id, SEND.id]

    play(story)


def test_a_wait_of_months_holds_no_worker_and_nothing_on_the_server(play: Play) -> None:
    async def story(stand: Stand) -> None:
        run = await waiting(stand, PAY, until=NINE_MONTHS)
        worker, engine = (
            (stand.subjects.steps_stream, stand.subjects.worker_consumer("link")),
            (stand.subjects.events_stream, stand.subjects.engine_consumer(0)),
        )
        for stream, consumer in (worker, engine):

            async def info(stream: str = stream, consumer: str = consumer) -> Any:
                return await stand.js.api(f"CONSUMER.INFO.{stream}.{consumer}")

            await stand.until(
                f"{consumer} holds nothing",
                info,
                lambda it: (it["num_ack_pending"], it["num_pending"]) == (0, 0),
            )
        _, register = await stand.holds(Parked)
        assert isinstance(register, Parked)
        assert register.due_ms - register.parked_ms > 269 * 86_400_000
        await run.approve("loop", PAY.id, args_hash=PAY.args_hash)
        assert set(await run.result(timeout_s=10)) == {PAY.id}

    play(story)


def test_what_a_handler_asks_wrongly_fails_its_attempt_with_the_reason(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(loop(), None, id="run")
        no_json = msgspec.structs.replace(PAY, input=msgspec.Raw(b"{"))
        stand.worker(asking(no_json))
        document = await stand.ended("run")
        assert document.failure is not None
        assert "cannot ask" in document.failure.message
        assert await run.approvals() == ()

    play(story)


def test_a_pending_ask_is_data_that_others_can_read(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await waiting(stand, PAY)
        (each,) = await stand.client.approvals()
        assert msgspec.json.decode(msgspec.json.encode(each), type=PendingAsk) == each

    play(story)
