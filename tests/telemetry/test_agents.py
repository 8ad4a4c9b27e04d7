"""The traces of agents whose workers and engines die: one tree each, and every token counted once.

Method: workers and engines as processes that are killed with -9 or stopped at a failpoint; the sums
over the spans are compared with what the engine has counted.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.agent.durable.stand import PATIENCE_S, Stand, stand
from tests.agent.durable.test_kill import payer, play
from tests.agent.durable.test_subagents import clerk, lead, workflow
from tests.agent.run.family import family
from tests.nursery import agents
from tests.telemetry.receiver import Collector, Seen
from tests.telemetry.stand import exporting

from treadle.engine.telemetry.exporting import OtlpExport
from treadle.sdk.client import RunHandle
from treadle.sdk.settings import Settings
from treadle.sdk.tracing.capture import VARIABLE

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)
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
        elif span.name.startswith("execute_tool "):
            given = json.loads(span.attributes["gen_ai.tool.call.arguments"])
            returned = span.attributes["gen_ai.tool.call.result"]
            assert returned == '"paid"' or str(next(iter(given.values()))) in returned


async def check_tokens(run: RunHandle, spans: list[Seen]) -> None:
    """The chats' tokens are those that the engine has counted, and so are the root's."""
    spent = (await run.get()).step("pay").spent
    chats = [span for span in spans if span.name.startswith("chat ")]
    sums = tuple(sum(span.attributes[name] for span in chats) for name in TOKENS)
    assert sums == (spent.input_tokens, spent.output_tokens)
    root = next(span for span in spans if span.name.startswith("invoke_workflow "))
    assert root.attributes["treadle.usage.input_tokens"] == spent.input_tokens


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
            run = await place.client.start(payer(), "Pay order O-0.", id="run")
            assert await place.ended(place.worker(window, PAY_FINDS="yes")) == -9
            place.worker(PAY_FINDS="yes")
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == {"paid": 201}
            spans = await traced(collector)
            await check_tokens(run, spans)
            check_content(spans)
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


def test_a_zombie_adds_nothing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(collector: Collector, export: OtlpExport) -> None:
        async with stand(settings, tmp_path, play, export.send) as place:
            run = await place.client.start(payer(), "Pay order O-0.", id="run")
            zombie = place.worker("worker.settle-before=stop@1", PAY_FINDS="yes")
            await place.stopped(zombie)
            place.worker(PAY_FINDS="yes")
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == {"paid": 201}
            before = await traced(collector)
            await check_tokens(run, before)
            zombie.send_signal(signal.SIGCONT)
            # Its verdict is stored and stale; what it would add comes before a later run's end.
            later = await place.client.start(payer(), "Pay order O-1.", id="later")
            await asyncio.wait_for(later.result(), PATIENCE_S)
            await traced(collector, "later")
            assert collector.of_run("run") == before

    with exporting(monkeypatch) as (collector, export):
        asyncio.run(story(collector, export))


def test_sub_agents_are_in_the_trace_of_their_caller_and_their_tokens_in_its_sum(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(collector: Collector, export: OtlpExport) -> None:
        answers: Any = family(lead=lead, clerk=clerk)
        async with stand(settings, tmp_path, answers, export.send, content=True) as place:
            run = await place.client.start(workflow(), "Pay both.", id="run")
            place.worker("", "family_member", PAY_STEPS="30", **{VARIABLE: "SPAN_ONLY"})
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == "All is paid."
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
    def engine(place: Stand, number: int) -> Any:
        env = {
            "TREADLE_NATS_URL": settings.url,
            "TREADLE_NAMESPACE": settings.namespace,
            "TREADLE_FAILPOINTS": "engine.before-ack=kill@4" if number == 0 else "",
            VARIABLE: "SPAN_ONLY",
        }
        log = tmp_path / f"engine-{number}.log"
        return agents().start("treadle.cli", "engine", env=env, log=log)

    async def story(collector: Collector) -> None:
        async with stand(settings, tmp_path, play, serve=False) as place:
            doomed = engine(place, 0)
            run = await place.client.start(payer(), "Pay order O-0.", id="run")
            place.worker(PAY_FINDS="yes")
            assert await place.ended(doomed) == -9
            follower = engine(place, 1)
            try:
                assert await asyncio.wait_for(run.result(), PATIENCE_S) == {"paid": 201}
                spans = await traced(collector)
                await check_tokens(run, spans)
                check_content(spans)
            finally:
                follower.terminate()
                follower.wait(20)

    with exporting(monkeypatch) as (collector, _):
        asyncio.run(story(collector))
