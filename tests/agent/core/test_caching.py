"""What was sent before is not paid for again: the prefix stays, the markers move with the end.
Method: growing conversations, each request compared with the one before it."""

from __future__ import annotations

import copy
import itertools

from hypothesis import given
from hypothesis import strategies as st
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

from treadle.worker.agent.core import caching
from treadle.worker.agent.core.conversation import Message, ModelRequest
from treadle.worker.agent.core.rules import problems

TOOLS = [
    {"name": name, "description": "d", "input_schema": {"type": "object"}} for name in ("a", "b")
]
SYSTEM = [text("instructions"), text("digest")]


def marked(messages: list[Message]) -> ModelRequest:
    return caching.mark(request(messages, tools=TOOLS, system=SYSTEM))


@given(whole(max_turns=6))
def test_each_prefix_is_the_beginning_of_the_next_request(messages: list[Message]) -> None:
    ends = range(1, len(messages) + 1, 2)
    sent = [marked(messages[:end]) for end in ends]
    for earlier, later in itertools.pairwise(sent):
        assert caching.prefix(later).startswith(caching.prefix(earlier))
        assert len(caching.prefix(later)) > len(caching.prefix(earlier))


@given(whole(max_turns=6))
def test_the_marker_before_the_last_stands_where_the_last_one_stood(
    messages: list[Message],
) -> None:
    def tail(sent: ModelRequest) -> list[tuple[int, int]]:
        return [
            (i, j)
            for i, message in enumerate(sent.messages)
            for j, block in enumerate(message["content"])
            if "cache_control" in block
        ]

    if len(messages) > 2:
        assert tail(marked(messages))[-2] == tail(marked(messages[:-2]))[-1]


@given(whole(), st.booleans(), st.booleans())
def test_there_are_never_more_than_four_markers(
    messages: list[Message], with_tools: bool, with_system: bool
) -> None:
    plain = request(
        messages, tools=TOOLS if with_tools else [], system=SYSTEM if with_system else []
    )
    before = copy.deepcopy(plain)
    sent = caching.mark(plain)
    assert caching.count(sent) == with_tools + with_system + min(2, (len(messages) + 1) // 2)
    assert problems(sent) == []
    assert plain == before, "the state's own blocks are left alone"
    assert caching.mark(sent) == sent


def test_the_last_of_parallel_results_is_marked_and_no_other() -> None:
    said = [user("x"), assistant(use("a"), use("b")), user(result("a"), result("b"))]
    content = marked(said).messages[2]["content"]
    assert ["cache_control" in block for block in content] == [False, True]


def test_markers_that_were_there_give_way_wherever_they_stand() -> None:
    old = {**text("x"), "cache_control": {"type": "ephemeral"}}
    nested = result("a", [old, old, old])
    sent = marked([user(old, old, "y"), assistant(use("a")), user(nested, old, old)])
    assert caching.count(sent) == 4
    assert [block.get("cache_control") for block in sent.system] == [None, caching.MARKER]
    assert [tool.get("cache_control") for tool in sent.tools] == [None, caching.MARKER]


def test_a_prefix_does_not_depend_on_where_its_markers_stand() -> None:
    said = [user("x"), assistant(thinking(), "y"), user("z")]
    assert caching.prefix(marked(said)).startswith(caching.prefix(marked(said[:1])))
    assert b"cache_control" not in caching.prefix(marked(said))


def test_no_answer_is_touched() -> None:
    said = [user("x"), assistant(thinking(), use("a")), user(result("a"))]
    assert marked(said).messages[1] is said[1]
