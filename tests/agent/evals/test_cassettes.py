"""Cassettes: any run's journal as an offline test, and what a change of the agent changes in it.

Method: runs in memory with real tools and people, recorded; then replayed with other agents.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from treadle.sdk.errors import UserError
from treadle.worker.agent import Agent, Budget, MemoryInbox, Policy, Reply, tool
from treadle.worker.agent.core.entries import Entry, Stopped
from treadle.worker.agent.evals import (
    Cassette,
    ScriptedModel,
    cases_from,
    diff,
    record,
    replay,
    trajectory,
)
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.ports import MemoryJournal
from treadle.worker.cancellation import CancelToken

CALLED: list[str] = []
WINDOW = AnthropicModel("claude-none", api_key="none")


@tool(idempotent=True)
async def read_order(order_id: str) -> dict[str, Any]:
    """Read one order."""
    CALLED.append(order_id)
    return {"order": order_id, "late": True}


@tool(requires_approval=True)
async def refund(order_id: str, cents: int) -> str:
    """Pay back."""
    CALLED.append(f"{order_id} {cents}")
    return f"{cents} paid"


@pytest.fixture(autouse=True)
def _nothing_was_called() -> None:  # pyright: ignore[reportUnusedFunction] -- a fixture
    CALLED.clear()


def agent(script: list[Any] | None = None, **changes: Any) -> Agent[Any]:
    """Return an agent; one without a script may never ask its model."""
    model: Any = "anthropic:claude-none"
    if script is not None:
        plain = {"case_id": "c", "goal": "g", "model": script, "expected": {"max_tool_calls": 0}}
        model = ScriptedModel(cases_from(plain)[0].model or (), WINDOW)
    settings: dict[str, Any] = {"model": model, "tools": [read_order, refund], **changes}
    return Agent("refunds", **settings)


def call(name: str, **args: Any) -> dict[str, Any]:
    return {"tool": name, "args": args}


READ = call("read_order", order_id="O-1")
PAY = call("refund", order_id="O-1", cents=5)
SCRIPT: list[Any] = [
    {"calls": [READ, call("read_order", order_id="O-2")]},
    {"calls": [PAY]},
    "It is paid.",
]


def recorded(subject: Agent[Any], *, approve: dict[str, Any] | None = None, steer: str = "") -> Any:
    """Return the cassette of a run in which a person approves what is asked."""

    async def run() -> Cassette:
        journal, inbox = MemoryJournal(), MemoryInbox()
        if steer:
            inbox.steer(steer)
        result = await subject.run("Refund O-1.", journal=journal, inbox=inbox)
        for waiting in result.waiting_for:
            inbox.reply(
                Reply(
                    call_id=waiting.id,
                    verdict="approve",
                    args_hash=waiting.args_hash,
                    input=approve,
                )
            )
        if result.waiting_for:
            await subject.run(state=result.state, journal=journal, inbox=inbox)
        return record(journal.entries, agent=subject.name)

    return asyncio.run(run())


def replayed(subject: Agent[Any], cassette: Cassette) -> list[Entry]:
    """Replay; no tool may have been called."""
    CALLED.clear()
    entries = asyncio.run(replay(subject, cassette))
    assert CALLED == []
    return entries


def lines(cassette: Cassette, subject: Agent[Any]) -> list[str]:
    return [str(each) for each in diff(cassette, replayed(subject, cassette))]


def test_a_recorded_run_replays_without_its_model_its_tools_and_its_people() -> None:
    cassette = recorded(agent(SCRIPT), steer="Be quick.")
    assert CALLED == ["O-1", "O-2", "O-1 5"]
    again = replayed(agent(), cassette)
    assert diff(cassette, again) == ()
    found = trajectory(again)
    assert (found.stop_reason, found.output) == ("completed", "It is paid.")
    assert [c.decision for c in found.calls] == ["execute", "execute", "needs_approval"]
    assert "heard" in found.trace


def test_arguments_a_person_edited_are_replayed_as_edited() -> None:
    cassette = recorded(agent(SCRIPT), approve={"order_id": "O-1", "cents": 3})
    assert CALLED[-1] == "O-1 3"
    again = trajectory(replayed(agent(), cassette))
    assert again.calls[-1].runs_with == {"order_id": "O-1", "cents": 3}
    assert lines(cassette, agent()) == []


def test_a_stricter_policy_shows_as_other_decisions_and_results() -> None:
    cassette = recorded(agent(SCRIPT))
    assert lines(cassette, agent(policy=Policy(forbidden={"refund"}))) == [
        "turn 2, call 1 (refund): decision needs_approval -> denied",
        "turn 2, call 1 (refund): status ok -> refused",
    ]


def test_a_tool_that_is_gone_or_asks_for_more_shows_as_an_invalid_call() -> None:
    cassette = recorded(agent(SCRIPT))

    @tool(idempotent=True)
    async def read_order(order_id: str, region: str) -> str:
        """Read one order."""
        raise AssertionError(order_id + region)

    found = lines(cassette, agent(tools=[read_order, refund]))
    assert found[0] == "turn 1, call 1 (read_order): decision execute -> invalid"


def test_a_tighter_budget_shows_as_another_end() -> None:
    cassette = recorded(agent(SCRIPT))
    found = lines(cassette, agent(budget=Budget(max_steps=2), on_limit="fail"))
    assert found == [
        "turn 3: calls an answer without calls -> (nothing)",
        "stop_reason completed -> max_steps",
        "output It is paid. -> null",
    ]


def test_evidence_that_is_asked_for_now_shows_where_the_result_was_accepted() -> None:
    def never(*_: Any) -> str:
        return "it is never enough"

    found = lines(recorded(agent(SCRIPT)), agent(evidence=[never]))
    assert found == ["stop_reason completed -> failed", "output It is paid. -> null"]


def test_time_is_replayed_as_it_was() -> None:
    now_ms = [1_000_000]

    async def run() -> Cassette:
        journal = MemoryJournal()

        def clock() -> int:
            now_ms[0] += 1_000
            return now_ms[0]

        budget = Budget(max_duration=timedelta(seconds=10))
        subject = agent([{"calls": [READ]}] * 2 + ["In time."] * 9, budget=budget)
        await subject.run("Refund O-1.", journal=journal, clock=clock)
        return record(journal.entries)

    cassette = asyncio.run(run())
    assert trajectory(cassette.entries).stop_reason == "timeout"
    subject = agent(budget=Budget(max_duration=timedelta(seconds=10)))
    assert diff(cassette, replayed(subject, cassette)) == ()


def test_a_run_that_was_cancelled_or_never_ended_replays_to_the_same_point() -> None:
    async def run() -> list[Entry]:
        journal, cancelled = MemoryJournal(), CancelToken()

        @tool(idempotent=True)
        async def read_order(order_id: str) -> str:
            """Read one order."""
            cancelled.trip("cancelled")
            return order_id

        subject = agent([{"calls": [READ]}, "Never said."], tools=[read_order, refund])
        await subject.run("Refund O-1.", journal=journal, cancelled=cancelled)
        return journal.entries

    entries = asyncio.run(run())
    cancelled = record(entries)
    assert trajectory(entries).stop_reason == "cancelled"
    assert trajectory(replayed(agent(), cancelled)).stop_reason == "cancelled"
    open_ = record([e for e in recorded(agent(SCRIPT)).entries if not isinstance(e, Stopped)])
    again = trajectory(replayed(agent(), open_))
    assert len(again.turns) == 3


def test_a_recorded_failure_of_the_model_is_replayed_as_one() -> None:
    script = [{"calls": [READ]}, {"error": {"kind": "auth", "message": "no key"}}]
    cassette = recorded(agent(script))
    assert trajectory(cassette.entries).stop_reason == "failed"
    assert lines(cassette, agent()) == []


def test_ids_times_and_usage_are_no_difference_but_true_is_not_one() -> None:
    one = recorded(agent(SCRIPT))
    other_usage: list[Any] = [{**SCRIPT[0], "usage": {"input_tokens": 9}}, *SCRIPT[1:]]
    assert diff(one, recorded(agent(other_usage))) == ()
    before, after = trajectory(one.entries), trajectory(one.entries)
    after = msgspec.structs.replace(after, output=1)
    (found,) = diff(msgspec.structs.replace(before, output=True), after)
    assert (found.what, found.recorded, found.replayed) == ("output", True, 1)


def test_two_runs_whose_models_did_differently_differ_in_calls_and_arguments() -> None:
    other = [{"calls": [READ, call("read_order", order_id="O-3")]}, {"calls": [READ]}, "Paid."]
    assert [str(each) for each in diff(recorded(agent(SCRIPT)), recorded(agent(other)))] == [
        'turn 1, call 2 (read_order): args {"order_id":"O-2"} -> {"order_id":"O-3"}',
        'turn 2: calls ["refund"] -> ["read_order"]',
        "output It is paid. -> Paid.",
    ]


def test_a_cassette_is_written_and_read_as_the_same(tmp_path: Path) -> None:
    cassette = recorded(agent(SCRIPT))
    path = tmp_path / "run.cassette.json"
    cassette.save(path)
    read = Cassette.load(path)
    assert msgspec.json.encode(read) == msgspec.json.encode(cassette)
    assert len(path.read_text().splitlines()) == len(cassette.entries) + 2
    assert diff(cassette, replayed(agent(), read)) == ()


def test_what_is_no_cassette_is_refused_and_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content, says in (
        (b"{", "is no cassette"),
        (b'{"cassette":2,"entries":[]}', "format 2"),
        (b'{"cassette":1,"entries":[]}', "a run begins with 'Opened'"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=says):
            Cassette.load(path)
    with pytest.raises(UserError, match="Name an existing cassette"):
        Cassette.load(tmp_path / "none.json")
    with pytest.raises(UserError, match="from its first entry on"):
        record(recorded(agent(SCRIPT)).entries[1:])
    with pytest.raises(UserError, match="hold 2 conversations"):
        record([*recorded(agent(SCRIPT)).entries] * 2)
