"""Tokens are counted alike everywhere, and a prefix is read from the cache only if it is equal.

Method: the cache as a value, one request after the other; then the numbers through the SDK.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from treadle.worker.agent.testing import FakeAnthropic, text, tool_use, turn
from treadle.worker.agent.testing.usage import (
    LOOKBACK_BLOCKS,
    MEDIA_TOKENS,
    InputUsage,
    PromptCache,
    count_tokens,
    estimate,
)

Body = dict[str, Any]
MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL = {"name": "look", "input_schema": {"type": "object"}}


def _text(said: str, **more: Any) -> Body:
    return {"type": "text", "text": said, **more}


def _body(*said: Body, **more: Any) -> Body:
    messages = [{"role": "user", "content": [block]} for block in said]
    return {"model": "m", "max_tokens": 9, "messages": messages, **more}


def _cost(*blocks: Body) -> int:
    return sum(count_tokens(_body(block)) for block in blocks)


A, B, C = (_text(letter * 40) for letter in "abc")


def test_a_token_is_four_bytes_rounded_up() -> None:
    assert [estimate("x" * n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert estimate("🧵") == 1 and estimate("🧵x") == 2
    assert _cost(A) == estimate('{"type":"text","text":"' + "a" * 40 + '"}')


def test_markers_strings_and_images_have_their_own_measure() -> None:
    assert _cost({**A, **MARK}) == _cost(A)
    plain = {"model": "m", "messages": [{"role": "user", "content": "a" * 40}]}
    assert count_tokens(plain) == _cost(A)
    source = {"type": "base64", "media_type": "image/png", "data": "A" * 100_000}
    assert _cost({"type": "image", "source": source}) == MEDIA_TOKENS


def test_without_a_marker_nothing_is_cached() -> None:
    cache = PromptCache()
    for _ in range(2):
        assert cache.account(_body(A, B)) == InputUsage(_cost(A, B))


def test_a_marked_prefix_is_written_once_and_then_read() -> None:
    cache = PromptCache()
    body = _body({**A, **MARK}, B)
    assert cache.account(body) == InputUsage(_cost(B), 0, {"5m": _cost(A)})
    assert cache.account(body) == InputUsage(_cost(B), _cost(A))
    cache.clear()
    assert cache.account(body).read == 0


def test_a_moving_marker_reads_what_the_last_one_wrote() -> None:
    cache = PromptCache()
    cache.account(_body({**A, **MARK}))
    used = cache.account(_body(A, {**B, **MARK}, C))
    assert used == InputUsage(_cost(C), _cost(A), {"5m": _cost(B)})
    assert used.total == _cost(A, B, C)


def test_the_order_of_the_prompt_is_tools_system_messages() -> None:
    cache = PromptCache()
    system = [_text("s", **MARK)]
    first = cache.account(_body(A, tools=[TOOL], system=system))
    assert first.uncached == _cost(A) and sum(first.written.values()) > estimate("s")
    assert cache.account(_body(B, tools=[TOOL], system=system)).read == first.written["5m"]
    other = [{**TOOL, "description": "d"}]
    assert cache.account(_body(A, tools=other, system=system)).read == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.update(model="other"),
        lambda body: body["messages"][0]["content"][0].update(text="a" * 39 + "b"),
        lambda body: body["messages"][0].update(role="assistant"),
        lambda body: body["messages"].pop(0),
        lambda body: body.update(tool_choice={"type": "none"}),
        lambda body: body.update(thinking={"type": "adaptive"}),
        lambda body: body["messages"][0]["content"].insert(
            0, dict(reversed(body["messages"][0]["content"].pop(0).items()))
        ),
    ],
)
def test_a_prefix_that_differs_is_not_read(change: Callable[[Body], None]) -> None:
    cache = PromptCache()
    body = _body(A, {**B, **MARK})
    cache.account(body)
    changed = copy.deepcopy(body)
    change(changed)
    assert cache.account(changed).read == 0
    assert cache.account(body).read == _cost(A, B)


def test_a_choice_of_tools_leaves_the_cache_of_tools_and_system_alone() -> None:
    cache = PromptCache()
    body = _body({**A, **MARK}, tools=[{**TOOL, **MARK}])
    cache.account(body)
    used = cache.account({**body, "tool_choice": {"type": "none"}})
    assert used.read > 0 and used.written == {"5m": _cost(A)}


def test_a_marker_looks_back_only_so_far() -> None:
    cache = PromptCache()
    cache.account(_body({**A, **MARK}))
    between = [_text(f"b{i}") for i in range(LOOKBACK_BLOCKS - 2)]
    assert cache.account(_body(A, *between, {**C, **MARK})).read == _cost(A)
    cache.clear()
    cache.account(_body({**A, **MARK}))
    assert cache.account(_body(A, *between, B, {**C, **MARK})).read == 0


def test_a_prefix_that_is_too_short_is_not_cached() -> None:
    cache = PromptCache(tokens_min=_cost(A, B))
    body = _body({**A, **MARK}, {**B, **MARK})
    assert cache.account(body) == InputUsage(0, 0, {"5m": _cost(A, B)})
    assert cache.account(_body({**A, **MARK})).read == 0


def test_times_to_live_are_told_apart() -> None:
    cache = PromptCache()
    used = cache.account(_body({**A, **HOUR}, {**B, **MARK}))
    assert used.written == {"1h": _cost(A), "5m": _cost(B)}
    assert used.as_json()["cache_creation"] == {
        "ephemeral_5m_input_tokens": _cost(B),
        "ephemeral_1h_input_tokens": _cost(A),
    }


def test_a_marker_for_the_whole_request_marks_its_last_block() -> None:
    cache = PromptCache()
    used = cache.account({**_body(A, B), **MARK})
    assert used == InputUsage(0, 0, {"5m": _cost(A, B)})


def test_a_marker_inside_a_result_marks_the_result() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{**A, **MARK}]}
    assert PromptCache().account(_body(result)).uncached == 0


def test_the_sdk_sees_the_cache_grow_over_an_agents_turns(
    sdk: Callable[..., Any], ask: dict[str, Any]
) -> None:
    ask["system"] = [_text("You look things up. " * 20, **MARK)]
    ask["tools"] = [TOOL]
    with FakeAnthropic([turn(tool_use("look", {})), turn(text("done"))]) as fake:
        first = sdk(fake).messages.create(**ask)
        result = {"type": "tool_result", "tool_use_id": first.content[0].id, "content": "x"}
        ask["messages"] += [
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": [{**result, **MARK}]},
        ]
        with sdk(fake).messages.stream(**ask) as stream:
            second = stream.get_final_message().usage
        counted = sdk(fake).messages.count_tokens(
            **{k: v for k, v in ask.items() if k != "max_tokens"}
        )
        assert first.usage.cache_creation_input_tokens == second.cache_read_input_tokens > 100
        assert second.cache_creation_input_tokens > 0 and second.input_tokens == 0
        sums = second.cache_read_input_tokens + second.cache_creation_input_tokens
        assert counted.input_tokens == sums
        assert (fake.count, len(fake.token_counts)) == (2, 1)


def test_counting_tokens_refuses_what_the_message_would_be_refused_for(
    sdk: Callable[..., Any],
) -> None:
    with FakeAnthropic(context_window=5) as fake:
        long = [{"role": "user", "content": "x" * 400}]
        assert sdk(fake).messages.count_tokens(model="m", messages=long).input_tokens > 100
        with pytest.raises(Exception, match="first message must use"):
            sdk(fake).messages.count_tokens(
                model="m", messages=[{"role": "assistant", "content": "a"}]
            )
        with pytest.raises(Exception, match="max_tokens: Extra inputs are not permitted"):
            sdk(fake).messages.count_tokens(model="m", messages=long, extra_body={"max_tokens": 1})
