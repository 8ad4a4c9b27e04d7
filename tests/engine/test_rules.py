"""The rules of docs/design.md on one transition, one by one, with and without message ids.

A worker is played by hand, so that each message comes exactly when the rule is in doubt.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import msgspec
import pytest
from tests.crash.namespace import task_of
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.engine import runs, steps
from treadle.engine.core.apply import apply, request
from treadle.engine.core.effects import first_task
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan
from treadle.engine.registers import Moved, Registers
from treadle.sdk.bus.connection import Message
from treadle.sdk.bus.jetstream import Refused
from treadle.sdk.definition import content_hash
from treadle.sdk.messages import (
    CancelRequested,
    Delayed,
    Ended,
    Inline,
    ResumeRequested,
    RunRequested,
    SignalReceived,
    StepCompleted,
    Task,
    TimerFired,
)
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import RegisterAddress
from treadle.worker import LoopContext, Worker
from treadle.worker.verdict import Complete

NOTHING_S = 0.4
"""For so long nothing is stored: what was sent has been handled and came to nothing."""


async def _started(stand: Stand) -> int:
    """Start a run and return the token of its first task."""
    await stand.client.start(loop(), {}, id="run")
    return (await stand.holds(Task)).token


# ---------------------------------------------------------------- rule 1


def test_rule_1_the_end_of_a_step_is_decided_on_its_register_and_never_moves_again(
    play_both: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        token = await _started(stand)
        await asyncio.gather(stand.completes(token), stand.loses(token), stand.continues(token))
        await stand.quiet(NOTHING_S)
        found = await stand.register()
        assert found is not None
        if not isinstance(found.register, Ended):  # Another of the three was first.
            assert (await stand.document() or pytest.fail()).status == "running"
            await stand.completes(found.token)
        ended = await stand.holds(Ended)
        document = await stand.ended()
        for late in (stand.completes, stand.loses, stand.continues):
            await late(ended.token)
        await stand.publish(TimerFired(kind="step_deadline", step="loop", type="link", due_ms=1))
        await stand.publish(ResumeRequested(add_iterations=1))
        await stand.quiet(NOTHING_S)
        assert await stand.register() == ended
        assert await stand.document() == document

    play_both(story)


def test_rule_1_a_verdict_that_was_overtaken_is_stale(play_both: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        token = await _started(stand)
        await stand.loses(token)
        again = await stand.holds(Task, since=token)
        await stand.completes(token, "of the lost one")
        await stand.quiet(NOTHING_S)
        assert await stand.register() == again
        assert task_of(again.register).attempt == 2
        await stand.completes(again.token, "of the second")
        assert await stand.client.result("run", timeout_s=5) == "of the second"

    play_both(story)


def test_rule_1_a_cancel_ends_a_register_that_does_not_exist_yet(play_both: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.client.start(loop(), {}, id="run")
        await stand.client.cancel("run")
        await stand.engine()
        ended = await stand.holds(Ended)
        assert ended.token == 1  # The first value its subject ever had.
        assert (await stand.ended()).status == "cancelled"

    play_both(story)


# ---------------------------------------------------------------- rule 2


def test_rule_2_nothing_is_deleted_in_the_life_of_a_run(play_both: Play) -> None:
    async def story(stand: Stand) -> None:
        asked: list[str] = []

        def note(message: Message) -> None:
            asked.append(msgspec.json.decode(message.data)["subject"])

        await stand.js.connection.subscribe("$JS.EVENT.ADVISORY.API", note)
        await stand.engine()
        token = await _started(stand)
        await stand.continues(token)
        token = (await stand.holds(Task, since=token)).token
        await stand.completes(token)
        await stand.ended()
        await stand.quiet(NOTHING_S)
        assert isinstance((await stand.holds(Ended)).register, Ended)
        assert any("STREAM.INFO" in subject for subject in asked)  # The ear is open.
        deleting = [each for each in asked if "PURGE" in each or "DELETE" in each]
        assert not [each for each in deleting if stand.subjects.steps_stream in each]

    play_both(story)


def test_rule_2_a_register_that_no_document_knows_is_ended(
    play_both: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "GHOST_DELIVERIES", 3)

    async def story(stand: Stand) -> None:
        await stand.engine()
        token = await _started(stand)
        await stand.completes(token)
        before = await stand.ended()
        ended = await stand.holds(Ended)
        ghost = Task(
            parent="e1",
            workflow="one-loop",
            definition=before.definition,
            loop=True,
            input=Inline(msgspec.Raw(b"{}")),
            max_iterations=100,
        )
        stored = await stand.js.attempt(
            stand.register_subject(), msgspec.json.encode(ghost), expected=ended.token
        )
        assert isinstance(stored, int)
        await stand.continues(stored)
        again = await stand.holds(Ended, since=stored)
        assert again.token == stored + 1
        assert await stand.document() == before

    play_both(story)


# ---------------------------------------------------------------- rule 3


async def _requested(stand: Stand) -> tuple[Plan, RunDocument]:
    """Store a start and write its document by hand, as an engine that dies right after it."""
    definition = loop()
    version = await stand.client.register(definition)
    assert version == content_hash(definition)
    event = RunRequested(workflow=definition.name, definition=version, input=msgspec.Raw(b"{}"))
    sequence = await stand.publish(event)
    stored = await stand.js.get(stand.subjects.events_stream, sequence)
    assert stored is not None
    plan = Plan(definition, version)
    moment = Moment("run", f"e{sequence}", stored.time_ms, sequence)
    return plan, request(plan, event, moment, "main")


async def _write(stand: Stand, document: RunDocument) -> None:
    subject = stand.subjects.run_document("run")
    await stand.js.store(subject, msgspec.json.encode(document))


def test_rule_3_a_document_without_its_register_gets_it_whatever_came_after(
    play_both: Play,
) -> None:
    async def story(stand: Stand) -> None:
        _, document = await _requested(stand)
        await _write(stand, document)
        await stand.publish(SignalReceived(name="note", id="s1"))
        await stand.engine()
        await stand.holds(Task)
        await stand.until("the signal counts", stand.document, lambda it: _signals(it) == 1)

    play_both(story)


def test_rule_3_a_cancelled_document_ends_the_register_it_left_alive(play_both: Play) -> None:
    async def story(stand: Stand) -> None:
        plan, document = await _requested(stand)
        step = plan.work("loop")
        task = first_task(plan, document, step, Inline(msgspec.Raw(b"{}")))
        await stand.js.store(stand.register_subject(), msgspec.json.encode(task))
        cancel = CancelRequested()
        sequence = await stand.publish(cancel)
        moment = Moment("run", f"e{sequence}", document.requested_ms + 1, sequence)
        await _write(stand, apply(plan, document, cancel, moment))
        await stand.engine()
        assert isinstance((await stand.holds(Ended)).register, Ended)

    play_both(story)


# ---------------------------------------------------------------- rule 4


def _signals(document: RunDocument | None) -> int:
    return document.signals_received if document else 0


@pytest.mark.parametrize("kept", [256, 4], ids=["all-ids-kept", "ids-trimmed"])
def test_rule_4_every_signal_counts_once_although_all_events_come_again(
    play_both: Play, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.setattr(runs, "APPLIED_SOFT_MAX", kept)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        await _started(stand)
        for number in range(30):
            # Without an id of its own only the event's identity keeps it from counting twice.
            await stand.publish(SignalReceived(name=f"note{number % 3}"))
        await stand.until("all count", stand.document, lambda it: _signals(it) >= 30)
        consumer = stand.subjects.engine_consumer(0)
        stream = stand.subjects.events_stream
        await stand.js.api(f"CONSUMER.DELETE.{stream}.{consumer}")

        async def is_through() -> bool:
            try:
                info = await stand.js.api(f"CONSUMER.INFO.{stream}.{consumer}")
            except Exception:  # noqa: BLE001 — it does not exist for a moment
                return False
            return bool(info["ack_floor"]["stream_seq"] == 31)

        await stand.until("all were delivered again", is_through, bool)
        await stand.publish(SignalReceived(name="last"))
        await stand.until("the last counts", stand.document, lambda it: _signals(it) == 31)
        await stand.quiet(NOTHING_S)
        assert _signals(await stand.document()) == 31

    play_both(story)


# ---------------------------------------------------------------- rule 5


def test_rule_5_of_two_executors_the_first_to_settle_counts(play_both: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        token = await _started(stand)
        await stand.continues(token, {"by": "first"})
        await stand.continues(token, {"by": "second"})
        await stand.quiet(NOTHING_S)
        found = await stand.holds(Task, since=token)
        task = task_of(found.register)
        assert task.iteration == 1
        assert isinstance(task.input, Inline)
        assert msgspec.json.decode(task.input.value) == {"by": "first"}

    play_both(story)


def test_rule_5_a_verdict_over_a_checkpoint_it_did_not_see_is_not_believed(
    play_both: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        token = await _started(stand)
        saved = await stand.saves(token, expected=token)
        assert isinstance(saved, int)
        # The other executor has neither seen nor written it.
        assert isinstance(await stand.saves(token, expected=token), Refused)
        await stand.continues(token, head=token)
        again = await stand.holds(Task, since=token)
        task = task_of(again.register)
        assert (task.iteration, task.attempt, task.checkpoint) == (0, 2, -1)
        # Nor is the one that wrote it: a third execution goes on from what stands.
        await stand.continues(token, head=saved)
        await stand.quiet(NOTHING_S)
        assert await stand.register() == again

    play_both(story)


def test_rule_5_a_verdict_names_the_checkpoint_it_wrote(play_both: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        token = await _started(stand)
        saved = await stand.saves(token, expected=token)
        assert isinstance(saved, int)
        await stand.continues(token, head=saved)
        task = task_of((await stand.holds(Task, since=token)).register)
        assert (task.iteration, task.attempt, task.checkpoint) == (1, 1, saved)

    play_both(story)


def test_rule_5_an_overtaken_execution_never_builds_on_the_checkpoint_of_the_next(
    play_both: Play,
) -> None:
    """Else it would hold the newest sequence of the pair, and an engine that has not yet seen
    the register move would believe it."""

    async def story(stand: Stand) -> None:
        worker = Worker(ack_wait_s=5, drain_timeout_s=0)
        begun, overtaken, saved = asyncio.Event(), asyncio.Event(), asyncio.Event()
        ends: list[str] = []

        @worker.handler("link")
        async def execute(ctx: LoopContext[Any]) -> Complete:
            try:
                if ctx.attempt == 2:
                    begun.set()
                    await saved.wait()
                    await ctx.load_checkpoint()
                else:
                    await ctx.checkpoint("of the third")
                    saved.set()
                    await overtaken.wait()
            finally:
                ends.append(f"{ctx.attempt}: {type(sys.exception()).__name__}")
                overtaken.set()
            await ctx.checkpoint(f"of {ctx.attempt}")
            return ctx.complete(ctx.attempt)

        await stand.engine()
        token = await _started(stand)
        await stand.loses(token)  # The first attempt of a loop knows that there is nothing to load.
        token = (await stand.holds(Task, since=token)).token
        stand.worker(worker)
        await begun.wait()
        await stand.loses(token)
        assert await stand.client.result("run", timeout_s=10) == 3
        assert ends == ["2: CancelledError", "3: NoneType"]

    play_both(story)


# ---------------------------------------------------------------- rule 6


def test_rule_6_a_write_found_on_reading_back_is_what_stands_not_what_was_meant(
    play_both: Play,
) -> None:
    async def story(stand: Stand) -> None:
        address = RegisterAddress("main", "run", "loop", "link")
        one, other = (Registers(stand.js, stand.subjects) for _ in range(2))
        first = Task(parent="e1", workflow="w", definition="d", input=Inline(msgspec.Raw(b"{}")))
        token = (await one.create(address, first)).sequence
        stands = msgspec.structs.replace(first, parent="e2", iteration=1)
        meant = msgspec.structs.replace(first, parent="e2", iteration=1, attempt=7)
        await one.move(address, stands, token=token, head=token, follow=True)
        outcome = await other.move(address, meant, token=token, head=token, follow=True)
        assert isinstance(outcome, Moved)
        assert outcome.placed.register == stands
        known = other.known(address)
        assert known is not None
        assert known.register == stands

    play_both(story)


# ---------------------------------------------------------------- rule 7


def test_rule_7_starting_twice_gives_one_run_and_an_early_signal_does_not_prevent_it(
    play_both: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.publish(SignalReceived(name="early", id="s1"))
        version = await stand.client.register(loop())
        for value in (b'"first"', b'"second"'):
            await stand.publish(
                RunRequested(workflow="one-loop", definition=version, input=msgspec.Raw(value))
            )
        found = await stand.holds(Task)
        task = task_of(found.register)
        assert isinstance(task.input, Inline)
        assert bytes(task.input.value) == b'"first"'
        await stand.until("the signal counts", stand.document, lambda it: _signals(it) == 1)
        await stand.quiet(NOTHING_S)
        assert await stand.register() == found

    play_both(story)


def test_rule_7_an_event_of_an_unknown_run_becomes_a_dead_letter_in_the_end(
    play_both: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "UNKNOWN_RUN_DELIVERIES", 4)

    async def story(stand: Stand) -> None:
        await stand.engine()
        sent = StepCompleted(step="loop", type="link", token=5, head=5)
        await stand.publish(sent, "nobody")
        letter = await stand.letter("nobody")
        assert letter.reason == "unknown_run"
        assert letter.failure is not None
        assert "never requested" in letter.failure.message
        await stand.quiet(NOTHING_S)
        assert len(await stand.letters()) == 1

    play_both(story)


# ---------------------------------------------------------------- rule 8


def test_rule_8_a_task_type_has_one_consumer_that_delivers_the_last_value_of_each_step(
    play_both: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        token = await _started(stand)
        for _ in range(5):
            await stand.continues(token)
            token = (await stand.holds(Task, since=token)).token
        worker, seen = Worker(), list[int]()

        @worker.handler("link")
        async def end(ctx: LoopContext[Any]) -> Complete:
            seen.append(ctx.iteration)
            return ctx.complete()

        stand.worker(worker)
        ended = await stand.ended()
        assert ended.status == "completed", ended
        assert seen == [5]
        name = stand.subjects.worker_consumer("link")
        info = await stand.js.api(f"CONSUMER.INFO.{stand.subjects.steps_stream}.{name}")
        config = info["config"]
        assert config["deliver_policy"] == "last_per_subject"
        assert config["ack_policy"] == "explicit"
        assert config["max_deliver"] == -1
        assert config["max_ack_pending"] >= 10_000

    play_both(story)


def test_a_delay_costs_no_attempt_and_its_task_is_never_executed(play_both: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        token = await _started(stand)
        await stand.continues(token, delay_ms=150)
        delayed = await stand.holds(Delayed)
        await stand.completes(delayed.token)  # Nobody may execute it, so nobody may settle it.
        await stand.until("it is due", _now, lambda now_ms: now_ms > _due_ms(delayed.register))
        await stand.is_due(delayed.token)
        await stand.is_due(delayed.token)
        found = await stand.holds(Task, since=delayed.token)
        assert (task_of(found.register).iteration, task_of(found.register).attempt) == (1, 1)
        assert (await stand.document() or pytest.fail()).status == "running"

    play_both(story)


async def _now() -> float:
    return time.time() * 1000


def _due_ms(register: object) -> int:
    assert isinstance(register, Delayed)
    return register.due_ms
