"""Messages to a loop and waiting for them, end to end: none is lost, none counts twice.
Method: a real engine on a real server; the worker is real, or a hand that says what it likes."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.sdk import RunConflict, UserError, Workflow
from treadle.sdk.messages import Ended, Inline, MessageSent, Parked, StepWaiting, Task
from treadle.worker import LoopContext, ReceivedMessage, SyncLoopContext, Worker


def chat(heard: list[ReceivedMessage]) -> Worker:
    """Return a worker that waits for messages until one says stop."""
    worker = Worker()

    @worker.handler("link")
    async def listen(ctx: LoopContext[Any]) -> Any:
        new = await ctx.messages()
        heard.extend(new)
        if any(message.decode() == "stop" for message in new):
            return ctx.complete(len(heard))
        return ctx.wait("the user")

    return worker


async def waits(stand: Stand, token: int, **fields: Any) -> int:
    settle = {"step": "loop", "type": "link", "token": token, "head": token, **fields}
    return await stand.publish(StepWaiting(**settle))


# ---------------------------------------------------------------- waiting


def test_a_loop_waits_without_a_worker_and_each_message_sends_it_on(play: Play) -> None:
    async def story(stand: Stand) -> None:
        heard: list[ReceivedMessage] = []
        await stand.engine()
        run = await stand.client.start(loop(max_duration=60), None, id="run")
        stand.worker(chat(heard))
        document = await stand.status("run", "parked")
        entry = document.steps["loop"]
        assert entry.failure is not None
        assert (entry.failure.type, entry.failure.message) == ("waiting", "the user")
        view = await run.get()
        assert view.step("loop").doing == "waiting"
        assert any("the user" in note.text for note in view.notes)
        first = await run.send("loop", {"text": "hello"}, kind="follow_up", id="one")
        assert await run.send("loop", {"text": "hello"}, kind="follow_up", id="one") == first
        await stand.reached(2)
        await stand.holds(Parked)
        await run.send("loop", "stop")
        assert await run.result(timeout_s=10) == 2
        assert [message.kind for message in heard] == ["follow_up", "steer"]
        assert heard[0] == ReceivedMessage(
            sequence=first,
            kind="follow_up",
            id="one",
            payload=msgspec.Raw(b'{"text":"hello"}'),
        )
        assert [m.sequence for m in heard] == sorted(m.sequence for m in heard)
        kinds = [event.kind async for event in run.history()]
        assert kinds.count("run.message") == 2

    play(story)


@pytest.mark.slow
@pytest.mark.parametrize("until", ["timedelta", "datetime", "past"])
def test_a_wait_ends_at_its_time(play: Play, until: str) -> None:
    async def story(stand: Stand) -> None:
        worker = Worker()
        due = {
            "timedelta": timedelta(seconds=0.5),
            "datetime": datetime.now(UTC) + timedelta(seconds=1.5),
            "past": timedelta(seconds=-5),
        }[until]

        @worker.handler("link")
        async def nap(ctx: LoopContext[Any]) -> Any:
            if ctx.iteration == 0:
                return ctx.wait("a while", until=due, state={"kept": 1})
            return ctx.complete([ctx.input, ctx.attempt])

        await stand.engine()
        stand.worker(worker)
        started_s = time.monotonic()
        await stand.client.start(loop(), None, id="run")
        assert await stand.client.result("run", timeout_s=10) == [{"kept": 1}, 1]
        passed_s = time.monotonic() - started_s
        assert (passed_s < 1.4) if until == "past" else (0.5 <= passed_s < 6)

    play(story)


@pytest.mark.slow
def test_a_wait_ends_with_a_resume_and_waited_time_does_not_count(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(max_duration=1.0), None, id="run")
        token, _ = await stand.holds(Task)
        await waits(stand, token, reason="a person")
        await stand.status("run", "parked")
        await asyncio.sleep(1.3)  # The deadline passes, and means nothing meanwhile.
        _, register = await stand.holds(Parked)
        assert isinstance(register, Parked)
        await stand.client.resume("run")
        await stand.status("run", "running")
        _, task = await stand.holds(Task)
        assert isinstance(task, Task)
        assert (task.iteration, task.attempt) == (1, 1)
        assert task.deadline_ms - register.task.deadline_ms == task.parked_ms >= 1_300

    play(story)


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_a_run_that_waits_ends_like_any_other(play: Play, how: str) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        timeout = 1.0 if how == "timeout" else 0
        await stand.client.start(loop(run_timeout=timeout), None, id="run")
        token, _ = await stand.holds(Task)
        await waits(stand, token)
        await stand.status("run", "parked")
        if how == "cancel":
            await stand.client.cancel("run")
        ended = await stand.ended(timeout_s=5)
        assert ended.status == ("cancelled" if how == "cancel" else "failed")
        await stand.holds(Ended)
        with pytest.raises(RunConflict, match="comes too late"):
            await stand.client.send("run", "loop", "anyone there?")

    play(story)


# ---------------------------------------------------------------- never lost


def test_a_completion_that_has_not_seen_a_message_becomes_another_iteration(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), None, id="run")
        token, _ = await stand.holds(Task)
        sequence = await stand.client.send("run", "loop", "wait, one more thing")
        await stand.completes(token, "an answer", takes_messages=True, seen=0)
        token, task = await stand.holds(Task, since=token)
        assert isinstance(task, Task)
        assert task.iteration == 1
        assert task.input == Inline(msgspec.Raw(b'"an answer"'))
        await stand.completes(token, "a better one", takes_messages=True, seen=sequence)
        assert await stand.client.result("run", timeout_s=5) == "a better one"

    play(story)


def test_a_bound_ends_a_step_also_over_an_unseen_message(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(max_iterations=1), None, id="run")
        token, _ = await stand.holds(Task)
        await stand.client.send("run", "loop", "more")
        await stand.completes(token, "an answer", takes_messages=True)
        assert await stand.client.result("run", timeout_s=5) == "an answer"

    play(story)


def test_a_handler_that_asks_for_no_messages_completes(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), None, id="run")
        token, _ = await stand.holds(Task)
        await stand.client.send("run", "loop", "hello?")
        await stand.completes(token, "done")
        assert await stand.client.result("run", timeout_s=5) == "done"

    play(story)


def test_a_message_before_the_step_has_started_waits_for_it(play_both: Play) -> None:
    async def story(stand: Stand) -> None:
        workflow = Workflow("later")
        first = workflow.task("first", "plain")
        workflow.agent_loop("loop", "link", after=[first], max_iterations=5)
        run = await stand.client.start(workflow, None, id="run")
        await run.send("loop", "early")  # No engine has seen the run.
        worker, heard = Worker(), []  # type: ignore[var-annotated]

        @worker.handler("plain")
        async def plain(ctx: Any) -> Any:
            return 1

        @worker.handler("link")
        def listen(ctx: SyncLoopContext[Any]) -> Any:
            heard.extend(message.decode(str) for message in ctx.messages())
            return ctx.complete(heard)

        await stand.engine()
        stand.worker(worker)
        assert await run.result(timeout_s=10) == ["early"]

    play_both(story)


def test_many_senders_of_one_id_send_one_message(play_both: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(loop(), None, id="run")
        ids = ["a", "b", "c"] * 6
        sent = await asyncio.gather(*(run.send("loop", name, id=name) for name in ids))
        assert len(set(sent)) == 3
        # For ever, and not as long as a server remembers message ids.
        subject = stand.subjects.messages("run", "loop")
        found = stand.js.read(stand.subjects.events_stream, subject)
        stored = [msgspec.json.decode(s.data, type=MessageSent) async for s in found]
        assert sorted(message.id for message in stored) == ["a", "b", "c"]
        assert await run.send("loop", "a", id="a") == sent[0]

    play_both(story)


def test_a_message_to_a_step_that_takes_none_is_refused_by_name(play: Play) -> None:
    async def story(stand: Stand) -> None:
        run = await stand.client.start(loop(), None, id="run")
        with pytest.raises(UserError, match=r"no agent loop 'lop' \(its agent loops: 'loop'\)"):
            await run.send("lop", 1)
        with pytest.raises(UserError, match="kind 'shout' is none of steer, follow_up, reply"):
            await run.send("loop", 1, kind="shout")  # type: ignore[arg-type]
        events = [event.kind async for event in run.history()]
        assert events == ["run.requested"]

    play(story)


# ---------------------------------------------------------------- one window, from outside


def test_a_message_that_was_handled_before_the_wait_was_stored_sends_the_step_on(
    play: Play,
) -> None:
    """What an engine does that finds the waiting register of one that died."""

    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        await stand.client.start(loop(), None, id="run")
        token, task = await stand.holds(Task)
        assert isinstance(task, Task)
        await stand.stop(engine)
        settle = await waits(stand, token, reason="a person", takes_messages=True)
        # The engine that handled the verdict died after this write.
        following = msgspec.structs.replace(task, parent=f"e{settle}", iteration=1)
        parked = Parked(
            parent=f"e{settle}", task=following, reason="a person", parked_ms=1, waits=True
        )
        await stand.client.send("run", "loop", "hello")
        await stand.js.store(stand.register_subject(), msgspec.json.encode(parked))
        await stand.engine()
        _, woken = await stand.holds(Task, since=token)
        assert isinstance(woken, Task)
        assert woken.iteration == 1
        await stand.quiet(0.3)
        await stand.status("run", "running")

    play(story)
