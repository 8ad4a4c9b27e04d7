"""Answers of the Messages API reach the runtime exactly as they were sent, streamed or whole.

Method: the real SDK against a scripted strict server, and against raw bytes where that is finer.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.agent.models.wire import (
    Deltas,
    Json,
    Reply,
    ask,
    begin,
    call_block,
    delta,
    end,
    fault,
    http,
    message_end,
    message_start,
    said,
    serve,
    sse,
    stream,
    text_block,
)

from treadle.worker.agent.core.conversation import ModelResponse, Usage
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.models.port import TextDelta, ThinkingDelta, ToolDelta
from treadle.worker.agent.testing import (
    Block,
    FakeAnthropic,
    block,
    redacted_thinking,
    text,
    thinking,
    tool_use,
    turn,
)

LONG = "Süße Nähte 🧵, in many small pieces. " * 4
SEARCH: Json = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "threads"},
}
UNKNOWN: Json = {"type": "hologram", "data": {"depth": [1, 2, None]}, "text_like": "x"}
CONTENTS: dict[str, list[Block]] = {
    "text": [text(LONG)],
    "an empty text": [text("")],
    "nothing": [],
    "two calls": [text("Both."), tool_use("a", {"x": [1.5, None, "ü"]}), tool_use("b", {}, "mine")],
    "signed thinking": [thinking(LONG), text("So.")],
    "thinking with a signature only": [thinking(""), tool_use("a", {"x": 1})],
    "unsigned thinking": [thinking(LONG, signed=False), text("So.")],
    "redacted thinking": [redacted_thinking("secret"), text("So.")],
    "blocks of other kinds": [block(SEARCH), block(UNKNOWN), text("So.")],
}


async def both(*blocks: Block) -> tuple[ModelResponse, ModelResponse, Deltas]:
    """Return the same answer whole and streamed."""
    key = b"k" * 32
    deltas = Deltas()
    script = [turn(*blocks)]
    with (
        FakeAnthropic(script, signing_key=key) as one,
        FakeAnthropic(script, signing_key=key) as two,
    ):
        whole = AnthropicModel("m", base_url=one.base_url, api_key="k")
        streamed = AnthropicModel("m", base_url=two.base_url, api_key="k")
        first = await whole.respond(ask())
        second = await streamed.respond(ask(), on_delta=deltas)
        assert [one.count, two.count] == [1, 1]
        await whole.close()
        await streamed.close()
    return first, second, deltas


@pytest.mark.parametrize("name", CONTENTS)
def test_a_streamed_answer_equals_the_whole_one(name: str) -> None:
    whole, streamed, _ = asyncio.run(both(*CONTENTS[name]))
    ids = [(a.get("id"), b.get("id")) for a, b in zip(whole.content, streamed.content, strict=True)]
    for mine, other in zip(whole.content, streamed.content, strict=True):
        if mine["type"] == "tool_use":
            other["id"] = mine["id"]  # Made up by each server.
    assert whole.content == streamed.content, ids
    assert (whole.stop_reason, whole.usage) == (streamed.stop_reason, streamed.usage)
    assert whole.stop_reason == ("tool_use" if "call" in name or "only" in name else "end_turn")


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    "name", ["signed thinking", "thinking with a signature only", "redacted thinking", "two calls"]
)
def test_an_answer_sent_back_is_accepted_by_a_server_that_checks_signatures(
    name: str, is_streamed: bool
) -> None:
    async def story() -> None:
        with FakeAnthropic([turn(*CONTENTS[name]), turn(text("ok"))]) as fake:
            model = AnthropicModel("m", base_url=fake.base_url, api_key="k")
            tools = [{"name": n, "input_schema": {"type": "object"}} for n in "ab"]
            first = ask(max_tokens=9000, thinking="low", tools=tools)
            answer = await model.respond(first, on_delta=Deltas() if is_streamed else None)
            results = [
                {"type": "tool_result", "tool_use_id": b["id"], "content": "fine"}
                for b in answer.content
                if b["type"] == "tool_use"
            ]
            stored = json.loads(json.dumps(answer.content))
            history = [
                *first.messages,
                {"role": "assistant", "content": stored},
                said("user", *(results or ["go on"])),
            ]
            again = ask(max_tokens=9000, thinking="low", tools=tools, messages=history)
            await model.respond(again)
            assert fake.requests[1].messages[1]["content"] == answer.content
            await model.close()

    asyncio.run(story())


def test_a_thinking_block_without_a_signature_has_no_such_field() -> None:
    for answer in asyncio.run(both(*CONTENTS["unsigned thinking"]))[:2]:
        assert answer.content[0] == {"type": "thinking", "thinking": LONG}


async def streamed(*events: object) -> tuple[ModelResponse, Deltas]:
    deltas = Deltas()
    async with serve(stream(*events)) as wire:
        model = AnthropicModel("m", base_url=wire.url, api_key="k")
        answer = await model.respond(ask(), on_delta=deltas)
        await model.close()
    return answer, deltas


def test_deltas_of_all_kinds_are_given_out_and_add_up_to_the_answer() -> None:
    answer, deltas = asyncio.run(
        streamed(
            message_start(),
            begin(0, type="thinking", thinking="", signature=""),
            delta(0, "thinking_delta", thinking="Hm"),
            delta(0, "thinking_delta", thinking="m."),
            delta(0, "signature_delta", signature="sig"),
            end(0),
            *text_block("Let me ", "look.", index=1),
            *call_block('{"to": "bob"}', index=2),
            *message_end("tool_use"),
        )
    )
    assert answer.content == [
        {"type": "thinking", "thinking": "Hmm.", "signature": "sig"},
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "t1", "name": "send", "input": {"to": "bob"}},
    ]
    assert deltas == [
        ThinkingDelta(0, "Hm"),
        ThinkingDelta(0, "m."),
        TextDelta(1, "Let me "),
        TextDelta(1, "look."),
        ToolDelta(2, id="t1", name="send"),
        ToolDelta(2, partial_json='{"to"'),
        ToolDelta(2, partial_json=': "bo'),
        ToolDelta(2, partial_json='b"}'),
    ]


def test_a_call_without_arguments_has_an_empty_input() -> None:
    answer, _ = asyncio.run(streamed(message_start(), *call_block(""), *message_end("tool_use")))
    assert answer.content[0]["input"] == {}


def test_no_streamed_argument_is_lost() -> None:
    given = {"text": LONG, "n": 12345678901234567890, "deep": {"list": [1, 2.5, None]}}
    raw = json.dumps(given, ensure_ascii=False)
    answer, _ = asyncio.run(streamed(message_start(), *call_block(raw), *message_end("tool_use")))
    assert answer.content[0]["input"] == given


@pytest.mark.parametrize(
    "raw",
    ['{"to": "bob", "amount": 10', '{"to": "bob"}}', '["bob"]', "null", '{"n": NaN}', "{'a': 1}"],
)
def test_tool_input_that_is_no_json_object_is_malformed_and_never_completed(raw: str) -> None:
    async def story() -> None:
        events = [message_start(), *call_block(raw), *message_end("tool_use")]
        async with serve(stream(*events)) as wire:
            model = AnthropicModel("m", base_url=wire.url, api_key="k")
            what = await fault(model, ask(), on_delta=Deltas())
            await model.close()
        assert what.kind == "malformed"
        assert what.usage == Usage(input_tokens=11, output_tokens=9)

    asyncio.run(story())


@pytest.mark.parametrize("stop_reason", ["max_tokens", "refusal", "a_reason_of_tomorrow"])
def test_a_call_cut_off_with_its_answer_has_no_arguments_and_tells_the_stop_reason(
    stop_reason: str,
) -> None:
    answer, _ = asyncio.run(
        streamed(
            message_start(), *call_block('{"to": "bob", "amount": 10'), *message_end(stop_reason)
        )
    )
    assert answer.stop_reason == stop_reason
    assert answer.content == [{"type": "tool_use", "id": "t1", "name": "send", "input": {}}]


def test_the_details_of_a_refusal_are_kept_also_when_the_answer_is_empty() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "No."}
    events = [message_start(), *message_end("refusal", stop_details=details)]
    answer, _ = asyncio.run(streamed(*events))
    assert (answer.stop_reason, answer.content) == ("refusal", [])
    assert answer.stop_details == details


@pytest.mark.parametrize("stop_reason", ["pause_turn", "model_context_window_exceeded", "new_one"])
def test_every_stop_reason_is_handed_on_as_it_is(stop_reason: str) -> None:
    answer, _ = asyncio.run(streamed(message_start(), *text_block("x"), *message_end(stop_reason)))
    assert answer.stop_reason == stop_reason


def test_blocks_deltas_and_events_of_unknown_kinds_are_kept_or_skipped() -> None:
    answer, _ = asyncio.run(
        streamed(
            message_start(),
            {"type": "weather", "sunny": True},
            b": a comment\n\n",
            begin(0, type="hologram", frames=[1], note="a"),
            delta(0, "hologram_delta", frames=[2], note="b", depth=3),
            end(0),
            begin(1, type="text", text="", citations=[]),
            delta(1, "citations_delta", citation={"at": 1}),
            delta(1, "text_delta", text="x"),
            end(1),
            *message_end(),
        )
    )
    assert answer.content == [
        {"type": "hologram", "frames": [1, 2], "note": "ab", "depth": 3},
        {"type": "text", "text": "x", "citations": [{"at": 1}]},
    ]


def test_the_usage_is_disjoint_and_the_last_count_of_each_kind_stands() -> None:
    start = message_start(
        input_tokens=11, cache_read_input_tokens=100, cache_creation_input_tokens=20
    )
    last: Json = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
    last["usage"] = {"output_tokens": 50, "cache_read_input_tokens": 101, "input_tokens": None}
    answer, _ = asyncio.run(streamed(start, *text_block("x"), last, {"type": "message_stop"}))
    assert answer.usage == Usage(
        input_tokens=11, cache_read_tokens=101, cache_write_tokens=20, output_tokens=50
    )
    assert answer.usage.context_tokens == 182


def test_halves_of_a_character_are_joined_and_those_alone_replaced() -> None:
    def halves(text: str) -> bytes:
        return sse(delta(0, "text_delta", text=text))

    answer, deltas = asyncio.run(
        streamed(
            message_start(),
            begin(0, type="text", text=""),
            halves("a\ud83e"),
            halves("\uddf5b\udc00c"),
            end(0),
            *message_end(),
        )
    )
    assert answer.content[0]["text"] == "a🧵b\ufffdc"
    assert deltas == [TextDelta(0, "a"), TextDelta(0, "🧵b\ufffdc")]


def test_the_answer_names_its_model_and_the_request_for_the_provider() -> None:
    async def story() -> list[ModelResponse]:
        events = [message_start(), *text_block("x"), *message_end()]
        whole: Json = {"content": [], "stop_reason": "end_turn", "usage": {}, "model": "m-2"}
        replies: list[Reply] = [
            stream(*events, headers="request-id: req_1\r\n"),
            stream(*events),
            http(200, whole, {"request-id": "req_2"}),
        ]
        async with serve(*replies) as wire:
            model = AnthropicModel("m", base_url=wire.url, api_key="k")
            answers = [await model.respond(ask(), on_delta=each) for each in (Deltas(), Deltas())]
            answers.append(await model.respond(ask()))
            await model.close()
        return answers

    found = [(answer.id, answer.model) for answer in asyncio.run(story())]
    assert found == [("req_1", "m-1"), ("msg_1", "m-1"), ("req_2", "m-2")]
