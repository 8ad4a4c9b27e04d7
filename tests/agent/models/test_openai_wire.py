"""Conversations cross between the Messages API and chat completions without losing anything.

Method: the body that a raw server receives, and the answers it sends, whole and in chunks.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.agent.models.wire import Deltas, Json, Reply, ask, fault, http, said, serve, sse, stream

from treadle.worker.agent.core.conversation import ModelRequest, ModelResponse, Usage
from treadle.worker.agent.models.openai import OpenAICompatibleModel
from treadle.worker.agent.models.port import TextDelta, ThinkingDelta, ToolDelta

OK: Json = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}
DONE = b"data: [DONE]\n\n"
PIXEL = {"type": "base64", "media_type": "image/png", "data": "aGk="}


def sent(request: ModelRequest, is_streamed: bool = False, **options: Any) -> Json:
    """Return the body that such a request becomes."""

    async def story() -> Json:
        reply = stream(chunk({"content": "x"}, "stop"), DONE) if is_streamed else http(200, OK)
        async with serve(reply) as wire:
            model = OpenAICompatibleModel("m", f"{wire.url}/v1/", "k", **options)
            await model.respond(request, on_delta=Deltas() if is_streamed else None)
            await model.close()
            assert wire.requests[0].path == "/v1/chat/completions"
            assert wire.requests[0].headers["authorization"] == "Bearer k"
            return wire.requests[0].body

    return asyncio.run(story())


def chunk(delta: Json, finish_reason: str | None = None, **fields: Any) -> Json:
    """Return a chunk of a stream."""
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}], **fields}


def call(
    arguments: str, *, index: int | None = 0, id: str | None = None, name: str | None = None
) -> Json:
    """Return a delta with a fragment of a tool call."""
    fragment: Json = {"function": {"arguments": arguments}}
    if index is not None:
        fragment["index"] = index
    if id is not None:
        fragment["id"] = id
    if name is not None:
        fragment["function"]["name"] = name
    return {"tool_calls": [fragment]}


def answered(
    reply: Reply, request: ModelRequest | None = None, *, deltas: Deltas | None = None
) -> ModelResponse:
    """Return the answer that the model makes of the reply."""

    async def story() -> ModelResponse:
        async with serve(reply) as wire:
            model = OpenAICompatibleModel("m", wire.url)
            answer = await model.respond(request or ask(), on_delta=deltas)
            await model.close()
            assert "authorization" not in wire.requests[0].headers
        return answer

    return asyncio.run(story())


def streamed(*events: object, request: ModelRequest | None = None) -> tuple[ModelResponse, Deltas]:
    """Return the answer of a stream, and its deltas."""
    deltas = Deltas()
    return answered(stream(*events), request, deltas=deltas), deltas


# ------------------------------------------------------------------ requests


def test_a_conversation_with_tools_becomes_messages_of_four_roles() -> None:
    uses = [
        {"type": "tool_use", "id": "a", "name": "look", "input": {"x": "ü"}},
        {"type": "tool_use", "id": "b", "name": "look", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": "found"},
        {
            "type": "tool_result",
            "tool_use_id": "b",
            "content": [{"type": "text", "text": "boom"}],
            "is_error": True,
        },
    ]
    body = sent(
        ask(
            system=[
                {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                {"type": "text", "text": "Be kind."},
            ],
            messages=[
                said("user", "hi", "there"),
                said("assistant", "Let me look.", *uses),
                said("user", *results, "hurry"),
                said("assistant", uses[0] | {"id": "c"}),
                said("user", results[0] | {"tool_use_id": "c"}),
            ],
        )
    )
    calls = [
        {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"x": "ü"}'}},
        {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "hi\n\nthere"},
        {"role": "assistant", "content": "Let me look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
        {"role": "tool", "tool_call_id": "b", "content": "[tool error] boom"},
        {"role": "user", "content": "hurry"},
        {"role": "assistant", "content": None, "tool_calls": [calls[0] | {"id": "c"}]},
        {"role": "tool", "tool_call_id": "c", "content": "found"},
    ]


def test_tools_and_parameters_are_named_as_the_protocol_names_them() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = [{"name": "look", "description": "Looks.", "input_schema": schema}]
    request = ask(
        model="other", tools=tools, temperature=0.1, stop_sequences=["END"], thinking="low"
    )
    body = sent(request, is_streamed=True)
    function = {"name": "look", "description": "Looks.", "parameters": schema}
    assert body["tools"] == [{"type": "function", "function": function}]
    expected = {
        "model": "other",
        "max_tokens": 4096,
        "temperature": 0.1,
        "stop": ["END"],
        "reasoning_effort": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
        "tool_choice": "auto",
    }
    assert expected.items() <= body.items()


def test_the_bound_on_the_answer_has_the_name_that_the_server_wants() -> None:
    body = sent(ask(), max_tokens_field="max_completion_tokens")
    assert body["max_completion_tokens"] == 4096
    assert "max_tokens" not in body


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "t"}, {"type": "function", "function": {"name": "t"}}),
    ],
)
def test_every_choice_of_tools_has_its_counterpart(choice: Json, expected: object) -> None:
    tools = [{"name": "t", "input_schema": {"type": "object"}}]
    body = sent(ask(tools=tools, tool_choice=choice | {"disable_parallel_tool_use": True}))
    assert body["tool_choice"] == expected
    assert body["parallel_tool_calls"] is False


def test_images_are_sent_also_those_in_the_result_of_a_tool() -> None:
    use = {"type": "tool_use", "id": "a", "name": "see", "input": {}}
    image = {"type": "image", "source": PIXEL}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [image]}
    body = sent(
        ask(
            messages=[
                said("user", {"type": "image", "source": {"type": "url", "url": "http://x/y"}}),
                said("assistant", use),
                said("user", result),
            ]
        )
    )
    first, _, tool, last = body["messages"]
    assert first["content"] == [{"type": "image_url", "image_url": {"url": "http://x/y"}}]
    assert "1 image(s)" in tool["content"]
    assert last["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    ]


def test_unsigned_thinking_is_sent_back_and_that_of_another_provider_is_not() -> None:
    thinking = {"type": "thinking", "thinking": "Hm."}
    signed = {"type": "thinking", "thinking": "Secret.", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "d"}
    body = sent(
        ask(
            messages=[
                said("user", "hi"),
                said("assistant", thinking, signed, redacted, "Yes."),
                said("user", "and?"),
                said("assistant", signed),
                said("user", "so?"),
            ]
        )
    )
    assert body["messages"][1] == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "Hm.",
    }
    assert body["messages"][3] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    "request_",
    [
        ask(messages=[said("user", {"type": "document", "source": PIXEL})]),
        ask(messages=[said("assistant", {"type": "server_tool_use", "id": "s"})]),
        ask(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
        ask(messages=[said("user", "half \ud800")]),
        ask(temperature=float("nan")),
    ],
)
def test_what_cannot_be_said_in_this_protocol_is_refused_before_anything_is_sent(
    request_: ModelRequest,
) -> None:
    async def story() -> None:
        async with serve() as wire:
            model = OpenAICompatibleModel("m", wire.url)
            assert (await fault(model, request_)).kind == "invalid_request"
            await model.close()
            assert wire.requests == []

    asyncio.run(story())


# ------------------------------------------------------------------ answers


def whole(message: Json, finish_reason: str | None = "stop", **fields: Any) -> Reply:
    """Return an answer that is not streamed."""
    return http(200, {"choices": [{"message": message, "finish_reason": finish_reason}], **fields})


def test_a_whole_answer_is_converted() -> None:
    calls = [{"id": "a", "function": {"name": "look", "arguments": '{"x": 1}'}}]
    message = {"reasoning_content": "Hm.", "content": "Looking.", "tool_calls": calls}
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 60},
    }
    reply = whole(message, "tool_calls", usage=usage, model="m-1", id="c-1")
    assert answered(reply) == ModelResponse(
        content=[
            {"type": "thinking", "thinking": "Hm."},
            {"type": "text", "text": "Looking."},
            {"type": "tool_use", "id": "a", "name": "look", "input": {"x": 1}},
        ],
        stop_reason="tool_use",
        usage=Usage(input_tokens=40, cache_read_tokens=60, output_tokens=7),
        model="m-1",
        id="c-1",
    )


def test_a_stream_is_put_together_to_the_same_answer_as_the_whole_one() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 7}
    answer, deltas = streamed(
        chunk({"role": "assistant", "content": ""}, id="c-1", model="m-1"),
        chunk({"reasoning_content": "Hm."}),
        chunk({"content": "Loo"}),
        chunk({"content": "king."}),
        chunk(call("", id="a", name="look")),
        chunk(call('{"x"')),
        chunk(call("", index=1, id="b", name="find")),
        chunk(call(": 1}")),
        chunk(call("{}", index=1)),
        chunk({}, "tool_calls"),
        {"choices": [], "usage": usage},
        DONE,
    )
    calls = [
        {"id": "a", "function": {"name": "look", "arguments": '{"x": 1}'}},
        {"id": "b", "function": {"name": "find", "arguments": "{}"}},
    ]
    message = {"reasoning_content": "Hm.", "content": "Looking.", "tool_calls": calls}
    assert answer == answered(whole(message, "tool_calls", usage=usage, model="m-1", id="c-1"))
    assert deltas == [
        ThinkingDelta(0, "Hm."),
        TextDelta(1, "Loo"),
        TextDelta(1, "king."),
        ToolDelta(2, id="a", name="look"),
        ToolDelta(2, partial_json='{"x"'),
        ToolDelta(3, id="b", name="find"),
        ToolDelta(2, partial_json=": 1}"),
        ToolDelta(3, partial_json="{}"),
    ]


@pytest.mark.parametrize("index", [0, None])
def test_calls_of_servers_that_do_not_number_them_are_told_apart_by_their_ids(
    index: int | None,
) -> None:
    answer, _ = streamed(
        chunk(call('{"x":', index=index, id="a", name="look")),
        chunk(call(" 1}", index=index)),
        chunk(call('{"x": 2}', index=index, id="b", name="look")),
        chunk({}, "tool_calls"),
        DONE,
    )
    assert [(b["id"], b["input"]) for b in answer.content] == [("a", {"x": 1}), ("b", {"x": 2})]


@pytest.mark.parametrize(
    ("finish_reason", "expected"),
    [
        ("stop", "end_turn"),
        ("length", "max_tokens"),
        ("content_filter", "refusal"),
        ("tool_calls", "end_turn"),
        ("reason_of_tomorrow", "reason_of_tomorrow"),
    ],
)
def test_every_finish_reason_has_its_counterpart(finish_reason: str, expected: str) -> None:
    assert answered(whole({"content": "x"}, finish_reason)).stop_reason == expected
    answer, _ = streamed(chunk({"content": "x"}), chunk({}, finish_reason), DONE)
    assert answer.stop_reason == expected


def test_a_call_with_a_plain_stop_is_a_call_all_the_same() -> None:
    answer, _ = streamed(chunk(call("{}", id="a", name="look")), chunk({}, "stop"), DONE)
    assert answer.stop_reason == "tool_use"


def test_a_refusal_is_one_whatever_the_finish_reason_says() -> None:
    answer = answered(whole({"content": None, "refusal": "I will not."}))
    assert answer.stop_reason == "refusal"
    assert answer.content == [{"type": "text", "text": "I will not."}]


@pytest.mark.parametrize("raw", ['{"to": "bob", "amount": 10', "[1]", "{} {}"])
def test_arguments_that_are_no_json_object_are_malformed(raw: str) -> None:
    async def story() -> None:
        reply = stream(chunk(call(raw, id="a", name="send")), chunk({}, "tool_calls"), DONE)
        async with serve(reply) as wire:
            model = OpenAICompatibleModel("m", wire.url)
            assert (await fault(model, ask(), on_delta=Deltas())).kind == "malformed"
            await model.close()

    asyncio.run(story())


def test_arguments_cut_off_with_their_answer_are_empty_and_the_reason_is_told() -> None:
    answer, _ = streamed(
        chunk(call('{"to": "bob", "amount": 10', id="a", name="send")), chunk({}, "length"), DONE
    )
    assert answer.stop_reason == "max_tokens"
    assert answer.content == [{"type": "tool_use", "id": "a", "name": "send", "input": {}}]


def test_ids_that_the_server_repeats_are_made_unique_in_the_conversation() -> None:
    def use(id: str) -> Json:
        return {"type": "tool_use", "id": id, "name": "look", "input": {}}

    history = [said("user", "hi"), said("assistant", use("call_0"), use("call_0_2"))]
    answer, deltas = streamed(
        chunk(call('{"x": 1}', index=0, id="call_0", name="look")),
        chunk(call('{"x": 2}', index=1, id="call_0", name="look")),
        chunk(call('{"x": 3}', index=2, id="", name="look")),
        chunk(call('{"x": 4}', index=3, id="odd id!", name="look")),
        chunk({}, "tool_calls"),
        DONE,
        request=ask(messages=history),
    )
    ids = [block["id"] for block in answer.content]
    assert ids == ["call_0_1", "call_0_3", "call_1", "odd_id_"]
    assert [b["input"]["x"] for b in answer.content] == [1, 2, 3, 4]
    assert [d.id for d in deltas if isinstance(d, ToolDelta) and d.id] == ids


def test_the_same_call_sent_twice_is_one_call() -> None:
    same = call('{"x": 1}', id="a", name="look")["tool_calls"][0]
    other = {"id": "a", "function": {"name": "look", "arguments": '{"x": 2}'}}
    answer = answered(whole({"tool_calls": [same, same | {"index": 1}, other]}, "tool_calls"))
    assert [b["input"] for b in answer.content] == [{"x": 1}, {"x": 2}]
    assert len({b["id"] for b in answer.content}) == 2


def test_usage_that_the_server_does_not_count_is_estimated_and_says_so() -> None:
    answer, _ = streamed(chunk({"content": "x" * 35}), chunk({}, "stop"), DONE)
    assert answer.usage.is_estimated
    assert answer.usage.output_tokens == 10
    assert answer.usage.input_tokens > 0


def test_a_stream_without_its_end_marker_is_whole_once_a_reason_was_given() -> None:
    answer, _ = streamed(chunk({"content": "x"}), chunk({}, "stop"))
    assert answer.content == [{"type": "text", "text": "x"}]


def test_halves_of_characters_are_joined() -> None:
    answer, deltas = streamed(
        sse(chunk({"content": "a\ud83e"})), sse(chunk({"content": "\uddf5"}, "stop")), DONE
    )
    assert answer.content[0]["text"] == "a🧵"
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == "a🧵"


def test_arguments_that_the_server_has_parsed_already_are_taken() -> None:
    calls = [{"id": "a", "function": {"name": "look", "arguments": {"x": [1, "ü"]}}}]
    answer = answered(whole({"content": None, "tool_calls": calls}, "tool_calls"))
    assert answer.content[0]["input"] == {"x": [1, "ü"]}
    assert json.dumps(answer.content)


def test_other_choices_late_names_and_lists_of_text_are_read() -> None:
    answer, deltas = streamed(
        {"choices": [{"index": 1, "delta": {"content": "another answer"}}]},
        chunk({"content": [{"type": "text", "text": "x"}]}),
        chunk(call("", id="a")),
        chunk(call("{}", name="look")),
        chunk({}, "tool_calls"),
        DONE,
    )
    assert answer.content == [
        {"type": "text", "text": "x"},
        {"type": "tool_use", "id": "a", "name": "look", "input": {}},
    ]
    assert ToolDelta(1, id="a", name="look") in deltas


def test_a_fragment_that_names_its_call_by_id_goes_on_with_it() -> None:
    answer, _ = streamed(
        chunk(call('{"x":', index=None, id="a", name="look")),
        chunk(call("{}", index=None, id="b", name="look")),
        chunk(call(" 1}", index=None, id="a")),
        chunk({}, "tool_calls"),
        DONE,
    )
    assert [(b["id"], b["input"]) for b in answer.content] == [("a", {"x": 1}), ("b", {})]


def test_an_answer_is_given_although_the_server_keeps_its_stream_open() -> None:
    events = [chunk({"content": "x"}), chunk({}, "stop"), DONE]
    assert answered(stream(*events, hold=True), deltas=Deltas()).content[0]["text"] == "x"
