"""What the API refuses, the fake refuses, in the API's words; what it takes, the fake takes.

Method: the real SDK sends whole bodies as they are; each case breaks one rule and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from treadle.worker.agent.testing import FakeAnthropic, text, turn

Body = dict[str, Any]
USER = {"role": "user", "content": "hi"}
MARK = {"type": "ephemeral"}
TOOL = {"name": "look", "input_schema": {"type": "object"}}


def _call(call_id: str = "t1") -> Body:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {}}


def _result(call_id: str = "t1", **more: Any) -> Body:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "x", **more}


def _said(*blocks: Body | str) -> Body:
    return {"role": "user", "content": [_block(block) for block in blocks]}


def _answered(*blocks: Body | str) -> Body:
    return {"role": "assistant", "content": [_block(block) for block in blocks]}


def _block(block: Body | str) -> Body:
    return {"type": "text", "text": block} if isinstance(block, str) else block


def _body(*messages: Body, **more: Any) -> Body:
    return {"model": "m", "max_tokens": 100, "messages": list(messages or [USER]), **more}


def _without(name: str) -> Body:
    return {key: value for key, value in _body().items() if key != name}


def _marked(count: int) -> Body:
    """Markers on a tool, on the system prompt, and on the results of one turn."""
    ids = [f"t{i}" for i in range(count - 2)]
    return _body(
        USER,
        _answered(*(_call(i) for i in ids)),
        _said(*(_result(i, cache_control=MARK) for i in ids)),
        tools=[{**TOOL, "cache_control": MARK}],
        system=[{"type": "text", "text": "s", "cache_control": MARK}],
    )


def _schema(**schema: Any) -> Body:
    return _body(tools=[{"name": "look", "input_schema": schema}])


LONG = {"type": "ephemeral", "ttl": "1h"}
MANUAL = {"type": "enabled", "budget_tokens": 1024}

REFUSED: dict[str, tuple[Body, str]] = {
    "no model": (_without("model"), "model: Field required"),
    "an empty model": (_body(model=""), "model: String should have at least 1 character"),
    "a model that is no text": (_body(model=1), "model: Input should be a valid string"),
    "no messages": (_without("messages"), "messages: Field required"),
    "an empty list of messages": ({**_body(), "messages": []}, "at least one message is required"),
    "messages that are no list": ({**_body(), "messages": "hi"}, "messages: Input should be a "),
    "no max_tokens": (_without("max_tokens"), "max_tokens: Field required"),
    "max_tokens of 0": (_body(max_tokens=0), "max_tokens: must be greater than or equal to 1"),
    "max_tokens that is no integer": (
        _body(max_tokens="9"),
        "max_tokens: Input should be a valid ",
    ),
    "an unknown field": (_body(colour="red"), "colour: Extra inputs are not permitted"),
    "a temperature out of range": (_body(temperature=1.5), "temperature: range: 0..1"),
    "stream that is no boolean": (_body(stream="yes"), "stream: Input should be a valid boolean"),
    "a blank stop sequence": (_body(stop_sequences=[" "]), "must contain non-whitespace"),
    "a system block of another kind": (_body(system=[_call()]), "system.0.type: Input should be"),
    "an empty system block": (_body(system=[_block("")]), "system: text content blocks must be"),
    "an assistant first": (_body(_answered("a")), 'first message must use the "user" role'),
    "the role system": (
        _body(USER, {"role": "system", "content": "s"}),
        'Unexpected role "system"',
    ),
    "an unknown role": (
        _body({"role": "tool", "content": "s"}),
        "messages.0.role: Input should be",
    ),
    "a message without content": (_body({"role": "user"}), "messages.0.content: Field required"),
    "an unknown field of a message": (
        _body({**USER, "name": "x"}),
        "messages.0.name: Extra inputs",
    ),
    "an unknown kind of block": (_body(_said({"type": "song"})), "Input tag 'song' found using"),
    "a field a block does not have": (
        _body(USER, _answered({**_call(), "text": "x"}), _said(_result())),
        "messages.1.content.0.tool_use.text: Extra inputs are not permitted",
    ),
    "a block without a field": (_body(_said({"type": "text"})), "content.0.text.text: Field req"),
    "input of a call that is no object": (
        _body(USER, _answered({**_call(), "input": "{}"}), _said(_result())),
        "tool_use.input: Input should be a valid dictionary",
    ),
    "empty text": (_body(_said("")), "messages: text content blocks must be non-empty"),
    "blank text": (_body(_said(" \n")), "text content blocks must contain non-whitespace text"),
    "empty text in a result": (
        _body(USER, _answered(_call()), _said(_result(content=[_block("")]))),
        "text content blocks must be non-empty",
    ),
    "empty content": (_body(_said(), _answered("a"), USER), "messages.0: all messages must have"),
    "empty content of an earlier answer": (_body(USER, _answered(), USER), "messages.1: all mess"),
    "a last answer that ends in a space": (_body(USER, _answered("a ")), "trailing whitespace"),
    "a failed result without content": (
        _body(USER, _answered(_call()), _said(_result(content="", is_error=True))),
        "messages.2.content.0.tool_result: content cannot be empty if `is_error` is true",
    ),
    "a call by the user": (_body(_said(_call())), "`tool_use` blocks can only be in `assistant`"),
    "a result by the assistant": (_body(USER, _answered(_result())), "can only be in `user`"),
    "a call without a result": (
        _body(USER, _answered(_call("t1"), _call("t2")), _said(_result("t1"), "go on")),
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t2",
    ),
    "a call at the end": (_body(USER, _answered(_call())), "immediately after: t1"),
    "a result after text": (
        _body(USER, _answered(_call()), _said("here", _result())),
        "immediately after: t1",
    ),
    "a result a message too late": (
        _body(USER, _answered(_call()), USER, _answered("a"), _said(_result())),
        "immediately after: t1",
    ),
    "a result without a call": (
        _body(USER, _answered("a"), _said(_result("t9"))),
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: t9",
    ),
    "a result at the beginning": (_body(_said(_result())), "messages.0.content.0: unexpected"),
    "two results of one call": (
        _body(USER, _answered(_call()), _said(_result(), _result())),
        "each tool_use must have a single result",
    ),
    "an id used twice in a turn": (
        _body(USER, _answered(_call(), _call()), _said(_result())),
        "messages.1.content.1: `tool_use` ids must be unique",
    ),
    "an id used again later": (
        _body(USER, _answered(_call()), _said(_result()), _answered(_call()), _said(_result())),
        "messages.3.content.0: `tool_use` ids must be unique",
    ),
    "an id of other characters": (
        _body(USER, _answered(_call("a:0")), _said(_result("a:0"))),
        r"tool_use.id: String should match pattern '\^\[a-zA-Z0-9_-\]\+\$'",
    ),
    "five markers": (
        _marked(5),
        "A maximum of 4 blocks with cache_control may be provided. Found 5",
    ),
    "four markers and one for all": (
        {**_marked(4), "cache_control": MARK},
        "Found 5",
    ),
    "a marker of another kind": (
        _body(_said({**_block("a"), "cache_control": {"type": "eternal"}})),
        "cache_control.type: Input should be 'ephemeral'",
    ),
    "a marker of another time": (
        _body(_said({**_block("a"), "cache_control": {**MARK, "ttl": "1d"}})),
        "cache_control.ttl: Input should be '5m' or '1h'",
    ),
    "a long-lived marker after a short-lived one": (
        _body(
            _said({**_block("a"), "cache_control": LONG}),
            tools=[{**TOOL, "cache_control": MARK}],
        ),
        "a ttl='1h' cache_control block must not come after a ttl='5m'",
    ),
    "a marker on thinking": (
        _body(USER, _answered({"type": "thinking", "thinking": "a", "cache_control": MARK})),
        "thinking.cache_control: Extra inputs are not permitted",
    ),
    "two tools of one name": (_body(tools=[TOOL, TOOL]), "tools: Tool names must be unique."),
    "a tool name with a dot": (
        _body(tools=[{**TOOL, "name": "a.b"}]),
        r"tools.0.custom.name: String should match pattern '\^\[a-zA-Z0-9_-\]\{1,64\}\$'",
    ),
    "a tool name of 65 characters": (_body(tools=[{**TOOL, "name": "a" * 65}]), "should match"),
    "a tool without a schema": (_body(tools=[{"name": "a"}]), "tools.0.custom.input_schema: Field"),
    "an unknown field of a tool": (
        _body(tools=[{**TOOL, "f": 1}]),
        "tools.0.custom.f: Extra inputs",
    ),
    "a schema without a type": (_schema(), "input_schema.type: Field required"),
    "a schema of another type": (_schema(type="array"), "input_schema.type: Input should be 'obj"),
    "a schema that is a choice": (_schema(type="object", oneOf=[]), "does not support oneOf"),
    "a choice of an unknown tool": (
        _body(tools=[TOOL], tool_choice={"type": "tool", "name": "find"}),
        "Tool 'find' not found in provided tools",
    ),
    "a choice without tools": (_body(tool_choice={"type": "auto"}), "only be specified while prov"),
    "a choice of an unknown kind": (
        _body(tools=[TOOL], tool_choice={"type": "maybe"}),
        "tool_choice: Input tag 'maybe' found",
    ),
    "any tool together with thinking": (
        _body(max_tokens=2000, thinking=MANUAL, tools=[TOOL], tool_choice={"type": "any"}),
        "Thinking may not be enabled when tool_choice forces tool use.",
    ),
    "one tool together with thinking": (
        _body(
            thinking={"type": "adaptive"},
            tools=[TOOL],
            tool_choice={"type": "tool", "name": "look"},
        ),
        "Thinking may not be enabled when tool_choice forces tool use.",
    ),
    "max_tokens within the budget": (
        _body(max_tokens=1024, thinking=MANUAL),
        "`max_tokens` must be greater than `thinking.budget_tokens`",
    ),
    "a budget that is too small": (
        _body(thinking={"type": "enabled", "budget_tokens": 9}),
        "budget_tokens: Input should be greater than or equal to 1024",
    ),
    "a budget that is missing": (_body(thinking={"type": "enabled"}), "budget_tokens: Field req"),
    "an unknown kind of thinking": (_body(thinking={"type": "deep"}), "Input tag 'deep' found"),
    "a temperature together with thinking": (
        _body(thinking={"type": "adaptive"}, temperature=0.5),
        "`temperature` may only be set to 1 when thinking is enabled",
    ),
    "a message that is no object": (
        {**_body(), "messages": ["hi"]},
        "messages.0: Input should be a valid dict",
    ),
    "content that is no list": (_body({"role": "user", "content": 1}), "messages.0.content: Input"),
    "a block that is no object": (
        _body({"role": "user", "content": ["hi"]}),
        "messages.0.content.0: Input should be a valid dictionary",
    ),
    "text that is no text": (
        _body(_said({"type": "text", "text": 1})),
        "text.text: Input should be a valid string",
    ),
    "a result that is no list": (
        _body(USER, _answered(_call()), _said(_result(content=1))),
        "tool_result.content: Input should be a valid list",
    ),
    "a result with a call in it": (
        _body(USER, _answered(_call()), _said(_result(content=[_call("t2")]))),
        "tool_result.content.0: Input tag 'tool_use' found",
    ),
    "thinking that is no object": (_body(thinking="on"), "thinking: Input should be a valid dict"),
    "a system prompt that is a number": (_body(system=1), "system: Input should be a valid list"),
    "a temperature that is a word": (_body(temperature="hot"), "temperature: Input should be a "),
    "a tool that is no object": (_body(tools=["look"]), "tools.0: Input should be a valid dict"),
    "a schema that is no object": (
        _body(tools=[{"name": "look", "input_schema": 1}]),
        "input_schema: Input should be a valid dictionary",
    ),
    "a choice of no tool in particular": (
        _body(tools=[TOOL], tool_choice={"type": "tool"}),
        "tool_choice.tool.name: Field required",
    ),
    "a prompt that is too long": (
        _body(_said("x" * 400)),
        r"prompt is too long: 1\d\d tokens > 90 maximum",
    ),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED)
def test_what_the_api_refuses_is_refused_and_uses_no_turn(
    send: Callable[..., Any], body: Body, message: str
) -> None:
    window = 90 if "too long" in message else 100_000
    with FakeAnthropic([turn(text("a"))], context_window=window) as fake:
        with pytest.raises(anthropic.BadRequestError, match=message) as caught:
            send(fake, body)
        assert caught.value.type == "invalid_request_error"
        assert fake.requests[0].status == 400 and fake.requests[0].error
        assert fake.remaining == 1


TAKEN: dict[str, Body] = {
    "text alone": _body(),
    "a string instead of blocks": _body({"role": "user", "content": "a"}, system="s"),
    "messages of one role in a row": _body(USER, USER, _answered("a"), _answered("b"), USER),
    "results in two messages": _body(
        USER, _answered(_call("t1"), _call("t2")), _said(_result("t1")), _said(_result("t2"))
    ),
    "text after the results": _body(USER, _answered("a", _call()), _said(_result(), "b")),
    "a result without content": _body(USER, _answered(_call()), _said(_result(content=""))),
    "a last answer to go on with": _body(USER, _answered("The answer is")),
    "an empty last answer": _body(USER, _answered()),
    "four markers": _marked(4),
    "a call of a tool that is not on offer": _body(USER, _answered(_call()), _said(_result())),
    "a forced tool without thinking": _body(tools=[TOOL], tool_choice={"type": "any"}),
    "no tool together with thinking": _body(
        thinking={"type": "adaptive"}, tools=[TOOL], tool_choice={"type": "none"}
    ),
    "an image": _body(
        _said(
            {"type": "image", "source": {"type": "base64", "media_type": "p", "data": "A" * 9999}}
        )
    ),
    "a tool of the server": _body(tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    "text beyond ASCII": _body(_said("naïve 🧵")),
}


@pytest.mark.parametrize("body", TAKEN.values(), ids=TAKEN)
def test_what_the_api_takes_is_taken(send: Callable[..., Any], body: Body) -> None:
    with FakeAnthropic([turn(text("a"))], context_window=2000) as fake:
        assert send(fake, body).content[0].text == "a"


def test_a_client_that_means_to_alternate_can_be_held_to_it(send: Callable[..., Any]) -> None:
    with (
        FakeAnthropic([turn(text("a"))], merge_roles=False) as fake,
        pytest.raises(anthropic.BadRequestError, match='found multiple "user" roles in a row'),
    ):
        send(fake, _body(USER, USER))


def test_models_without_prefill_take_a_paused_answer_back_but_no_other(
    send: Callable[..., Any],
) -> None:
    paused = turn(text("still at it"), stop_reason="pause_turn")
    with FakeAnthropic([paused, turn(text("done"))], prefill=False) as fake:
        with pytest.raises(anthropic.BadRequestError, match="does not support assistant message"):
            send(fake, _body(USER, _answered("I")))
        first = send(fake, _body())
        assert first.stop_reason == "pause_turn"
        back = _answered(*(block.to_dict() for block in first.content))
        assert send(fake, _body(USER, back)).content[0].text == "done"
