"""A stream says the same as a whole answer, in the events of the API.

Method: two fakes with one script and one signing key; one is asked for a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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

LONG = "Streams are cut into small pieces; ünïcode and 🧵 survive it. " * 3
SEARCH: dict[str, Any] = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "a long enough query"},
}

CONTENTS: dict[str, list[Block]] = {
    "text": [text(LONG)],
    "one empty text": [text("")],
    "nothing": [],
    "a call": [tool_use("look", {"path": "a/b", "deep": {"list": [1, 2.5, None, "ü🧵"]}})],
    "a call without arguments": [tool_use("look", {})],
    "two calls": [text("Both."), tool_use("a", {"x": 1}), tool_use("b", {}, id="mine")],
    "thinking": [thinking(LONG), text("So."), tool_use("a", {"x": 1})],
    "omitted thinking": [thinking(""), text("So.")],
    "redacted thinking": [redacted_thinking("s"), thinking("b"), text("So.")],
    "a tool of the server": [block(SEARCH), text("So.")],
}


@pytest.mark.parametrize("blocks", CONTENTS.values(), ids=CONTENTS)
def test_a_streamed_message_equals_the_whole_one(
    sdk: Callable[..., Any], ask: dict[str, Any], blocks: list[Block]
) -> None:
    with FakeAnthropic([turn(*blocks)], signing_key=b"k") as fake:
        whole = sdk(fake).messages.create(**ask)
    with (
        FakeAnthropic([turn(*blocks)], signing_key=b"k") as fake,
        sdk(fake).messages.stream(**ask) as stream,
    ):
        assert stream.get_final_message().model_dump() == whole.model_dump()


@pytest.mark.parametrize(
    ("stop_reason", "more"),
    [
        ("max_tokens", {}),
        ("stop_sequence", {"stop_sequence": "END"}),
        ("refusal", {"stop_details": {"type": "refusal", "category": "cyber", "explanation": "x"}}),
        ("pause_turn", {}),
        ("model_context_window_exceeded", {}),
        ("something_new", {}),
    ],
)
def test_stop_reasons_arrive_both_ways(
    sdk: Callable[..., Any], ask: dict[str, Any], stop_reason: str, more: dict[str, Any]
) -> None:
    script = [turn(text("a"), stop_reason=stop_reason, **more)] * 2
    with FakeAnthropic(script) as fake:
        whole = sdk(fake).messages.create(**ask)
        with sdk(fake).messages.stream(**ask) as stream:
            final = stream.get_final_message()
    assert whole.stop_reason == final.stop_reason == stop_reason
    assert whole.stop_sequence == final.stop_sequence == more.get("stop_sequence")
    assert whole.stop_details == final.stop_details
    assert (whole.stop_details is None) == ("stop_details" not in more)


def test_the_stop_reason_follows_from_the_blocks() -> None:
    assert turn(text("a"), tool_use("b", {})).stop_reason == "tool_use"
    assert turn(text("a")).stop_reason == "end_turn"
    assert turn(tool_use("b", {}), stop_reason="max_tokens").stop_reason == "max_tokens"


def test_events_come_in_the_order_of_the_api(sdk: Callable[..., Any], ask: dict[str, Any]) -> None:
    blocks = (thinking("a"), text("b"), tool_use("c", {"d": 1}))
    with FakeAnthropic([turn(*blocks)]) as fake:
        events = list(sdk(fake).messages.create(**ask, stream=True))
    kinds = [event.type for event in events]
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        *("content_block_start", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_delta"),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    deltas = [event.delta.type for event in events if event.type == "content_block_delta"]
    assert deltas == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
        "input_json_delta",
        "input_json_delta",
    ]


def test_a_stream_knows_its_output_only_at_the_end(
    sdk: Callable[..., Any], ask: dict[str, Any]
) -> None:
    with FakeAnthropic([turn(text(LONG))]) as fake:
        events = list(sdk(fake).messages.create(**ask, stream=True))
    assert events[0].message.usage.output_tokens == 1
    assert events[0].message.usage.input_tokens == events[-2].usage.input_tokens > 0
    assert events[-2].usage.output_tokens > 40


def test_scripted_usage_replaces_the_computed_one(
    sdk: Callable[..., Any], ask: dict[str, Any]
) -> None:
    with FakeAnthropic([turn(text("a"), usage={"output_tokens": 9000})]) as fake:
        usage = sdk(fake).messages.create(**ask).usage
    assert usage.output_tokens == 9000 and 0 < usage.input_tokens < 20


def test_ids_are_never_given_twice(sdk: Callable[..., Any], ask: dict[str, Any]) -> None:
    script = [turn(tool_use("a", {}), tool_use("a", {})) for _ in range(3)]
    with FakeAnthropic(script) as fake:
        messages = [sdk(fake).messages.create(**ask) for _ in range(3)]
    assert len({message.id for message in messages}) == 3
    assert len({b.id for message in messages for b in message.content}) == 6
