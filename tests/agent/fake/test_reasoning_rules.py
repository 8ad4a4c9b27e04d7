"""Thinking comes back as it was issued, or it is refused.

Method: one turn thinks and calls a tool; the next request hands in its result with the answer
tampered with in one way.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import anthropic
import pytest

from treadle.worker.agent.testing import (
    Block,
    FakeAnthropic,
    redacted_thinking,
    text,
    thinking,
    tool_use,
    turn,
)

Content = list[dict[str, Any]]
MANUAL = {"type": "enabled", "budget_tokens": 1024}
ADAPTIVE = {"type": "adaptive"}
LOOK = tool_use("look", {})
THINKS = (thinking("First."), redacted_thinking("hidden"), thinking(""), text("I look."), LOOK)


def _request(answer: Content | None = None, *, config: Any = MANUAL) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
    if answer is not None:
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "x"}
            for block in answer
            if block["type"] == "tool_use"
        ]
        messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": results or "and?"})
    body = {"model": "m", "max_tokens": 2000, "messages": messages}
    return body | ({"thinking": config} if config else {})


def _first(send: Callable[..., Any], fake: FakeAnthropic) -> Content:
    return [block.to_dict() for block in send(fake, _request()).content]


def _fake(*blocks: Block) -> FakeAnthropic:
    return FakeAnthropic([turn(*blocks), turn(text("done"))])


def _edit_text(answer: Content) -> None:
    answer[0]["thinking"] = "Second."


def _invent_signature(answer: Content) -> None:
    answer[0]["signature"] = "bm90IG1pbmU="


def _drop_signature(answer: Content) -> None:
    del answer[0]["signature"]


def _edit_redacted(answer: Content) -> None:
    answer[1]["data"] = answer[1]["data"][:-1] + "x"


def _drop_one(answer: Content) -> None:
    del answer[1]


def _drop_all(answer: Content) -> None:
    del answer[:3]


def _swap(answer: Content) -> None:
    answer[0], answer[2] = answer[2], answer[0]


def _move_back(answer: Content) -> None:
    answer.insert(3, answer.pop(0))


def _move_behind_text(answer: Content) -> None:
    answer.insert(0, answer.pop(3))


MODIFIED = "blocks in the latest assistant message cannot be modified"
REFUSED: list[tuple[Callable[[Content], None], str]] = [
    (_edit_text, f"messages.1.content.0: .*{MODIFIED}"),
    (_invent_signature, "messages.1.content.0: Invalid `signature` in `thinking` block"),
    (_drop_signature, "messages.1.content.0.thinking.signature: Field required"),
    (_edit_redacted, "messages.1.content.1: Invalid `data` in `redacted_thinking` block"),
    (_drop_one, MODIFIED),
    (_swap, MODIFIED),
    (_move_back, MODIFIED),
    (_drop_all, "Expected `thinking` or `redacted_thinking`, but found `text`"),
    (_move_behind_text, "Expected `thinking` or `redacted_thinking`, but found `text`"),
]


@pytest.mark.parametrize(("tamper", "message"), REFUSED)
def test_reasoning_that_was_tampered_with_is_refused(
    send: Callable[..., Any], tamper: Callable[[Content], None], message: str
) -> None:
    with _fake(*THINKS) as fake:
        answer = _first(send, fake)
        tampered = copy.deepcopy(answer)
        tamper(tampered)
        with pytest.raises(anthropic.BadRequestError, match=message):
            send(fake, _request(tampered))
        assert send(fake, _request(answer)).content[0].text == "done"


def test_a_signature_of_another_fake_is_refused(send: Callable[..., Any]) -> None:
    with _fake(*THINKS) as other:
        foreign = _first(send, other)
    with (
        _fake(*THINKS) as fake,
        pytest.raises(anthropic.BadRequestError, match="Invalid `signature`"),
    ):
        send(fake, _request(foreign))


def test_fakes_with_one_key_take_each_others_thinking(send: Callable[..., Any]) -> None:
    key = b"shared"
    with FakeAnthropic([turn(*THINKS)], signing_key=key) as one:
        answer = _first(send, one)
    with FakeAnthropic([turn(text("done"))], signing_key=key) as other:
        assert send(other, _request(answer)).content[0].text == "done"


def test_manual_thinking_needs_thinking_before_calls_that_were_made_elsewhere(
    send: Callable[..., Any],
) -> None:
    answer = [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]
    with _fake(text("done")) as fake:
        with pytest.raises(anthropic.BadRequestError, match="but found `tool_use`"):
            send(fake, _request(answer))
        assert send(fake, _request(answer, config=ADAPTIVE)).content[0].text == "done"


def test_an_answer_that_was_issued_without_thinking_comes_back_without_it(
    send: Callable[..., Any],
) -> None:
    with _fake(LOOK) as fake:
        assert send(fake, _request(_first(send, fake))).content[0].text == "done"


def test_thinking_of_earlier_turns_may_be_left_out_but_not_forged(
    send: Callable[..., Any],
) -> None:
    with _fake(thinking("First."), text("a")) as fake:
        answer = _first(send, fake)
        body = _request(answer)
        body["messages"] += [
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
        answer[0]["thinking"] = "Second."
        with pytest.raises(anthropic.BadRequestError, match="Invalid `signature`"):
            send(fake, body)
        del answer[0]
        assert send(fake, body).content[0].text == "done"


def test_thinking_that_came_unsigned_goes_back_unsigned(send: Callable[..., Any]) -> None:
    with _fake(thinking("First.", signed=False), LOOK) as fake:
        answer = _first(send, fake)
        assert "signature" not in answer[0]
        assert send(fake, _request(answer)).content[0].text == "done"


def test_a_paused_answer_and_its_continuation_come_back_as_two_messages(
    send: Callable[..., Any],
) -> None:
    paused = turn(thinking("First."), text("a"), stop_reason="pause_turn")
    with FakeAnthropic([paused, turn(thinking("Second."), LOOK), turn(text("done"))]) as fake:
        body = _request()
        for _ in range(2):
            content = [block.to_dict() for block in send(fake, body).content]
            body["messages"].append({"role": "assistant", "content": content})
        result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "x"}
        body["messages"].append({"role": "user", "content": [result]})
        assert send(fake, body).content[0].text == "done"
