"""The scripted model refuses what the real API refuses, and answers from what it is sent.

Method: whole requests, through the pure functions or the real SDK.
"""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import claude
import pytest
from scripted_model import SCRIPT, Refused, answer, check

CALL = {"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "a"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "x"}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _request(*messages: list[dict[str, Any]]) -> dict[str, Any]:
    roles = ["user", "assistant"] * len(messages)
    turns = [{"role": r, "content": c} for r, c in zip(roles, messages, strict=False)]
    return {"max_tokens": 10, "messages": turns}


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"max_tokens": 0, "messages": []}, "max_tokens"),
        ({"max_tokens": 10, "messages": []}, "first message"),
        (_request([_text("a")], [_text("b")]), "must be from the user"),
        (_request([_text("a")], [CALL]), "answer every tool_use"),
        (_request([_text("a")], [CALL], [_text("b")]), "do not match"),
        (_request([_text("a")], [CALL], [RESULT, RESULT]), "do not match"),
        (_request([_text("a")], [_text("b")], [RESULT]), "do not match"),
        (_request([_text("a")], [CALL], [RESULT], [CALL], [RESULT]), "unique"),
        (_request([_text("")]), "non-empty"),
        (_request([CALL]), "only be in assistant"),
    ],
)
def test_a_request_that_the_api_refuses_is_refused(request_: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        check(request_)


def test_the_answer_follows_from_the_conversation_alone() -> None:
    edit = SCRIPT[0]
    question = [_text(f"The first that fails is tests/test_agenda.py::{edit.test}:")]
    read, stop_reason = answer(_request(question))
    assert stop_reason == "tool_use" and read[-1]["input"] == {"path": edit.path}
    result = {**RESULT, "tool_use_id": read[-1]["id"]}
    replace, _ = answer(_request(question, read, [result]))
    assert replace[-1]["input"] == {"path": edit.path, "old": edit.old, "new": edit.new}
    assert answer(_request(question, read, [result])) == (replace, "tool_use")


def test_a_test_that_is_not_in_the_script_gets_no_edit() -> None:
    assert answer(_request([_text("The first that fails is tests/x.py::y:")]))[1] == "end_turn"


@pytest.mark.usefixtures("scripted")
def test_the_sdk_sees_the_errors_of_the_api(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        async with claude.client() as model:
            await model.messages.create(
                model="m", max_tokens=9, messages=[{"role": "assistant", "content": []}]
            )

    with pytest.raises(anthropic.BadRequestError, match="first message must use the 'user' role"):
        asyncio.run(ask())
    monkeypatch.setenv("ANTHROPIC_API_KEY", "wrong")
    with pytest.raises(anthropic.AuthenticationError):
        asyncio.run(ask())
