"""A start and an end cost the same however many runs have ended: nobody looks at all of them.
Method: all that engine, worker and client ask a server for one run is counted, as subjects, answers
and bytes, among no other documents and among thousands that are stored as they are."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.engine.pending import Pending
from treadle.engine.runs import Runs
from treadle.sdk import NonRetryable, Workflow
from treadle.sdk.bus.connection import Connection
from treadle.sdk.flow import Concurrency
from treadle.sdk.run import RunDocument, StepEntry
from treadle.worker import TaskContext, Worker

MANY = 3_000
OTHER_BYTES = 10
"""Of each of them: less than it takes to name one in any list."""
NOT_OF_A_RUN = re.compile(r"\$JS\.ACK\.|\$JS\.API\.CONSUMER\.|[^.]+\.(beat|ctl)\.")
"""Pulls and acks depend on what comes together, signs of life on the time."""
OF_ONE_RUN = re.compile(r"(first|alone|among)-0(-step-[0-9a-f]+)?|(?<=\.r)\d+$")


class Taken(NamedTuple):
    """What was asked, by kind of subject, and what came."""

    asked: Counter[str]
    answers: int
    bytes: int


class Traffic:
    """What goes over the connections of this process, except one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: Counter[str] = Counter()
        self.answers = 0
        self.bytes = 0
        self.not_counted: Connection | None = None
        publish, request_many = Connection.publish, Connection.request_many
        received = Connection.received

        def counted(self_: Connection, subject: str, data: bytes = b"", **options: Any) -> None:
            if self_ is not self.not_counted and not NOT_OF_A_RUN.match(subject):
                self.asked[OF_ONE_RUN.sub("run", subject)] += 1
            publish(self_, subject, data, **options)

        async def collected(self_: Connection, *arguments: Any, **options: Any) -> Any:
            found = await request_many(self_, *arguments, **options)
            if self_ is not self.not_counted:
                self.answers += len(found)
            return found

        def came(self_: Connection, data: bytes) -> bytes:
            if self_ is not self.not_counted:
                self.bytes += len(data)
            return received(self_, data)

        patch.setattr(Connection, "publish", counted)
        patch.setattr(Connection, "request_many", collected)
        patch.setattr(Connection, "received", came)

    def taken(self) -> Taken:
        """Return what was counted since the last time."""
        found = Taken(self.asked, self.answers, self.bytes)
        self.asked, self.answers, self.bytes = Counter(), 0, 0
        return found


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    """The traffic of runs alone: no sweep begins while it is counted."""

    async def never(period_s: float, sweep: Callable[[], Awaitable[Any]], failed: str) -> None:
        await asyncio.Event().wait()

    for name, module in list(sys.modules.items()):
        if name.startswith("treadle.engine.") and hasattr(module, "sweep_every"):
            monkeypatch.setattr(module, "sweep_every", never)
    return Traffic(monkeypatch)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set once a start has returned: before, no engine handles anything it could find of it."""
    gate, handle = asyncio.Event(), Runs.handle

    async def handled(self: Runs, batch: list[Pending]) -> None:
        await gate.wait()
        await handle(self, batch)

    monkeypatch.setattr(Runs, "handle", handled)
    return gate


def workflows() -> dict[str, Workflow[Any]]:
    """Return workflows whose start or end asks after others in a way of its own."""
    plain = Workflow("plain")
    plain.task("step", "work")
    queued = Workflow("queued", singleton="queue")
    queued.task("step", "work")
    few = Workflow("few", concurrency=2)
    few.task("step", "work")
    limited = Workflow("limited")
    limited.task("step", "work", concurrency=Concurrency(2))
    parent = Workflow("parent")
    parent.sub_workflow("step", "plain")
    failing = Workflow("failing", timeout=60)
    failing.task("step", "break")
    return {each.name: each for each in (plain, queued, few, limited, parent, failing)}


def worker() -> Worker:
    made = Worker()

    @made.handler("work")
    async def work(ctx: TaskContext[Any]) -> None:
        pass

    @made.handler("break")
    async def break_(ctx: TaskContext[Any]) -> None:
        raise NonRetryable("broken")

    return made


async def finished(stand: Stand, workflow: str, count: int) -> None:
    """Store documents of runs of a workflow that have ended."""
    now_ms = round(time.time() * 1000)
    entry = StepEntry("completed", 1, now_ms, now_ms, "e1")
    for n in range(count):
        document = RunDocument(
            run=f"old-{workflow}-{n}",
            workflow=workflow,
            definition="0" * 16,
            status="completed",
            requested=1,
            requested_ms=now_ms,
            ended_ms=now_ms,
            steps={"step": entry},
        )
        subject = stand.subjects.run_document(document.run)
        stand.js.connection.publish(subject, msgspec.json.encode(document))
    await stand.js.connection.flush()

    async def stored() -> int:
        return int((await stand.state(stand.subjects.runs_stream))["messages"])

    await stand.until("all are stored", stored, lambda n: n >= count)


@pytest.mark.slow
@pytest.mark.parametrize("name", workflows())
def test_a_start_and_an_end_ask_as_much_among_none_as_among_thousands(
    play: Play, traffic: Traffic, started: asyncio.Event, name: str
) -> None:
    async def story(stand: Stand) -> None:
        traffic.not_counted = stand.js.connection
        await stand.engine()
        stand.worker(worker())
        for workflow in workflows().values():
            await stand.client.register(workflow)

        async def one(run: str) -> tuple[Counter[str], int, int]:
            await stand.quiet(0.3)
            traffic.taken()
            started.clear()
            await stand.client.start(workflows()[name], id=run)
            started.set()
            await stand.ended(run)
            await stand.quiet(0.3)
            return traffic.taken()

        await one("first-0")  # What is asked once, and known from then on.
        alone = await one("alone-0")
        await finished(stand, name, MANY)
        among = await one("among-0")
        assert among.asked == alone.asked
        assert among.answers == alone.answers
        assert among.bytes - alone.bytes < MANY * OTHER_BYTES

    play(story)
