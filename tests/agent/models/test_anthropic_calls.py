"""What is sent to the Messages API, how a call is cancelled, and whose connections are used.

Method: the strict server records requests; a raw one notes when its client goes away.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx2
import pytest
from tests.agent.models.wire import (
    Deltas,
    Reply,
    ask,
    fault,
    http,
    message_end,
    message_start,
    said,
    serve,
    stream,
    text_block,
)

from treadle.worker.agent.core.conversation import ModelError, ModelRequest
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.models.anthropic_wire import ThinkingStyle, style_of, thinking_params
from treadle.worker.agent.testing import FakeAnthropic, text, turn

CLOSED_WITHIN_S = 0.3
ANSWER = [message_start(), *text_block("hello"), *message_end()]


def sent(request: ModelRequest, **options: Any) -> dict[str, Any]:
    """Return the body of such a request, not streamed; the strict server has to accept it."""

    async def story() -> dict[str, Any]:
        with FakeAnthropic([turn(text("ok"))]) as fake:
            model = AnthropicModel("m", base_url=fake.base_url, api_key="k", **options)
            await model.respond(request)
            await model.close()
            body = fake.requests[0].body
            assert body.pop("stream") is False
            return body

    return asyncio.run(story())


def test_a_small_request_is_sent_without_anything_that_was_not_asked_for() -> None:
    assert sent(ask()) == {"model": "m", "max_tokens": 4096, "messages": [said("user", "hi")]}


def test_all_that_was_asked_for_is_sent() -> None:
    tools = [{"name": "a", "description": "d", "input_schema": {"type": "object"}}]
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    body = sent(
        ask(
            model="other",
            system=system,
            tools=tools,
            tool_choice={"type": "tool", "name": "a"},
            temperature=0.5,
            stop_sequences=["STOP"],
            metadata={"user_id": "u1"},
        )
    )
    assert body == {
        "model": "other",
        "max_tokens": 4096,
        "messages": [said("user", "hi")],
        "system": system,
        "tools": tools,
        "tool_choice": {"type": "tool", "name": "a"},
        "temperature": 0.5,
        "stop_sequences": ["STOP"],
        "metadata": {"user_id": "u1"},
    }


@pytest.mark.parametrize(
    ("name", "style"),
    [
        ("claude-3-7-sonnet-20250219", "budget"),
        ("claude-opus-4-20250514", "budget"),
        ("claude-opus-4-1", "budget"),
        ("claude-sonnet-4-5", "budget"),
        ("claude-haiku-4-5-20251001", "budget"),
        ("claude-opus-4-6", "adaptive"),
        ("claude-opus-4-8", "adaptive"),
        ("claude-sonnet-5", "adaptive"),
        ("claude-haiku-5-5", "adaptive"),
        ("claude-mythos-preview", "always"),
        ("claude-fable-5-2", "always"),
        ("a-local-model", "budget"),
    ],
)
def test_how_a_model_is_told_to_think_follows_from_its_name(name: str, style: str) -> None:
    assert style_of(name) == style


@pytest.mark.parametrize(
    ("style", "level", "max_tokens", "expected"),
    [
        ("adaptive", "off", 4096, {"thinking": {"type": "disabled"}}),
        ("always", "off", 4096, {}),
        ("budget", "off", 4096, {}),
        (
            "adaptive",
            "high",
            4096,
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
        ),
        (
            "always",
            "low",
            4096,
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
        ),
        ("budget", "low", 99_999, {"thinking": {"type": "enabled", "budget_tokens": 2048}}),
        ("budget", "high", 99_999, {"thinking": {"type": "enabled", "budget_tokens": 24_576}}),
        ("budget", "high", 4096, {"thinking": {"type": "enabled", "budget_tokens": 3072}}),
        ("budget", "high", 2047, {}),
    ],
)
def test_a_level_of_thinking_leaves_room_for_an_answer(
    style: ThinkingStyle, level: Any, max_tokens: int, expected: dict[str, Any]
) -> None:
    assert thinking_params(style, level, "m", max_tokens) == expected


def test_a_temperature_is_left_out_while_the_model_thinks() -> None:
    body = sent(ask(thinking="low", temperature=0.5))
    assert "temperature" not in body
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 2048}


def test_the_style_of_thinking_can_be_set() -> None:
    body = sent(ask(thinking="medium"), thinking="adaptive")
    assert body["output_config"] == {"effort": "medium"}


def test_cancelling_a_streaming_call_closes_its_socket_at_once() -> None:
    asyncio.run(cancel(stream(*ANSWER[:3], hold=True), Deltas()))


def test_cancelling_a_call_that_waits_for_its_answer_closes_its_socket_at_once() -> None:
    asyncio.run(cancel(Reply(b"", hold=True), None))
    asyncio.run(cancel(Reply(http(200, b"{", length=99).raw, hold=True), None))


async def cancel(reply: Reply, deltas: Deltas | None) -> None:
    async with serve(reply) as wire:
        model = AnthropicModel("m", base_url=wire.url, api_key="k")
        call = asyncio.create_task(model.respond(ask(), on_delta=deltas))
        await asyncio.wait_for(wire.arrived.wait(), 5)
        while deltas is not None and not deltas:
            await asyncio.sleep(0.005)
        began_s = time.monotonic()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.wait_for(wire.gone.wait(), 2)
        assert wire.gone_at_s - began_s < CLOSED_WITHIN_S
        await model.close()


def test_a_connection_is_used_again_by_the_next_call() -> None:
    async def story() -> None:
        with FakeAnthropic([turn(text("x"))] * 4) as fake:
            opened = 0

            async def trace(name: str, _: Any) -> None:
                nonlocal opened
                opened += name == "connection.connect_tcp.complete"

            async def watch(request: httpx2.Request) -> None:
                request.extensions["trace"] = trace

            client = httpx2.AsyncClient(event_hooks={"request": [watch]})
            model = AnthropicModel("m", base_url=fake.base_url, api_key="k", http_client=client)
            for deltas in (Deltas(), None, Deltas(), None):
                await model.respond(ask(), on_delta=deltas)
            assert opened == 1
            await model.close()
            assert not client.is_closed, "it belongs to whoever made it"
            await client.aclose()

    asyncio.run(story())


def test_one_model_serves_several_event_loops_in_turn() -> None:
    with FakeAnthropic([turn(text("x"))] * 2) as fake:
        model = AnthropicModel("m", base_url=fake.base_url, api_key="k")

        async def story() -> None:
            await model.respond(ask())
            await model.close()

        asyncio.run(story())
        asyncio.run(story())
        assert fake.count == 2


def test_the_key_of_a_call_replaces_the_models_own() -> None:
    async def story() -> None:
        with FakeAnthropic([turn(text("x"))], api_key="right") as fake:
            model = AnthropicModel("m", base_url=fake.base_url, api_key="wrong")
            assert (await fault(model, ask())).kind == "auth"
            await model.respond(ask(), api_key="right")
            await model.close()

    asyncio.run(story())


def test_without_a_key_the_error_says_where_to_put_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)

    async def story() -> None:
        model = AnthropicModel("m", base_url="http://127.0.0.1:1")
        what = await fault(model, ask())
        assert what.kind == "auth"
        assert "ANTHROPIC_API_KEY" in what.message
        await model.close()

    asyncio.run(story())


def test_the_providers_count_of_the_input_is_asked_for() -> None:
    async def story() -> None:
        with FakeAnthropic() as fake:
            model = AnthropicModel("m", base_url=fake.base_url, api_key="k")
            few = await model.count_tokens(ask())
            many = await model.count_tokens(ask(messages=[said("user", "hi " * 200)]))
            assert few is not None
            assert many is not None
            assert 0 < few < many
            assert "max_tokens" not in fake.token_counts[0].body
            await model.close()

    asyncio.run(story())


def test_a_server_that_cannot_count_gives_no_count() -> None:
    async def story() -> None:
        async with serve(http(404, {"error": "no such path"})) as wire:
            model = AnthropicModel("m", base_url=wire.url, api_key="k")
            assert await model.count_tokens(ask()) is None
            await model.close()

    asyncio.run(story())


def test_what_a_model_is_can_be_read_from_it() -> None:
    model = AnthropicModel("m", api_key="k", context_window=1000, max_output_tokens=10)
    assert (model.provider, model.name) == ("anthropic", "m")
    assert (model.context_window, model.max_output_tokens) == (1000, 10)


def test_a_count_that_fails_is_a_fault_like_any_other() -> None:
    async def story() -> None:
        async with serve(http(529, {"error": {"type": "overloaded_error"}})) as wire:
            model = AnthropicModel("m", base_url=wire.url, api_key="k")
            with pytest.raises(ModelError, match="overloaded"):
                await model.count_tokens(ask())
            await model.close()

    asyncio.run(story())


def test_an_answer_is_given_although_the_server_keeps_its_stream_open() -> None:
    async def story() -> None:
        async with serve(stream(*ANSWER, hold=True)) as wire:
            model = AnthropicModel("m", base_url=wire.url, api_key="k")
            answer = await model.respond(ask(), on_delta=Deltas(), timeout_s=5)
            assert answer.content == [{"type": "text", "text": "hello"}]
            await asyncio.wait_for(wire.gone.wait(), 2)
            await model.close()

    asyncio.run(story())
