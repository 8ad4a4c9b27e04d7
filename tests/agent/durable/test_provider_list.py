"""The budgets of providers that are listed: what is free, who waits, who was called, and pauses.

A real server; what is stored is written by workers' own code, in the first test without runs.
"""

from __future__ import annotations

import asyncio
import itertools
import time

import msgspec
import pytest
from tests.agent.durable.test_provider_budget import until_in_line
from tests.agent.durable.test_stream import talking
from typer.testing import CliRunner

from treadle.cli.main import app
from treadle.engine.topology import ensure_topology
from treadle.sdk import Client
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client.provider_list import ProviderView
from treadle.sdk.messages import ProviderRecord
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import RegisterAddress
from treadle.worker.agent import ProviderBudget
from treadle.worker.agent.core import provider_budget as core
from treadle.worker.agent.core.conversation import ModelFault
from treadle.worker.agent.models.retrying import RetryPolicy
from treadle.worker.agent.provider import Gate
from treadle.worker.agent.testing import error, text, turn
from treadle.worker.shared import StoredValues

SMALL = ProviderBudget(requests_per_minute=2, tokens_per_minute=10)
"""A call of a thousand tokens takes all of it for a hundred minutes."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def stored(settings: Settings) -> None:
    """Store what workers do: one call and five that wait, of which the first is called; a 429."""
    connection = await Connection.open(settings, name="test")
    try:
        js = JetStream(connection)
        subjects = await ensure_topology(js, settings)
        values = StoredValues(js, subjects)

        def gate(name: str, run: str, budget: ProviderBudget) -> Gate:
            address = RegisterAddress("main", run, "ask", "agent")
            return Gate(values, name, budget, now_ms, address)

        assert await gate("p/small", "r0", SMALL).reserve(1_000) == (0, "")
        for number in range(1, 6):
            wait_s, _ = await gate("p/small", f"r{number}", SMALL).reserve(1_000)
            assert wait_s > 5_000
        key = gate("p/small", "", SMALL).line
        raw, revision = await values.read(key)
        record = msgspec.json.decode(raw, type=ProviderRecord)
        line = await values.lines.first(key, 16)
        # Seen when the bucket is full again.
        marked = core.calls(record, SMALL, line, round(record.tokens_full_ms)).record
        assert await values.write(key, msgspec.json.encode(marked), revision, lambda _: False)
        limited = ModelFault(kind="rate_limited", message="", retry_after_s=3_000)
        await gate("p/free", "r9", ProviderBudget()).limited(limited)
        await js.store(subjects.provider("0" * 32), b"{")
    finally:
        await connection.close()


def test_a_budget_is_listed_with_what_is_free_who_waits_and_who_was_called(
    settings: Settings,
) -> None:
    async def story() -> list[ProviderView]:
        await stored(settings)
        async with Client.connect(settings=settings) as client:
            return await client.provider_budgets()

    before_ms = now_ms()
    small, free, broken = asyncio.run(story())
    assert (small.name, small.requests_per_minute, small.tokens_per_minute) == ("p/small", 2, 10)
    assert (small.requests_free, small.tokens_free, small.held_until_ms) == (1, 0, 0)
    assert (small.waiting, small.absent) == (5, 0)
    assert [(each.run, each.step) for each in small.first] == [(f"r{n}", "ask") for n in (1, 2, 3)]
    assert all(before_ms <= each.since_ms <= now_ms() for each in small.first)
    assert [each.run for each in small.called] == ["r1"]
    # Each call takes a hundred minutes of the bucket.
    turns = [each.turn_ms for each in small.first]
    assert [round((b - a) / 60_000) for a, b in itertools.pairwise(turns)] == [100, 100]
    assert (free.name, free.requests_free, free.tokens_free, free.waiting) == (
        "p/free",
        None,
        None,
        1,
    )
    assert before_ms < free.held_until_ms - 3_000_000 <= now_ms()
    assert free.held_by == "the provider limits p/free"
    assert free.first[0].turn_ms == free.held_until_ms
    assert broken.name.startswith("unreadable")

    runner = CliRunner(env={"TREADLE_NATS_URL": settings.url})
    place = ("--namespace", settings.namespace)
    rows = [" ".join(r.split()) for r in runner.invoke(app, ["limits", *place]).output.splitlines()]
    (row,) = [row for row in rows if row.startswith("p/small")]
    assert row.startswith("p/small 1/2 free 0/10 free 5 r1/ask (")
    assert row.count("/ask (") == 4 and row.endswith(", 2 more")
    (row,) = [row for row in rows if row.startswith("p/free")]
    assert row.startswith("p/free 20") and " 1 r9/ask (" in row
    lines = runner.invoke(app, ["limits", *place, "--json"]).output.splitlines()
    found = [msgspec.json.decode(line, type=ProviderView) for line in lines]
    assert [msgspec.structs.replace(each, first=(), called=()) for each in found] == [
        msgspec.structs.replace(each, first=(), called=()) for each in (small, free, broken)
    ]
    assert {each.kind for each in found} == {"provider"}


@pytest.mark.slow
def test_a_run_in_line_is_listed_there_and_is_no_parked_run_for_bulk_actions(
    settings: Settings,
) -> None:
    async def story() -> None:
        turns = [error(429, retry_after=3_000), turn(text("done"))]
        free = ProviderBudget()
        options = {"provider_budget": free, "model_retry": RetryPolicy(wait_s_max=0.0)}
        async with talking(settings, turns, **options) as (client, _):
            run = await client.start("orders", "Late?", id="r1")
            view = await until_in_line(run, "answer")
            (budget,) = await client.provider_budgets()
            assert (budget.name, budget.waiting) == ("anthropic/claude-test", 1)
            assert abs(budget.first[0].turn_ms - view.step("answer").due_ms) < 1_000
            for act in (client.bulk.cancel, client.bulk.pause, client.bulk.resume):
                assert (await act(status="parked")).matched == 0
            assert (await client.bulk.resume()).matched == 0, "it is for parked and paused runs"
            assert (await run.get()).step("answer").line
            report = await client.bulk.cancel(status="running")
            assert (report.matched, report.counts) == (1, {"done": 1})
            async with asyncio.timeout(10):
                while (await client.provider_budgets())[0].waiting:
                    await asyncio.sleep(0.02)

    asyncio.run(story())
