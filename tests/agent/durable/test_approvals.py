"""Approvals of a durable agent: its worker dies while people think, and nothing is lost or moved.

A real server and engine, workers as processes killed with -9, and a fake model that asks for two
payments at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.nursery import Forked, agents

from treadle.engine import Engine
from treadle.engine.topology import ensure_topology
from treadle.sdk import Client, RunHandle, UserError, Workflow
from treadle.sdk.asks import Ask
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn

T = TypeVar("T")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(150),
]  # Five starts of a process, on a machine that is busy.
ACK_WAIT_S = 1.0
"""What an engine was at when it was stopped is soon with the next one."""


def play(request: RecordedRequest) -> Turn:
    if any(message["role"] == "assistant" for message in request.messages):
        return turn(text("Done."))
    return turn(
        tool_use("pay", {"to": "ann", "cents": 100}, id="ann"),
        tool_use("pay", {"to": "bob", "cents": 200}, id="bob"),
    )


class Stand:
    """A namespace with an engine, the fake model, and cashiers as processes."""

    def __init__(self, settings: Settings, fake: FakeAnthropic, directory: Path) -> None:
        self._settings = settings
        self._directory = directory
        self._workers: list[Forked] = []
        self._engine: tuple[Engine, asyncio.Task[None]] | None = None
        self.fake = fake
        self.client: Client

    async def engine(self) -> None:
        """Start an engine, after the one there is."""
        await self.close_engine()
        engine = Engine(self._settings, event_ack_wait_s=ACK_WAIT_S)
        self._engine = engine, asyncio.create_task(engine.run())

    async def close_engine(self) -> None:
        if self._engine is not None:
            self._engine[0].stop()
            await self._engine[1]
            self._engine = None

    def worker(self, **times: float) -> Forked:
        """Start a cashier."""
        name = f"cashier-{len(self._workers)}"
        env = {
            "TREADLE_NATS_URL": self._settings.url,
            "TREADLE_NAMESPACE": self._settings.namespace,
            "ANTHROPIC_BASE_URL": self.fake.base_url,
            "CASHIER_LEDGER": str(self._directory / "ledger"),
            "CASHIER_NAME": name,
            **{f"CASHIER_{key.upper()}": str(value) for key, value in times.items()},
        }
        log = self._directory / f"{name}.log"
        process = agents().start("tests.agent.durable.cashier", env=env, log=log)
        self._workers.append(process)
        return process

    def kill(self) -> None:
        """Kill every cashier with -9."""
        for process in self._workers:
            process.kill()
            process.wait()

    @property
    def paid(self) -> list[tuple[str, int]]:
        ledger = self._directory / "ledger"
        lines = ledger.read_text().splitlines() if ledger.exists() else []
        return [(each["to"], each["cents"]) for each in map(json.loads, lines)]

    async def start(self, **times: float) -> RunHandle:
        workflow = Workflow("payments")
        workflow.agent_loop("pay", "cashier", max_iterations=20)
        run = await self.client.start(workflow, "Pay ann and bob.", id="run")
        self.worker(**times)
        return run


async def until(read: Callable[[], Awaitable[T]], is_it: Callable[[T], bool]) -> T:
    """Read until what is read is as wanted, with a bound; return it."""
    last: Any = None
    try:
        async with asyncio.timeout(30):
            while not is_it(last := await read()):
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"it did not come to that: {last}") from None
    return last


async def asked(run: RunHandle, *ids: str) -> dict[str, Ask]:
    """Wait until the run asks about exactly these calls; return the asks by id."""

    async def read() -> dict[str, Ask]:
        return {each.ask.id: each.ask for each in await run.approvals()}

    return await until(read, lambda found: set(found) == set(ids))


@asynccontextmanager
async def stand(settings: Settings, directory: Path) -> AsyncGenerator[Stand]:
    """Set everything up, and take it down."""
    connection = await Connection.open(settings, name="test")
    await ensure_topology(JetStream(connection), settings, event_ack_wait_s=ACK_WAIT_S)
    await connection.close()
    with FakeAnthropic(play) as fake:
        place = Stand(settings, fake, directory)
        try:
            await place.engine()
            async with Client.connect(settings=settings) as place.client:
                yield place
        finally:
            place.kill()
            await place.close_engine()


@pytest.mark.parametrize("order", [("ann", "bob"), ("bob", "ann")])
def test_two_approvals_in_either_order_each_after_a_kill_pay_once_each(
    settings: Settings, tmp_path: Path, order: tuple[str, str]
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path) as place:
            run = await place.start()
            asks = await asked(run, "ann", "bob")
            left = list(order)
            for id in order:
                place.kill()
                sent = await run.approve("pay", id, args_hash=asks[id].args_hash, by="ada")
                assert await run.approve("pay", id, args_hash=asks[id].args_hash, by="ada") == sent
                place.worker()
                left.remove(id)
                if left:
                    assert await asked(run, *left) == {each: asks[each] for each in left}
            assert await run.result(timeout_s=30) == "Done."
            assert place.paid == [(id, {"ann": 100, "bob": 200}[id]) for id in order]
            assert place.fake.count == 2 and not place.fake.failures

    asyncio.run(story())


def test_what_is_decided_about_a_call_of_one_run_says_nothing_about_another_runs(
    settings: Settings, tmp_path: Path
) -> None:
    """Both runs ask about the same ids with the same arguments, at steps of one name."""

    async def story() -> None:
        async with stand(settings, tmp_path) as place:
            run = await place.start()
            other = await place.client.start("payments", "Pay ann and bob.", id="other")
            asks = await asked(run, "ann", "bob")
            theirs = await asked(other, "ann", "bob")
            assert theirs["ann"].args_hash == asks["ann"].args_hash
            await run.approve("pay", "ann", args_hash=asks["ann"].args_hash, wait_s=20)
            await run.reject("pay", "bob")
            assert await run.result(timeout_s=30) == "Done."
            assert await asked(other, "ann", "bob") == theirs
            await other.reject("pay", "ann", text="Not twice.")
            assert await asked(other, "bob") == {"bob": theirs["bob"]}
            await other.approve("pay", "bob", args_hash=theirs["bob"].args_hash)
            assert await other.result(timeout_s=30) == "Done."
            assert place.paid == [("ann", 100), ("bob", 200)]

    asyncio.run(story())


def test_a_bad_edit_goes_back_to_its_approver_and_a_good_one_runs(
    settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path) as place:
            run = await place.start()
            asks = await asked(run, "ann", "bob")
            hash = asks["ann"].args_hash
            for edit, told in (
                ({"to": "ann", "cents": "many"}, "cents"),
                ({"to": "eve", "cents": 1}, "Nothing is paid to eve"),
            ):
                with pytest.raises(UserError, match=told):
                    await run.approve("pay", "ann", args_hash=hash, input=edit, wait_s=20)
                open_now = await asked(run, "ann", "bob")
                assert told in open_now["ann"].problem
                assert open_now["bob"] == asks["bob"]
            edit = {"to": "ann", "cents": 1}
            await run.approve("pay", "ann", args_hash=hash, input=edit, wait_s=20)
            await asked(run, "bob")
            await run.reject("pay", "bob", text="Not him.")
            assert await run.result(timeout_s=30) == "Done."
            assert place.paid == [("ann", 1)]
            results = place.fake.requests[1].tool_results
            assert results["ann"] == "paid 1 to ann" and "Not him." in results["bob"]

    asyncio.run(story())


def test_what_is_no_answer_at_all_does_no_harm(settings: Settings, tmp_path: Path) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path) as place:
            run = await place.start()
            await asked(run, "ann", "bob")
            for number, payload in enumerate(
                ([1], "yes", {"call_id": "ann", "verdict": "maybe"}, {"call_id": 7})
            ):
                await run.send("pay", payload, kind="reply", id=f"odd-{number}")
            asks = await until(
                lambda: asked(run, "ann", "bob"), lambda found: bool(found["ann"].problem)
            )
            assert "it is no answer" in asks["ann"].problem
            await run.reject("pay", "ann")
            await asked(run, "bob")  # It is asked anew once the first answer is heard.
            await run.reject("pay", "bob")
            assert await run.result(timeout_s=30) == "Done."
            assert place.paid == []

    asyncio.run(story())


def test_escalation_and_expiry_keep_their_times_over_a_restart_of_everything(
    own_server: NatsServer, namespace: str, tmp_path: Path
) -> None:
    settings = Settings(url=own_server.url, namespace=namespace)
    times = {"waits_s": 20, "escalates_s": 4}

    async def story() -> None:
        async with stand(settings, tmp_path) as place:
            run = await place.start(**times)
            first = await asked(run, "ann", "bob")
            due_ms = first["ann"].due_ms
            assert due_ms - first["ann"].asked_ms == 20_000
            assert {ask.level for ask in first.values()} == {0}
            place.kill()
            await place.close_engine()
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.restart)
            await place.engine()
            place.worker(waits_s=3_600, escalates_s=1_800)  # A newer version: too late for these.
            asks = await until(
                lambda: asked(run, "ann", "bob"), lambda found: found["ann"].level == 1
            )
            assert {(ask.to, ask.due_ms) for ask in asks.values()} == {("finance-lead", due_ms)}
            await run.approve("pay", "bob", args_hash=asks["bob"].args_hash, by="lead")
            assert (await asked(run, "ann"))["ann"].due_ms == due_ms
            assert await run.result(timeout_s=60) == "Done."
            ended_ms = (await run.get()).ended_ms
            assert 0 <= ended_ms - due_ms < 15_000
            assert place.paid == [("bob", 200)]
            assert "Nobody answered in time" in str(place.fake.requests[1].tool_results["ann"])

    asyncio.run(story())
