"""A step's journal under the fence: who may append, and what a reader believes.
Method: the store itself on a real server; the test plays the twin and the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.worker.stage import Stage, loop_task, open_stage

from treadle.sdk.bus.acks import Refused, WriteAck
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.bus.puller import Delivery
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import RegisterAddress
from treadle.worker.execution import Fenced
from treadle.worker.held import HeldTask
from treadle.worker.journals import JournalStore

ADDRESS = RegisterAddress("main", "r1", "s", "work")


async def given_out(stage: Stage, iteration: int = 0) -> HeldTask:
    """Store the register of an iteration; return it as a worker holds it."""
    task = loop_task(iteration=iteration)
    return held_at(stage, await stage.put(task), iteration)


def held_at(stage: Stage, token: int, iteration: int = 0) -> HeldTask:
    """The task at that sequence, once more: as another worker would hold it."""
    ack = f"$JS.ACK.s.c.1.{token}.1.0.0"
    subject = stage.subjects.register("r1", "s", "work")
    delivery = Delivery(stage.connection, subject, ack, None, b"")
    intake: Any = None
    return HeldTask(delivery, ADDRESS, loop_task(iteration=iteration), intake, 0.0)


async def stored(stage: Stage) -> list[bytes]:
    """The bodies that stand in the journal, in the order of their numbers."""
    s = stage.subjects
    found = {
        s.parse_record(each.subject): each.data
        async for each in stage.js.read(s.steps_stream, s.records("r1", "s"))
    }
    return [found[number] for number in sorted(found)]


def test_one_execution_appends_and_the_next_one_reads_all_of_it(settings: Settings) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage:
            store = JournalStore(stage.js, stage.subjects)
            held = await given_out(stage)
            for number in range(3):
                assert await store.append(held, number, b'{"n":%d}' % number) == held.head
            following = await given_out(stage, iteration=1)
            records = await store.read(following)
            assert [bytes(record.body) for record in records] == [
                b'{"n":0}',
                b'{"n":1}',
                b'{"n":2}',
            ]
            assert {(record.iteration, record.token) for record in records} == {(0, held.token)}

    asyncio.run(story())


def test_of_two_executions_of_one_token_the_second_to_append_is_fenced(settings: Settings) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage:
            store = JournalStore(stage.js, stage.subjects)
            held = await given_out(stage)
            twin = held_at(stage, held.token)
            await store.append(twin, 0, b'"twin"')
            with pytest.raises(Fenced, match=f"from sequence {held.token} to {twin.head}"):
                await store.append(held, 0, b'"mine"')
            with pytest.raises(Fenced):
                await store.append(held, 1, b'"mine"')
            (only,) = await stored(stage)
            assert b'"twin"' in only

    asyncio.run(story())


def test_an_execution_whose_step_has_moved_on_appends_and_reads_nothing(settings: Settings) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage:
            store = JournalStore(stage.js, stage.subjects)
            late = await given_out(stage)
            await store.append(late, 0, b'"first"')
            following = await given_out(stage, iteration=1)
            with pytest.raises(Fenced, match=f"to {following.token}"):
                await store.append(late, 1, b'"late"')
            await store.append(following, 1, b'"next"')
            with pytest.raises(Fenced, match=f"this task is at {late.token}"):
                await store.read(late)
            assert len(await stored(stage)) == 2

    asyncio.run(story())


def test_a_checkpoint_of_another_execution_fences_the_journal_too(settings: Settings) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage:
            store = JournalStore(stage.js, stage.subjects)
            held = await given_out(stage)
            await stage.put_checkpoint("other", expected=held.token)
            with pytest.raises(Fenced):
                await store.append(held, 0, b'"mine"')
            assert await stored(stage) == []

    asyncio.run(story())


class _Lossy(JetStream):
    """Throws the first acknowledgement away, after the write."""

    lose = 1

    async def _try(self, *args: Any, **kwargs: Any) -> WriteAck | Refused:
        answer = await super()._try(*args, **kwargs)
        if self.lose:
            self.lose -= 1
            raise Unknown("thrown away by the test")
        return answer


def test_a_record_whose_acknowledgement_was_lost_is_recognised(settings: Settings) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage:
            store = JournalStore(_Lossy(stage.connection), stage.subjects)
            held = await given_out(stage)
            await store.append(held, 0, b'"once"')
            assert held.head == held.token + 1, "written once"
            await store.append(held, 1, b'"twice"')
            assert len(await stored(stage)) == 2

    asyncio.run(story())


def test_a_twins_record_after_a_lost_acknowledgement_is_not_taken_for_ones_own(
    settings: Settings,
) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage:
            held = await given_out(stage)
            twin = held_at(stage, held.token)
            await JournalStore(stage.js, stage.subjects).append(twin, 0, b'"twin"')
            with pytest.raises(Fenced):
                lossy = JournalStore(_Lossy(stage.connection), stage.subjects)
                await lossy.append(held, 0, b'"mine"')
            assert held.head == held.token
            (only,) = await stored(stage)
            assert b'"twin"' in only

    asyncio.run(story())
