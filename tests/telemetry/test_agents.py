"""The traces of agents whose workers and engines die: one tree each, and every token counted once.

Method: workers and engines as processes that are killed with -9 or stopped at a failpoint; the sums
over the spans are compared with what the engine has counted.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.agent.durable.stand import PATIENCE_S, stand
from tests.agent.durable.test_kill import play
from tests.telemetry import scenarios
from tests.telemetry.receiver import Collector, Seen
from tests.telemetry.researcher import TURNS, playing
from tests.telemetry.scenarios import sub_agents_play
from tests.telemetry.stand import exporting

from treadle.engine.telemetry.exporting import OtlpExport
from treadle.sdk.client import Client, RunHandle
from treadle.sdk.settings import Settings
from treadle.sdk.tracing.capture import VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]
MESSAGES = ("gen_ai.input.messages", "gen_ai.output.messages")
TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")


async def traced(collector: Collector, run: str = "run") -> list[Seen]:
    """Wait for the whole trace; return its spans once they are seen to be a tree."""
    async with asyncio.timeout(PATIENCE_S):
        while not collector.has_ended(run):
            await asyncio.sleep(0.02)
    collector.tree(run)
    return collector.of_run(run)


def check_content(spans: list[Seen]) -> None:
    """Each call has what it was given and what came of it, of one and the same call."""
    for span in spans:
        if span.name.startswith("chat "):
            told, said = (json.loads(span.attributes[name]) for name in MESSAGES)
            assert told[-1]["parts"] and said[0]["role"] == "assistant"
            # Of several results in one message a backend shows the last.
            assert all(len(each["parts"]) == 1 for each in told if each["role"] == "tool")
        elif span.name.startswith("execute_tool "):
            given = json.loads(span.attributes["gen_ai.tool.call.arguments"])
            returned = span.attributes["gen_ai.tool.call.result"]
            assert returned == '"paid"' or str(next(iter(given.values()))) in returned


async def check_tokens(run: RunHandle, spans: list[Seen], step: str = "pay") -> None:
    """The chats' tokens are those that the engine has counted, and so are the root's."""
    spent = (await run.get()).step(step).spent
    chats = [span for span in spans if span.name.startswith("chat ")]
    sums = tuple(sum(span.attributes[name] for span in chats) for name in TOKENS)
    assert sums == (spent.input_tokens, spent.output_tokens)
    root = next(span for span in spans if span.name.startswith("invoke_workflow "))
    assert root.attributes["treadle.usage.input_tokens"] == spent.input_tokens


async def check_told(client: Client, spans: list[Seen], run: str = "run") -> None:
    """What was exported is what the client reads from the log, however the log was read."""
    told = (await client.trace(run)).spans
    assert {
        (s.span_id, s.parent_id, s.name, s.start_ns // 1_000, s.end_ns // 1_000) for s in spans
    } == {(s.span_id, s.parent_id, s.name, s.start_us, s.end_us) for s in told}


def names(spans: list[Seen], prefix: str) -> list[str]:
    return sorted(span.name for span in spans if span.name.startswith(prefix))


@pytest.mark.parametrize(
    "window",
    ["worker.record-before=kill@4", "worker.record-stored=kill@2", "test.pay-after=kill@1"],
)
def test_a_killed_worker_leaves_a_lost_iteration_and_no_call_is_told_twice(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: str
) -> None:
    async def story(collector: Collector, export: OtlpExport) -> None:
        async with stand(settings, tmp_path, play, export.send, content=True) as place:
            run = await scenarios.killed_worker(place, window)
            spans = await traced(collector)
            await check_tokens(run, spans)
            check_content(spans)
            await check_told(place.client, spans)
            lost = next(span for span in spans if span.name == "iteration 0 (worker lost)")
            assert lost.is_error and lost.attributes["error.type"] == "worker_lost"
            assert len(names(spans, "chat ")) == 3
            assert names(spans, "execute_tool ") == [
                *["execute_tool look_up"] * 2,
                *["execute_tool pay"] * 2,
            ]
            if window == "worker.record-stored=kill@2":
                # The dead worker's answer is below its own execution.
                chat = min(
                    (s for s in spans if s.name.startswith("chat ")), key=lambda s: s.start_ns
                )
                assert chat.parent_id == lost.span_id
                assert chat.attributes["treadle.recorded_by.attempt"] == 1

    with exporting(monkeypatch) as (collector, export):
        asyncio.run(story(collector, export))


def test_a_workflow_whose_agent_takes_five_turns_with_tools_is_one_tree_with_every_call(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(collector: Collector, export: OtlpExport) -> None:
        async with stand(settings, tmp_path, playing(), export.send) as place:
            run = await scenarios.researched(place)
            spans = await traced(collector)
            await check_tokens(run, spans, "research")
            tree = collector.tree("run")["invoke_workflow research_report"]
            assert list(tree["invoke_agent research"]) == [f"iteration {n}" for n in range(TURNS)]
            assert {"step fetch", "step report"} <= set(tree)
            for n, (name, below) in enumerate(tree["invoke_agent research"].items()):
                calls = {"execute_tool search_docs", "execute_tool read_page"}
                expected = {"queue wait", "chat claude-test"} | (calls if n < TURNS - 1 else set())
                assert set(below) == expected, name
            kinds = {span.name: span.attributes.get("openinference.span.kind") for span in spans}
            # Backends know a call by its operation, and an operation comes after a kind.
            assert kinds["invoke_agent research"] == "AGENT"
            assert (kinds["chat claude-test"], kinds["execute_tool read_page"]) == (None, None)
            assert {kinds["iteration 0"], kinds["step fetch"], kinds["queue wait"]} == {"CHAIN"}
            sessions = {s.attributes.get("session.id") for s in spans if "invoke_" in s.name}
            assert sessions == {"run"}, "an agent's conversation is no session of its own"

    with exporting(monkeypatch) as (collector, export):
        asyncio.run(story(collector, export))


def test_a_zombie_adds_nothing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(collector: Collector, export: OtlpExport) -> None:
        async with stand(settings, tmp_path, play, export.send) as place:
            stopped = await scenarios.zombie(place)
            before = await traced(collector)
            await check_tokens(stopped.run, before)
            await check_told(place.client, before)
            lost = next(span for span in before if span.name == "iteration 0 (worker lost)")
            assert lost.start_ns < lost.end_ns, "from when it was queued"
            # Its verdict is stored and stale; what it would add comes before a later run's end.
            await stopped.wakes()
            await traced(collector, "later")
            assert collector.of_run("run") == before

    with exporting(monkeypatch) as (collector, export):
        asyncio.run(story(collector, export))


def test_sub_agents_are_in_the_trace_of_their_caller_and_their_tokens_in_its_sum(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(collector: Collector, export: OtlpExport) -> None:
        async with stand(settings, tmp_path, sub_agents_play, export.send, content=True) as place:
            run = await scenarios.sub_agents(place, **{VARIABLE: "SPAN_ONLY"})
            spans = await traced(collector)
            await check_tokens(run, spans)
            assert names(spans, "invoke_agent clerk") == ["invoke_agent clerk"] * 2
            paths = {s.attributes.get("treadle.agent.path") for s in spans if "chat " in s.name}
            assert paths == {None, "call1", "call2"}
            check_content(spans)
            asked = [s for s in spans if s.name == "invoke_agent clerk"]
            assert {json.loads(s.attributes["input.value"])["task"] for s in asked} == {
                "Pay 1.",
                "Pay 2.",
            }
            told = [s.attributes.get("gen_ai.system_instructions", "") for s in spans]
            assert sorted(json.loads(text)[0]["content"] for text in told if text) == [
                "clerk pays.",
                "lead hands out.",
            ]

    with exporting(monkeypatch) as (collector, export):
        asyncio.run(story(collector, export))


def test_a_killed_engine_is_followed_by_one_that_writes_the_same_tree(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(collector: Collector) -> None:
        async with (
            stand(settings, tmp_path, play, serve=False) as place,
            scenarios.killed_engine(place, tmp_path, **{VARIABLE: "SPAN_ONLY"}) as run,
        ):
            spans = await traced(collector)
            await check_tokens(run, spans)
            check_content(spans)

    with exporting(monkeypatch) as (collector, _):
        asyncio.run(story(collector))
