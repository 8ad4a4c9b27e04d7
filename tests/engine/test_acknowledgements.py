"""Every delivery is answered once and gives its credit back once, by engines and by workers.
Method: a spy on every delivery and puller of this process, over scenarios on a real server."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.engine import intake, runs
from treadle.engine.dead_letters import DeadLetters
from treadle.engine.pending import Pending
from treadle.engine.runs import Runs
from treadle.sdk import Retry, ServerUnavailable, Workflow
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.bus.wire import Message
from treadle.sdk.ids import new_nonce
from treadle.sdk.messages import Ended, StepCompleted, Task
from treadle.worker import LoopContext, TaskContext, Worker
from treadle.worker.intake import ACK_WAIT_S, consumer_config

QUICK = Retry(max_attempts=3, backoff="fixed", delay_s=0.03, jitter=0)


class Spy:
    """What was delivered here, how each was answered, and the credit that each puller got."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.answers: defaultdict[str, list[str]] = defaultdict(list)
        """By the subject of its acknowledgement, which no two deliveries share."""
        self.redelivered: Counter[str] = Counter()
        """By stream."""
        self.delivered: Counter[Puller] = Counter()
        self.credited: Counter[Puller] = Counter()
        for verb in ("ack", "nak", "in_progress"):
            patch.setattr(Delivery, verb, self._answering(verb, getattr(Delivery, verb)))
        open_, arrived, finished = Delivery.__init__, Puller._arrived, Puller.finished

        def begin(one: Delivery, *arguments: Any) -> None:
            open_(one, *arguments)
            self.answers[one.ack_subject] = []
            if one.delivered > 1:
                self.redelivered[one.ack_subject.split(".")[2]] += 1

        def arrive(puller: Puller, subject: bytes, reply: bytes, *rest: Any) -> None:
            self.delivered[puller] += reply.startswith(b"$JS.ACK.")
            arrived(puller, subject, reply, *rest)

        def finish(puller: Puller, n: int = 1) -> None:
            self.credited[puller] += n
            finished(puller, n)

        patch.setattr(Delivery, "__init__", begin)
        patch.setattr(Puller, "_arrived", arrive)
        patch.setattr(Puller, "finished", finish)

    def _answering(self, verb: str, answer: Any) -> Any:
        def answered(one: Delivery, *arguments: Any) -> None:
            self.answers[one.ack_subject].append(verb)
            answer(one, *arguments)

        return answered

    def verify(self) -> None:
        """Every delivery has one answer, every puller as much credit as it had deliveries."""
        assert {ack: told for ack, told in self.answers.items() if len(told) != 1} == {}
        assert self.credited == self.delivered
        assert [puller.in_hand for puller in self.delivered if puller.in_hand] == []


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


async def _all_answered(stand: Stand, spy: Spy) -> None:
    """Wait until nothing comes any more and everything that came is answered."""
    await stand.quiet(0.3)

    async def open_() -> int:
        return sum(spy.delivered.values()) - sum(spy.credited.values())

    await stand.until("every credit is given back", open_, lambda n: n <= 0)


@pytest.mark.slow
def test_work_that_completes_fails_waits_is_lost_and_comes_again_is_answered_once(
    play: Play, spy: Spy
) -> None:
    worker = Worker()

    @worker.handler("link")
    async def link(ctx: LoopContext[Any]) -> Any:
        if ctx.iteration == 1 and ctx.attempt < 3:
            raise OSError("busy")
        return ctx.complete() if ctx.iteration == 3 else ctx.continue_()

    @worker.handler("work")
    async def work(ctx: TaskContext[Any]) -> None:
        if ctx.input == "bad":
            raise ValueError("no such thing")

    workflow = Workflow("mixed")
    first = workflow.task("work")
    workflow.agent_loop("loop", "link", max_iterations=9, retry=QUICK, after=first)
    workflow.sleep("nap", 0.05, after=first)
    workflow.wait_for_event("paid", "order.paid", after=first)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        s, name = stand.subjects, stand.subjects.worker_consumer("work")
        config = consumer_config(s.registers_of_type("work"), ACK_WAIT_S)
        await stand.js.ensure_consumer(s.steps_stream, name, config)
        for run, input in (("r0", "fine"), ("r1", "bad"), ("r2", "fine")):
            await stand.client.start(workflow, input, id=run)
            await stand.holds(Task, run, "work", "work")
        # A worker takes the first task and hands it back unsaid: for the next one it is lost.
        taken: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        inbox = await stand.js.connection.subscribe(f"_INBOX.{new_nonce()}", taken.set_result)
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{s.steps_stream}.{name}"
        stand.js.connection.publish(subject, b'{"batch":1}', reply=inbox.subject)
        stand.js.connection.publish((await taken).reply, b"-NAK")
        await inbox.unsubscribe()
        stand.worker(worker)
        await stand.ended("r1")
        await stand.client.publish_event("order.paid", 1)
        for run in ("r0", "r2"):
            assert (await stand.ended(run)).status == "completed"
        await stand.publish(b"not an event", "r3")
        await stand.letter("r3")
        await _all_answered(stand, spy)
        assert {s.steps_stream} <= set(spy.redelivered), "a lost task, and retries that waited"
        spy.verify()

    play(story)


@pytest.mark.slow
def test_an_event_whose_handling_raises_until_it_is_set_aside_is_answered_once_each_time(
    play: Play, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "POISON_DELIVERIES", 3)
    monkeypatch.setattr(intake, "FAILED_LATER_MS", 20)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.js.store(stand.subjects.workflow_version("rotten", "0"), b"no definition")
        await stand.publish(b'{"event":"run.requested","workflow":"rotten","definition":"0"}', "r")
        assert (await stand.letter("r")).reason == "poison_event"
        await _all_answered(stand, spy)
        assert spy.redelivered == {stand.subjects.events_stream: 2}
        spy.verify()

    play(story)


def test_what_was_acked_stays_so_when_another_event_of_its_batch_raises(
    play: Play, spy: Spy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "UNKNOWN_RUN_DELIVERIES", 1)
    monkeypatch.setattr(intake, "FAILED_LATER_MS", 20)
    batches, raised, gate = list[int](), list[int](), asyncio.Event()
    handle, letter = Runs.handle, DeadLetters.pending

    async def held_back(self: Runs, batch: list[Pending]) -> None:
        batches.append(len(batch))
        if isinstance(batch[0].event, StepCompleted):
            await gate.wait()
        await handle(self, batch)

    async def fail_first(self: DeadLetters, *arguments: Any) -> None:
        raised.append(batches[-1])
        if len(raised) == 1:
            raise ServerUnavailable("the letter was not stored")
        await letter(self, *arguments)

    monkeypatch.setattr(Runs, "handle", held_back)
    monkeypatch.setattr(DeadLetters, "pending", fail_first)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), None, id="run")
        token = (await stand.holds(Task)).token
        before = sum(spy.delivered.values())
        await stand.completes(token, "done")
        for _ in range(3):
            await stand.completes(token, "again")
        await stand.completes(token, "of no step", step="other")

        async def delivered() -> int:
            return sum(spy.delivered.values()) - before

        await stand.until("all are here", delivered, lambda n: n == 5)
        gate.set()
        await stand.holds(Ended)
        assert (await stand.letter("run")).reason == "unknown_run"
        await _all_answered(stand, spy)
        assert raised[0] == 4, "three were acked in the batch in which the letter failed"
        spy.verify()

    play(story)
