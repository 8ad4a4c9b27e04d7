"""What is sent is what the API takes; everything else is named before it costs a call.
Method: one example per rule, each a request that differs from a good one in one thing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from tests.agent.core.histories import (
    assistant,
    request,
    result,
    text,
    thinking,
    use,
    user,
    whole,
)

from treadle.worker.agent.core.conversation import Block, Message
from treadle.worker.agent.core.rules import InvalidRequest, problems, validate_request

TOOL = {"name": "search", "description": "d", "input_schema": {"type": "object"}}


@given(whole())
def test_a_conversation_the_runtime_makes_breaks_no_rule(messages: list[Message]) -> None:
    assert problems(request(messages, tools=[TOOL], thinking="low"), context_window=100_000) == []


def found_in(messages: list[Message], **fields: Any) -> str:
    return "; ".join(problems(request(messages, **fields)))


MARKED: Block = {**text("x"), "cache_control": {"type": "ephemeral"}}

BROKEN: dict[str, tuple[list[Message], str]] = {
    "no message": ([], "there is none"),
    "the assistant begins": ([assistant("x"), user("y")], "the first message is the user's"),
    "the assistant is last": ([user("x"), assistant("y")], "the last message is the user's"),
    "the user twice": ([user("x"), user("y")], "two messages of the user in a row"),
    "a call without result": ([user("x"), assistant(use("a"))], "the call 'a' has no result"),
    "a call answered by words": (
        [user("x"), assistant(use("a")), user("y")],
        "the call 'a' has no result",
    ),
    "one of two calls answered": (
        [user("x"), assistant(use("a"), use("b")), user(result("a"))],
        "the call 'b' has no result",
    ),
    "an answer too late": (
        [user("x"), assistant(use("a")), user("y"), assistant("z"), user(result("a"))],
        "answers no open call",
    ),
    "a result without call": ([user(result("a"))], "answers no open call"),
    "two results": (
        [user("x"), assistant(use("a")), user(result("a"), result("a"))],
        "answers no open call",
    ),
    "words before results": (
        [user("x"), assistant(use("a")), user("y", result("a"))],
        "results stand before everything else",
    ),
    "an id twice": (
        [user("x"), assistant(use("a")), user(result("a")), assistant(use("a")), user(result("a"))],
        "is not unique",
    ),
    "an id that is none": (
        [user("x"), assistant(use("a b")), user(result("a b"))],
        "is no id of a call",
    ),
    "empty text": ([user("")], "empty or blank"),
    "blank text": ([user(" \n")], "empty or blank"),
    "empty text in a result": (
        [user("x"), assistant(use("a")), user(result("a", [text("")]))],
        "empty or blank",
    ),
    "an error without content": (
        [user("x"), assistant(use("a")), user(result("a", "", error=True))],
        "an error without content",
    ),
    "empty content": ([user()], "the content is empty"),
    "content that is no list": ([{"role": "user", "content": "x"}], "no list of blocks"),
    "a role that is none": ([{"role": "system", "content": []}], "not user or assistant"),
    "a block without type": ([user({"text": "x"})], "an object with a type"),
    "a result of numbers": ([user({**result("a"), "content": [1]})], "a text or a list of blocks"),
    "a call without input": (
        [user("x"), assistant({"type": "tool_use", "id": "a", "name": "n"})],
        "needs input",
    ),
    "a call of the user": ([user(use("a"))], "cannot stand in a message of the user"),
    "a result of the assistant": (
        [user("x"), assistant(result("a")), user("y")],
        "cannot stand in a message of the assistant",
    ),
    "half a character": ([user("x\ud83d")], "lone surrogate"),
    "half a character in an input": ([user("x"), assistant(use("a", q="\ude00"))], "surrogate"),
    "half a character in a key": (
        [user("x"), assistant(use("a", **{"\ud83d": 1}))],
        "is no text of JSON",
    ),
    "not a number": ([user("x"), assistant(use("a", q=float("nan")))], "no number of JSON"),
    "no JSON": ([user("x"), assistant(use("a", q={1, 2}))], "a set is no JSON value"),
    "marked thinking": (
        [user("x"), assistant({**thinking(), "cache_control": {}}, "y"), user("z")],
        "takes no cache_control",
    ),
    "five markers": ([user(MARKED, MARKED, MARKED, MARKED, MARKED)], "5 markers"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_request_is_named_with_its_place(case: str) -> None:
    messages, expected = BROKEN[case]
    assert expected in found_in(messages)


def test_markers_are_counted_as_they_are_sent_also_inside_results() -> None:
    shared = result("a", [MARKED])
    assert "6 markers" in found_in(
        [user("x"), assistant(use("a")), user({**shared, "cache_control": {}}, *[MARKED] * 4)]
    )
    # A key of that name in arguments or a schema is data.
    schema = {"type": "object", "properties": {"cache_control": {}}}
    tools = [{**TOOL, "input_schema": schema}]
    calls = [user("x"), assistant(use("a", cache_control=1)), user(result("a"), *[MARKED] * 4)]
    assert found_in(calls, tools=tools) == ""


def test_a_paused_answer_may_stand_last() -> None:
    paused = [user("x"), assistant("searching")]
    assert problems(request(paused), continues=True) == []
    server = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    assert problems(request([user("x"), assistant(server)])) == []
    assert problems(request([user("x"), assistant(server), assistant("done"), user("y")])) == []


def test_calls_of_a_paused_answer_and_its_continuation_are_answered_together() -> None:
    said = [user("x"), assistant(use("a")), assistant(use("b")), user(result("a"), result("b"))]
    assert problems(request(said)) == []
    assert "the call 'a'" in found_in([*said[:3], user(result("b"))])


def test_tools_have_names_the_api_takes_each_once() -> None:
    said = [user("x")]
    assert "there are two tools 'search'" in found_in(said, tools=[TOOL, TOOL])
    for name in ("", "a.b", "x" * 65, None):
        assert "is no name of a tool" in found_in(said, tools=[{**TOOL, "name": name}])
    assert found_in(said, tools=[{**TOOL, "name": "x" * 64}]) == ""


def test_a_choice_of_tool_is_one_that_can_be_made() -> None:
    said = [user("x")]
    forced = {"type": "tool", "name": "search"}
    assert found_in(said, tools=[TOOL], tool_choice=forced) == ""
    assert "no tool 'find'" in found_in(
        said, tools=[TOOL], tool_choice={"type": "tool", "name": "find"}
    )
    assert "no tool to choose" in found_in(said, tool_choice={"type": "auto"})
    assert "not known" in found_in(said, tools=[TOOL], tool_choice={"type": "some"})


@pytest.mark.parametrize("kind", ["any", "tool"])
def test_a_forced_tool_is_never_combined_with_thinking(kind: str) -> None:
    choice = {"type": kind, "name": "search"}
    found = found_in([user("x")], tools=[TOOL], tool_choice=choice, thinking="low")
    assert "cannot be combined with thinking" in found
    for free in ("auto", "none"):
        choice = {"type": free}
        assert found_in([user("x")], tools=[TOOL], tool_choice=choice, thinking="low") == ""


def test_thinking_stands_first_where_it_is_on() -> None:
    wrong = [user("x"), assistant("y", thinking(), use("a")), user(result("a"))]
    assert "begins with the thinking" in found_in(wrong, thinking="low")
    assert found_in(wrong) == ""
    # An answer to results may come without thinking of its own.
    plain = [user("x"), assistant("y", use("a")), user(result("a"))]
    assert found_in(plain, thinking="low") == ""


def test_thinking_of_which_only_the_signature_is_left_is_taken() -> None:
    said = [user("x"), assistant(thinking(""), use("a")), user(result("a"))]
    assert found_in(said, thinking="low") == ""


def test_what_cannot_fit_the_window_is_not_sent_and_an_estimate_alone_refuses_nothing() -> None:
    long = request([user("word " * 10_000)])
    assert "do not fit" in "; ".join(problems(long, context_window=5_000))
    assert problems(long, context_window=12_000) == []
    assert "leave nothing" in "; ".join(problems(request([user("x")]), context_window=100))


def test_all_problems_are_raised_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        validate_request(request([assistant("x"), user("")]))
    assert len(caught.value.problems) == 2
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    validate_request(request([user("x")]))


def test_depth_is_bounded() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    assert "nested deeper" in found_in([user("x"), assistant(use("a", q=deep))])
