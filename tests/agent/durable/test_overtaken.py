"""A worker that is only stopped: another one takes its run over, and it wakes up too late.

Workers are processes that stop themselves with SIGSTOP at one exact place, and are let go on when
the run is over. What they had in hand then is refused, and the journal is one line.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from tests.agent.durable.stand import PATIENCE_S, Stand, stand
from tests.agent.durable.test_kill import payer, payments, play

from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects
from treadle.worker.agent.core.entries import Answered, Entry, Settled, Started, Stopped
from treadle.worker.execution import Record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]
ZOMBIES = {
    "answer": "worker.record-before=stop@2",
    "start": "worker.record-before=stop@3",
    "result": "worker.record-before=stop@5",
    "verdict": "worker.settle-before=stop@1",
}
"""What each worker has in hand while it stands still."""
ALONE = {"PAY_FINDS": "yes", "PAY_SLOTS": "1"}
"""One task at a time: one that stands still asks for no other."""


async def journal_of(place: Stand, run: str) -> list[Record]:
    """Return the records in the order of their numbers; none may be missing."""
    connection = await Connection.open(place.settings, name="test")
    try:
        js, names = JetStream(connection), Subjects(place.settings.namespace)
        stored = js.read(names.steps_stream, names.records(run, "pay"))
        found = {names.parse_record(each.subject): each async for each in stored}
    finally:
        await connection.close()
    assert sorted(found) == list(range(len(found)))
    in_order = [found[number] for number in range(len(found))]
    assert all(one.sequence < next.sequence for one, next in pairwise(in_order))
    return [msgspec.json.decode(each.data, type=Record) for each in in_order]


def check_one_line(records: list[Record]) -> None:
    """Nothing was decided, begun or said twice, and no execution wrote after the next had begun."""
    tokens = [record.token for record in records]
    assert tokens == sorted(tokens)
    entries = [
        entry for each in records for entry in msgspec.json.decode(each.body, type=list[Entry])
    ]
    assert sum(isinstance(entry, Answered) for entry in entries) == 3
    assert sum(isinstance(entry, Stopped) for entry in entries) == 1
    results = Counter(entry.result.id for entry in entries if isinstance(entry, Settled))
    assert results == dict.fromkeys(("look0", "pay0", "look1", "pay1", "final"), 1)
    assert {entry.id for entry in entries if isinstance(entry, Started)} == {"pay0", "pay1"}


def test_a_worker_that_stood_still_adds_nothing_to_a_run_that_another_one_has_ended(
    settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path, play) as place:
            zombies = {}
            for name, window in ZOMBIES.items():
                run = await place.client.start(payer(), f"Pay order {name}.", id=name)
                zombies[name] = place.worker(window, **ALONE)
                await place.stopped(zombies[name])
            place.worker(**ALONE)
            for name in ZOMBIES:
                run = place.client.handle(name)
                assert await asyncio.wait_for(run.result(), PATIENCE_S) == {"paid": 201}
            before = {name: await journal_of(place, name) for name in ZOMBIES}
            for zombie in zombies.values():
                zombie.send_signal(signal.SIGCONT)
            for name in ("answer", "start", "result"):
                await place.fenced(zombies[name])
            async with asyncio.timeout(PATIENCE_S):
                while [e.kind async for e in place.client.handle("verdict").history()].count(
                    "step.continued"
                ) < 3:
                    await asyncio.sleep(0.05)
            for name in ZOMBIES:
                records = await journal_of(place, name)
                assert records == before[name], "the journal is as it was"
                check_one_line(records)
                view = await place.client.get(name)
                assert (view.status, view.step("pay").iterations) == ("completed", 3)
                assert view.step("pay").spent.tool_calls == 4
            assert Counter(paid["cents"] for paid in payments(place)) == {100: 4, 101: 4}
            assert len({paid["key"] for paid in payments(place)}) == 8
            assert place.fake.count == 4 * 3 + 1, "one answer was not stored, so asked for again"

    asyncio.run(story())


def test_a_worker_that_stood_still_inside_a_call_runs_it_with_the_key_of_the_other(
    settings: Settings, tmp_path: Path
) -> None:
    """No fence reaches a call that has begun: only its key can tell the service that it is one."""

    async def story() -> None:
        async with stand(settings, tmp_path, play) as place:
            run = await place.client.start(payer(), "Pay order O-0.", id="run")
            zombie = place.worker("test.pay-before=stop@1", **ALONE)
            await place.stopped(zombie)
            place.worker(**ALONE)
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == {"paid": 201}
            before = await journal_of(place, "run")
            zombie.send_signal(signal.SIGCONT)
            await place.fenced(zombie)
            assert await journal_of(place, "run") == before
            check_one_line(before)
            keys = [paid["key"] for paid in payments(place) if paid["cents"] == 100]
            assert len(keys) == 2 and len(set(keys)) == 1

    asyncio.run(story())


def test_of_two_workers_that_hold_one_token_one_writes_the_journal(
    settings: Settings, tmp_path: Path
) -> None:
    """The consumer is made anew while a worker lives and executes: a first delivery once more."""

    async def story() -> None:
        async with stand(settings, tmp_path, play) as place:
            run = await place.client.start(payer(), "Pay order O-0.", id="run")
            # It blocks its loop and beats on, so that it is not taken for dead.
            first = place.worker("worker.record-before=pause:4@2", **ALONE)
            await asyncio.to_thread(place.fake.wait_arrived, 1, PATIENCE_S)
            connection = await Connection.open(settings, name="test")
            names = Subjects(settings.namespace)
            consumer = names.worker_consumer("pay-agent")
            await JetStream(connection).api(f"CONSUMER.DELETE.{names.steps_stream}.{consumer}")
            await connection.close()
            second = place.worker(**ALONE)
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == {"paid": 201}
            await place.fenced(first, second)
            check_one_line(await journal_of(place, "run"))
            assert [paid["cents"] for paid in payments(place)] == [100, 101]
            view = await run.get()
            assert (view.step("pay").iterations, view.step("pay").losses) == (3, 0)
            assert place.fake.count == 3 + 1, "both asked for the first answer"

    asyncio.run(story())
