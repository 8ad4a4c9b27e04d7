"""Whole agents against a fake of the Messages API that somebody else wrote.

Method: run where ``TREADLE_TEST_AIMOCK`` names the ``dist/cli.js`` of the npm package
@copilotkit/aimock and ``node`` is there; one server per test, with the fixtures of that test.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle.worker.agent import Agent, AgentResult, Budget, tool
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.models.retrying import RetryPolicy

CLI = os.environ.get("TREADLE_TEST_AIMOCK", "")
pytestmark = pytest.mark.skipif(not CLI, reason="TREADLE_TEST_AIMOCK names no cli.js of aimock")

START_S = 60
PROMPT = RetryPolicy(first_delay_s=0.01, jitter=0)
Play = Callable[..., tuple[AgentResult[Any], list[dict[str, Any]]]]


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    """Run an agent against these fixtures; return its result and the requests that came."""
    started: list[subprocess.Popen[bytes]] = []

    def run(fixtures: list[dict[str, Any]], **given: Any) -> Any:
        (tmp_path / "fixtures.json").write_text(json.dumps({"fixtures": fixtures}))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = ["node", CLI, "-p", str(port), "-f", str(tmp_path), "--strict"]
        command += ["--log-level", "silent"]
        started.append(subprocess.Popen(command))
        _wait_for(port, started[-1])
        model = AnthropicModel("local", base_url=f"http://127.0.0.1:{port}", api_key="none")
        given = {"model_retry": PROMPT, **given}
        agent = Agent("checked", model=model, journal=False, **given)

        async def whole() -> AgentResult[Any]:
            try:
                return await agent.run("add one and two")
            finally:
                await model.close()

        result = asyncio.run(whole())
        address = f"http://127.0.0.1:{port}/__aimock/journal"
        with urllib.request.urlopen(address, timeout=START_S) as answer:
            journal = json.load(answer)
        entries = journal["entries"] if isinstance(journal, dict) else journal
        return result, [entry["body"] for entry in entries]

    yield run
    for process in started:
        process.terminate()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while True:
        assert process.poll() is None, "the server ended before it listened"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)
        else:
            return


@tool(idempotent=True)
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def calls(*pairs: tuple[int, int]) -> dict[str, Any]:
    """An answer that proposes these additions."""
    return {
        "toolCalls": [
            {"id": f"toolu_{n}", "name": "add", "arguments": {"a": a, "b": b}}
            for n, (a, b) in enumerate(pairs)
        ]
    }


def at(turn: int, response: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A fixture for the n-th answer of the conversation."""
    return {"match": {"turnIndex": turn}, "response": response, **more}


@pytest.mark.parametrize("stream", [True, False])
def test_two_calls_of_one_answer_and_the_answer_after_them(play: Play, stream: bool) -> None:
    fixtures = [at(0, calls((1, 2), (3, 4))), at(1, {"content": "three and seven"})]
    result, requests = play(fixtures, tools=[add], stream=stream)
    assert (result.stop_reason, result.output) == ("completed", "three and seven")
    assert (result.used.tool_calls, result.used.steps) == (2, 2)
    assert len(requests) == 2


@pytest.mark.parametrize(
    "error",
    [
        {"status": 529, "error": {"type": "overloaded_error", "message": "busy"}},
        {"status": 429, "error": {"type": "rate_limit_error", "message": "x"}, "retryAfter": 0},
        {"status": 500, "error": {"type": "api_error", "message": "broke"}},
    ],
)
def test_a_fault_that_passes_is_tried_again(play: Play, error: dict[str, Any]) -> None:
    fixtures = [
        {"match": {"userMessage": "add", "sequenceIndex": 0}, "response": error},
        {"match": {"userMessage": "add", "sequenceIndex": 1}, "response": {"content": "three"}},
    ]
    result, _ = play(fixtures)
    assert (result.stop_reason, result.output) == ("completed", "three")
    assert result.used.steps == 1


def test_a_fault_that_stays_ends_the_run_as_failed(play: Play) -> None:
    error = {"status": 401, "error": {"type": "authentication_error", "message": "who are you"}}
    result, requests = play([{"match": {"userMessage": "add"}, "response": error}])
    assert result.stop_reason == "failed"
    assert "who are you" in result.detail
    assert len(requests) <= 1, "a wrong key is not tried again"


def test_a_call_that_was_cut_off_is_not_run(play: Play) -> None:
    cut = at(0, {**calls((1, 2)), "finishReason": "length"})
    result, requests = play([cut, at(1, {"content": "shorter"})], tools=[add])
    assert result.used.tool_calls == 0
    assert len(requests) >= 2, "the model is asked to go on"


def test_a_refusal_is_its_own_reason(play: Play) -> None:
    refused = {"content": "I cannot help with that.", "finishReason": "refusal"}
    result, _ = play([at(0, refused)])
    assert result.stop_reason == "refused"


def test_thinking_is_kept_as_it_came_with_its_signature(play: Play) -> None:
    thought = {**calls((1, 2)), "reasoning": "Add them.", "reasoningSignature": "sig-1"}
    result, _ = play([at(0, thought), at(1, {"content": "three"})], tools=[add])
    assert result.output == "three"
    assert result.state is not None
    (answer, *_) = [m for m in result.state.messages if m["role"] == "assistant"]
    block = next(b for b in answer["content"] if b["type"] == "thinking")
    assert block == {"type": "thinking", "thinking": "Add them.", "signature": "sig-1"}


def test_a_stream_that_breaks_off_is_no_answer(play: Play) -> None:
    fixture = at(0, {"content": "three " * 50}, truncateAfterChunks=4)
    result, _ = play([fixture])
    assert result.stop_reason == "failed"
    assert result.output is None


def test_a_bound_asks_for_a_last_answer(play: Play) -> None:
    fixtures = [at(0, calls((1, 2))), at(1, {"content": "as far as I came: three"})]
    result, _ = play(fixtures, tools=[add], budget=Budget(max_tool_calls=1))
    assert result.used.tool_calls == 1
    assert result.stop_reason in ("completed", "max_tool_calls")
