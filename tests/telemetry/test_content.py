"""What was said is in a trace if, and only if, whoever runs the processes asks for it.

Method: a real server, a collector that takes OTLP over HTTP, and an agent on the fake model.
Canaries stand wherever a run can hold something secret; all that leaves is searched for them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.agent.run.stage import Stage
from tests.telemetry.receiver import Seen
from tests.telemetry.stand import Stand, exporting, stand

from treadle.engine.telemetry import metering, projector
from treadle.sdk import Retry, RunFailed, Workflow
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects
from treadle.sdk.tracing import capture, names
from treadle.sdk.tracing.content import BYTES_MAX, capped
from treadle.worker import LoopContext, TaskContext, Worker
from treadle.worker.agent import describing, durable, tool
from treadle.worker.agent.hooks import Hooks
from treadle.worker.agent.testing import (
    RecordedRequest,
    Turn,
    redacted_thinking,
    text,
    thinking,
    tool_use,
    turn,
)

SECRET = "sk-canary-51f0"
"""May leave where content is asked for."""
HIDDEN = "sk-hidden-77aa"
"""A tool returns it, and a hook takes it out: it is stored nowhere."""
SEALED = "sk-sealed-02cd"
"""The model's reasoning holds it in a form that only its provider reads."""
KIND = f"Be kind, {SECRET}."
ON = "SPAN_ONLY"
CONTENT = {
    names.INPUT_MESSAGES,
    names.OUTPUT_MESSAGES,
    names.INSTRUCTIONS,
    names.DEFINITIONS,
    names.TOOL_ARGUMENTS,
    names.TOOL_RESULT,
    names.INPUT_VALUE,
    names.OUTPUT_VALUE,
}
Story = Callable[[Stand], Coroutine[Any, Any, None]]
Play = Callable[..., None]


@tool(idempotent=True)
async def look_up(order: str, secret: str) -> dict[str, Any]:
    """Look an order up, with sk-canary-51f0."""
    return {"order": order, "with": secret, "card": HIDDEN}


def model_says(request: RecordedRequest) -> Turn:
    """Call the tool in each turn until as many results are there as the goal asks for."""
    answers = sum(message["role"] == "assistant" for message in request.messages)
    wanted = int(str(request.messages[0]["content"][0]["text"]).split()[0])
    if answers < wanted:
        arguments = {"order": f"O-{answers}", "secret": SECRET}
        return turn(
            thinking(f"I think of {SECRET}."),
            redacted_thinking(SEALED),
            text(f"I look, {SECRET}."),
            tool_use("look_up", arguments, id=f"look{answers}"),
        )
    return turn(text(f"All is well, {SECRET}."))


def without_the_card(_: Any, result: Any) -> Any:
    content = str(result.content).replace(HIDDEN, "[redacted]")
    return msgspec.structs.replace(result, content=content)


def a_worker(stage: Stage, instructions: str) -> Worker:
    worker = Worker()
    agent = stage.agent(
        name="clerk",
        instructions=instructions,
        tools=[look_up],
        hooks=Hooks(after_tool_call=without_the_card),
    )
    worker.agent("clerk", agent)

    @worker.handler("fetch")
    async def fetch(ctx: TaskContext[Any]) -> Any:
        return ctx.input

    @worker.handler("shout")
    async def shout(ctx: TaskContext[str]) -> str:
        return ctx.input.upper()

    @worker.handler("breaks")
    async def breaks(ctx: TaskContext[Any]) -> None:
        raise ValueError("it broke")

    @worker.handler("waits")
    async def waits(ctx: LoopContext[Any]) -> Any:
        await ctx.checkpoint({"kept": SECRET})
        if not await ctx.messages():
            return ctx.wait("a person", state={"state": SECRET})
        raise RuntimeError(f"no luck with {SECRET}")

    return worker


def orders() -> Workflow[Any]:
    workflow: Workflow[Any] = Workflow("orders")
    workflow.task("fetch", "fetch")
    workflow.agent_loop("clerk", "clerk", after=["fetch"], max_iterations=100)
    return workflow


@pytest.fixture
def play(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Play a story with an agent; ``worker`` and ``engine`` say who is asked for content."""

    def play(
        story: Story,
        *,
        worker: str = "",
        engine: bool = False,
        instructions: str = KIND,
        meter: Any = None,
    ) -> None:
        monkeypatch.setenv(capture.VARIABLE, worker)

        async def on_stand(taken: Any, export: Any) -> None:
            async with Stage(model_says) as stage:
                serving = a_worker(stage, instructions)
                async with stand(
                    settings, serving, taken, export, content=engine, meter=meter
                ) as place:
                    await story(place)

        with exporting(monkeypatch) as (taken, export):
            asyncio.run(on_stand(taken, export))

    return play


async def finished(place: Stand, goal: str, run: str = "run") -> list[Seen]:
    """Let a run come to its end; return its spans."""
    handle = await place.client.start(orders(), goal, id=run)
    await handle.result()
    await place.traced(run)
    return sorted(place.collector.of_run(run), key=lambda span: span.start_ns)


def content_of(spans: list[Seen]) -> set[str]:
    return {name for span in spans for name in span.attributes} & CONTENT


def chats(spans: list[Seen]) -> list[dict[str, Any]]:
    """What the model calls were told and said, as data."""
    return [
        {name: json.loads(span.attributes[name]) for name in CONTENT & set(span.attributes)}
        for span in spans
        if span.name.startswith("chat ")
    ]


async def verdicts(settings: Settings, run: str = "run") -> list[bytes]:
    """What the agent's iterations have stored as events."""
    connection = await Connection.open(settings, name="test")
    try:
        s = Subjects(settings.namespace)
        js = JetStream(connection)
        stored = [each.data async for each in js.read(s.events_stream, s.events_of_run(run))]
    finally:
        await connection.close()
    return [data for data in stored if b'"step":"clerk"' in data and b'"parts"' in data]


# ---------------------------------------------------------------- off


def test_without_content_no_canary_leaves_and_nothing_is_read_or_stored_for_it(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "treadle")
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    monkeypatch.setattr(projector, "Contents", None)
    monkeypatch.setattr(durable, "described", None)
    for each in ("TURN_S", "SURVEY_S", "LOOK_S"):
        monkeypatch.setattr(metering, each, 0.05)

    async def story(place: Stand) -> None:
        spans = await finished(place, f"1 {SECRET}")
        assert {"chat claude-test", "execute_tool look_up"} <= {span.name for span in spans}
        assert content_of(spans) == set()
        stored = await verdicts(place.settings)
        assert len(stored) == 2 and not any(b'"content"' in data for data in stored)

        failing: Workflow[Any] = Workflow("failing")
        failing.agent_loop("waits", "waits", max_iterations=9, retry=Retry(max_attempts=1))
        run = await place.client.start(failing, {"in": SECRET}, id="failing")
        async with asyncio.timeout(20):
            while (await run.get()).status != "parked":
                await asyncio.sleep(0.02)
        await run.send("waits", f"steer by {SECRET}")
        with pytest.raises(RunFailed):
            await run.result()
        await place.traced("failing")
        async with asyncio.timeout(20):
            while "failed" not in str(reader.get_metrics_data()):
                await asyncio.sleep(0.05)

        bodies = b"".join(place.collector.bodies)
        assert b"RuntimeError" in bodies
        for canary in (SECRET, HIDDEN, SEALED):
            assert canary.encode() not in bodies
            assert canary not in str(reader.get_metrics_data())
        # A worker's own log has the text of an exception: nothing else of a run.
        formatter = logging.Formatter()
        lines = [formatter.format(record) for record in caplog.records]
        told = [line for line in lines if any(c in line for c in (SECRET, HIDDEN, SEALED))]
        assert told and all(f"no luck with {SECRET}" in line for line in told), told

    play(story, meter=provider.get_meter("treadle"))


@pytest.mark.parametrize(("worker", "engine"), [(ON, False), ("", True)])
def test_the_engine_decides_what_is_exported_and_the_worker_what_it_tells(
    play: Play, worker: str, engine: bool
) -> None:
    async def story(place: Stand) -> None:
        found = content_of(await finished(place, "1 order"))
        assert found == (CONTENT - {names.INSTRUCTIONS, names.DEFINITIONS} if engine else set())

    play(story, worker=worker, engine=engine)


# ---------------------------------------------------------------- on


def test_with_content_each_message_is_there_once_and_nothing_that_was_taken_out(
    play: Play,
) -> None:
    async def story(place: Stand) -> None:
        run = await place.client.start(orders(), f"2 {SECRET}", id="run")
        await run.result()
        await place.traced("run")
        spans = sorted(place.collector.of_run("run"), key=lambda span: span.start_ns)
        first, second, last = chats(spans)
        asks = {"type": "text", "content": f"2 {SECRET}"}
        assert first[names.INPUT_MESSAGES] == [{"role": "user", "parts": [asks]}]
        assert first[names.INSTRUCTIONS] == [{"type": "text", "content": f"Be kind, {SECRET}."}]
        defined = next(each for each in first[names.DEFINITIONS] if each["name"] == "look_up")
        assert set(defined) == {"type", "name", "description", "parameters"}
        assert defined["type"] == "function"
        assert defined["parameters"]["required"] == ["order", "secret"]
        assert first[names.OUTPUT_MESSAGES] == [
            {
                "role": "assistant",
                "parts": [
                    {"type": "reasoning", "content": f"I think of {SECRET}."},
                    {"type": "redacted_thinking"},
                    {"type": "text", "content": f"I look, {SECRET}."},
                    {
                        "type": "tool_call",
                        "id": "look0",
                        "name": "look_up",
                        "arguments": {"order": "O-0", "secret": SECRET},
                    },
                ],
                "finish_reason": "tool_call",
            }
        ]
        returned = {"order": "O-0", "with": SECRET, "card": "[redacted]"}
        answer = {"type": "tool_call_response", "id": "look0", "response": returned}
        assert second[names.INPUT_MESSAGES] == [{"role": "tool", "parts": [answer]}]
        assert set(second) == {names.INPUT_MESSAGES, names.OUTPUT_MESSAGES}
        (ended,) = last[names.OUTPUT_MESSAGES]
        assert ended["finish_reason"] == "stop"

        called = next(span for span in spans if span.name == "execute_tool look_up")
        assert json.loads(called.attributes[names.TOOL_ARGUMENTS])["order"] == "O-0"
        assert json.loads(called.attributes[names.TOOL_RESULT]) == returned
        for name in ("invoke_workflow orders", "step fetch", "invoke_agent clerk"):
            span = next(each for each in spans if each.name == name)
            assert json.loads(span.attributes[names.INPUT_VALUE]) == f"2 {SECRET}"
            assert span.attributes[names.OUTPUT_TYPE] == "application/json"
        root = next(each for each in spans if each.name == "invoke_workflow orders")
        assert json.loads(root.attributes[names.OUTPUT_VALUE]) == f"All is well, {SECRET}."

        bodies = b"".join(place.collector.bodies)
        assert SECRET.encode() in bodies
        for canary in (HIDDEN, SEALED, "signature"):
            assert canary.encode() not in bodies, canary

    play(story, worker=ON, engine=True)


def test_what_people_say_meanwhile_and_what_an_exception_says_is_content_too(play: Play) -> None:
    async def story(place: Stand) -> None:
        failing: Workflow[Any] = Workflow("failing")
        failing.agent_loop("waits", "waits", max_iterations=9, retry=Retry(max_attempts=1))
        run = await place.client.start(failing, None, id="failing")
        async with asyncio.timeout(20):
            while (await run.get()).status != "parked":
                await asyncio.sleep(0.02)
        await run.send("waits", "go")
        with pytest.raises(RunFailed):
            await run.result()
        await place.traced("failing")
        assert f"no luck with {SECRET}".encode() in b"".join(place.collector.bodies)

        run = await place.client.start(orders(), "2 go", id="run")
        await run.send("clerk", f"steer by {SECRET}")
        await run.result()
        await place.traced("run")
        told = [chat[names.INPUT_MESSAGES] for chat in chats(place.collector.of_run("run"))]
        assert json.dumps(told).count(f"steer by {SECRET}") == 1

    play(story, worker=ON, engine=True)


def test_a_step_shows_what_it_was_given_also_if_that_is_a_failure_or_what_it_undoes(
    play: Play,
) -> None:
    workflow: Workflow[Any] = Workflow("trip")
    workflow.task("book", "shout", compensate="cancel")
    workflow.task("cancel", "fetch")
    workflow.task("pay", "breaks", after="book", on_failure="tell")
    workflow.task("tell", "breaks")

    async def story(place: Stand) -> None:
        run = await place.client.start(workflow, "a room", id="trip")
        with pytest.raises(RunFailed):
            await run.result()
        await place.traced("trip")
        steps = {
            str(span.attributes[names.STEP]): json.loads(span.attributes[names.INPUT_VALUE])
            for span in place.collector.of_run("trip")
            if names.STEP_STATUS in span.attributes
        }
        assert (steps["book"], steps["pay"], steps["cancel"]) == ("a room", "A ROOM", "A ROOM")
        assert (steps["tell"]["step"], steps["tell"]["failure"]["type"]) == ("pay", "ValueError")

    play(story, worker=ON, engine=True)


@pytest.mark.slow
def test_a_long_loop_stores_nothing_more_and_exports_no_message_twice(play: Play) -> None:
    async def story(place: Stand) -> None:
        told = chats(await finished(place, "25 orders"))
        texts = [json.dumps(chat[names.INPUT_MESSAGES]) for chat in told]
        assert len(texts) == 26
        # What is returned, and now and then a note of the runtime.
        assert all(text.count("tool_call_response") == 1 for text in texts[1:])
        assert max(map(len, texts)) < 1_000
        stored = await verdicts(place.settings)
        first, *others = [data for data in stored if b'"parts"' in data]
        assert b'"content"' in first and not any(b'"content"' in data for data in others)

    play(story, worker=ON, engine=True)


def test_content_is_cut_to_its_bound_and_stays_json(play: Play) -> None:
    async def story(place: Stand) -> None:
        spans = await finished(place, "1 " + 'say "ä"\n ' * 20_000)
        cut = next(chat[names.INPUT_MESSAGES] for chat in chats(spans))
        assert "[cut: " in cut[0]["parts"][0]["content"]
        for span in spans:
            for name in CONTENT & set(span.attributes):
                assert len(span.attributes[name].encode()) <= BYTES_MAX
                json.loads(span.attributes[name])

    play(story, worker=ON, engine=True, instructions='"' * 50_000)


class _Narrow(NatsServer):
    def _config(self) -> str:
        return f"max_payload: 20000\n{super()._config()}"


def test_a_verdict_that_content_makes_too_large_is_stored_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "treadle.worker")
    monkeypatch.setenv(capture.VARIABLE, ON)
    server = _Narrow.start(tmp_path)

    async def story(taken: Any, export: Any) -> None:
        settings = Settings(url=server.url, namespace="narrow")
        async with Stage(model_says) as stage:
            worker = a_worker(stage, '"' * 8_000)
            async with stand(settings, worker, taken, export, content=True) as place:
                found = content_of(await finished(place, "1 order"))
                assert names.INPUT_MESSAGES in found and names.INSTRUCTIONS not in found
        assert "worker.content-left-out" in caplog.text

    try:
        with exporting(monkeypatch) as (taken, export):
            asyncio.run(story(taken, export))
    finally:
        server.stop()


# ---------------------------------------------------------------- the variable


@pytest.mark.parametrize(
    ("value", "is_on", "said"),
    [
        (None, False, ""),
        ("", False, ""),
        ("NO_CONTENT", False, ""),
        ("SPAN_ONLY", True, ""),
        (" span_and_event ", True, ""),
        ("EVENT_ONLY", False, "log records"),
        ("true", False, "'TRUE', which is not one of"),
    ],
)
def test_the_standard_variable_alone_decides_and_what_is_not_done_is_said_once(
    value: str | None, is_on: bool, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = {} if value is None else {capture.VARIABLE: value}
    assert capture.is_on(env) == is_on
    capture.warn(logging.getLogger("treadle.test"), env)
    assert len(caplog.records) == bool(said)
    assert said in caplog.text


@pytest.mark.parametrize(
    "value",
    [
        "x" * 100_000,
        "\x00" * 100_000,
        {"a": ["ä" * 30_000, {"b": "𝄞" * 30_000}], "n": 3},
        ["short"] * 50_000,
        {f"key {n}": n for n in range(9_000)},
        {"k" * 100_000: 1},
        list(range(30_000)),
    ],
    ids=["text", "control", "nested", "many", "members", "key", "numbers"],
)
def test_whatever_is_too_long_is_json_within_the_bound_and_says_that_it_was_cut(
    value: Any,
) -> None:
    found = capped(value)
    assert 4_000 < len(found.encode()) <= BYTES_MAX
    assert "[cut: " in str(json.loads(found))


def test_what_fits_is_as_it_was() -> None:
    whole = {"a": "x" * (BYTES_MAX - 8)}
    assert json.loads(capped(whole)) == whole


def test_the_bounds_on_the_page_are_those_of_the_code() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "tracing.md").read_text("utf-8")
    assert f"An attribute has {BYTES_MAX // 1024} KiB at most" in text
    assert f"first answer: {describing.BYTES_MAX // 1024} KiB at most" in text
