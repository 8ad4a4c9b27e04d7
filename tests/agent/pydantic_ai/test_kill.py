"""A worker that runs an agent of pydantic-ai is killed with -9 around every record; another one
goes on. Method: real server, engine and worker processes, pydantic-ai's own client of Anthropic
against the strict fake; a repeated call would be one request, or one line of the ledger, more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.crash.process import Process, wait_until
from tests.nursery import Nursery

from treadle.engine import Engine
from treadle.engine.topology import ensure_topology
from treadle.sdk import Client, RunHandle, Workflow
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.settings import Settings
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn

# The nursery imports pydantic-ai, which takes long on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

# opened; model; look_up; start of pay; pay; model; finished.
MODEL_RECORDS = (2, 6)
LOOK_UP_RECORD = 3
RECORDS = 7
WINDOWS = [
    *(f"worker.record-before=kill@{number}" for number in (*MODEL_RECORDS, LOOK_UP_RECORD, 5)),
    *(f"worker.record-stored=kill@{number}" for number in range(1, RECORDS + 1)),
    "test.pay-before=kill@1",
    "test.pay-after=kill@1",
    "worker.settle-before=kill@1",
    "worker.settle-stored=kill@1",
]


def play(request: RecordedRequest) -> Turn:
    """Look the order up and pay, in one answer; then give the receipt."""
    if not any(message["role"] == "assistant" for message in request.messages):
        return turn(
            text("I look and pay."),
            tool_use("look_up", {"order": "O-1"}, id="look"),
            tool_use("pay", {"cents": 100}, id="pay"),
        )
    return turn(tool_use("final_result", {"paid": 100}, id="final"))


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery("pydantic_ai.models.anthropic", "treadle.worker.agent.pydantic_ai")
    yield made
    made.close()


class Stand:
    """Workers as processes, beside an engine and the fake."""

    def __init__(
        self, nursery: Nursery, settings: Settings, fake: FakeAnthropic, directory: Path
    ) -> None:
        self.fake = fake
        self._nursery = nursery
        self.ledger = directory / "ledger"
        self._settings = settings
        self._directory = directory
        self._workers: list[Process] = []

    def worker(self, failpoints: str = "") -> Process:
        """Start a worker."""
        name = f"clerk-{len(self._workers)}"
        env = {
            "TREADLE_NATS_URL": self._settings.url,
            "TREADLE_NAMESPACE": self._settings.namespace,
            "TREADLE_FAILPOINTS": failpoints,
            "ANTHROPIC_BASE_URL": self.fake.base_url,
            "NO_PROXY": "127.0.0.1",
            "CLERK_LEDGER": str(self.ledger),
            "CLERK_NAME": name,
        }
        log = self._directory / f"{name}.log"
        process = Process(self._nursery, "worker", name, env, log, "tests.agent.pydantic_ai.member")
        self._workers.append(process)
        return process

    async def killed(self, failpoints: str) -> None:
        """Start a worker, and wait until its failpoint has killed it."""
        doomed = self.worker(failpoints)
        await wait_until(f"killed by {failpoints}", lambda: not doomed.is_running)

    def done(self, kind: str) -> Sequence[str]:
        """Return what the tools of a name have done."""
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [line for line in lines if line.startswith(kind)]

    def close(self) -> None:
        """End the workers."""
        for process in self._workers:
            if process.is_running:
                process.kill()


@asynccontextmanager
async def stand(
    nursery: Nursery, settings: Settings, directory: Path
) -> AsyncGenerator[tuple[Stand, RunHandle]]:
    """Set everything up with a run that has been started, and take it down."""
    connection = await Connection.open(settings, name="test")
    await ensure_topology(JetStream(connection), settings)
    await connection.close()
    engine = Engine(settings)
    running = asyncio.create_task(engine.run())
    workflow = Workflow("payments")
    workflow.agent_loop("pay", "clerk-agent", max_iterations=5)
    try:
        with FakeAnthropic(play) as fake:
            async with Client.connect(settings=settings) as client:
                made = Stand(nursery, settings, fake, directory)
                try:
                    yield made, await client.start(workflow.build(), "Pay O-1.", id="run")
                finally:
                    made.close()
    finally:
        engine.stop()
        await running


async def waits_for_a_person(run: RunHandle) -> bool:
    """Wait until the run waits for people, or has ended; return whether it waits."""
    async with asyncio.timeout(30):
        while (view := await run.get()).status == "running":
            await asyncio.sleep(0.02)
    if view.status == "parked":
        assert any("must not happen twice" in note.text for note in view.notes), view.notes
    return view.status == "parked"


@pytest.mark.parametrize("window", WINDOWS)
def test_what_is_stored_is_not_repeated_and_nothing_is_paid_twice(
    nursery: Nursery, settings: Settings, tmp_path: Path, window: str
) -> None:
    async def story() -> None:
        async with stand(nursery, settings, tmp_path) as (place, run):
            await place.killed(window)
            place.worker()
            is_uncertain = await waits_for_a_person(run)
            assert is_uncertain == (
                window
                in (
                    "worker.record-stored=kill@4",
                    "test.pay-before=kill@1",
                    "test.pay-after=kill@1",
                    "worker.record-before=kill@5",
                )
            )
            if is_uncertain:
                has_paid = bool(place.done("pay"))
                verdict = "answer" if has_paid else "approve"
                reply = {"call_id": "pay", "verdict": verdict, "text": "paid 100"}
                await run.send("pay", reply, kind="reply", id="decided")
            assert await asyncio.wait_for(run.result(), 30) == {"paid": 100}
            assert place.done("pay") == ["pay 100"]
            asked_again = window in {f"worker.record-before=kill@{n}" for n in MODEL_RECORDS}
            assert place.fake.count == 2 + asked_again
            looked_again = window == f"worker.record-before=kill@{LOOK_UP_RECORD}"
            assert len(place.done("look_up")) == 1 + looked_again
            assert not place.fake.failures
            assert "paid 100" in str(place.fake.requests[-1].tool_results["pay"])

    asyncio.run(story())


def test_a_call_that_a_person_rejects_is_not_made(
    nursery: Nursery, settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with stand(nursery, settings, tmp_path) as (place, run):
            await place.killed("test.pay-before=kill@1")
            place.worker()
            assert await waits_for_a_person(run)
            (asked,) = await run.approvals()
            assert (asked.ask.id, asked.ask.kind, asked.ask.tool) == ("pay", "unsafe", "pay")
            await run.reject("pay", "pay", text="Not today.")
            assert await asyncio.wait_for(run.result(), 30) == {"paid": 100}
            assert place.done("pay") == []
            assert "Not today." in str(place.fake.requests[-1].tool_results["pay"])

    asyncio.run(story())
