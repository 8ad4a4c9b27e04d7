"""The fake as tests use it: scripts, records, hooks, waits, and what is told at its exit.

Method: the real SDK, from threads, coroutines and another process.
"""

from __future__ import annotations

import ast
import asyncio
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import pytest

from treadle.worker.agent import Agent, testing
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.testing import (
    FakeAnthropic,
    Gate,
    RecordedRequest,
    Turn,
    error,
    stall_after,
    text,
    tool_use,
    turn,
)

Sdk = Callable[..., Any]
Ask = dict[str, Any]


def test_turns_are_used_in_their_order_and_can_be_added(sdk: Sdk, ask: Ask) -> None:
    with FakeAnthropic([turn(text("a")), turn(text("b"))]) as fake:
        fake.extend(turn(text("c")))
        said = [sdk(fake).messages.create(**ask).content[0].text for _ in range(3)]
        assert said == ["a", "b", "c"] and fake.remaining == 0


def test_a_function_answers_from_what_it_is_asked(sdk: Sdk, ask: Ask) -> None:
    def _answer(request: RecordedRequest) -> Turn:
        if not request.tool_results:
            return turn(tool_use("look", {"at": request.last_text}))
        assert request.tool_names == ["look"]
        return turn(text(f"saw {request.tool_results}"))

    with FakeAnthropic(_answer) as fake:
        ask["tools"] = [{"name": "look", "input_schema": {"type": "object"}}]
        call = sdk(fake).messages.create(**ask).content[0]
        assert call.input == {"at": "hi"}
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "it"}
        ask["messages"] += [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
        assert sdk(fake).messages.create(**ask).content[0].text == f"saw {{'{call.id}': 'it'}}"
        with pytest.raises(ValueError, match="the script is a function"):
            fake.extend(turn(text("a")))


def test_a_request_is_recorded_with_all_that_was_sent(sdk: Sdk, ask: Ask) -> None:
    before = time.monotonic()
    with FakeAnthropic([turn(text("a")), error(529)]) as fake:
        sdk(fake).messages.create(**ask, extra_headers={"X-Trace": "t"})
        with pytest.raises(anthropic.APIStatusError):
            sdk(fake).messages.create(**ask, stream=True)
        first, second = fake.requests
    assert first.body == ask and first.headers["x-trace"] == "t"
    assert (first.index, second.index) == (0, 1)
    assert (first.is_stream, second.is_stream) == (False, True)
    assert (first.status, second.status) == (200, 529)
    assert first.answered_at is not None
    assert before <= first.received_at <= first.answered_at <= second.received_at


def test_a_script_that_runs_out_is_told_to_the_client_and_at_the_exit(sdk: Sdk, ask: Ask) -> None:
    with (
        pytest.raises(AssertionError, match="script_exhausted: 1 requests came"),
        FakeAnthropic() as fake,
    ):
        with pytest.raises(anthropic.NotFoundError, match="script_exhausted") as raised:
            sdk(fake).messages.create(**ask)
        assert raised.value.type == "not_found_error"


def test_an_agent_whose_script_runs_out_fails_at_once_with_that_message() -> None:
    async def _run(fake: FakeAnthropic) -> Any:
        model = AnthropicModel("any", base_url=fake.base_url, api_key="test")
        try:
            return await Agent("reader", model=model).run("Go.")
        finally:
            await model.close()

    with FakeAnthropic(allow_exhausted=True) as fake:
        result = asyncio.run(_run(fake))
        assert (result.stop_reason, fake.count) == ("failed", 1)
        assert "script_exhausted: no turn is left for request 1" in result.detail


def test_a_script_may_be_allowed_to_run_out(sdk: Sdk, ask: Ask) -> None:
    with (
        FakeAnthropic(allow_exhausted=True) as fake,
        pytest.raises(anthropic.NotFoundError),
    ):
        sdk(fake).messages.create(**ask)


def test_the_exit_does_not_hide_what_the_test_found(sdk: Sdk, ask: Ask) -> None:
    with pytest.raises(anthropic.NotFoundError), FakeAnthropic() as fake:
        sdk(fake).messages.create(**ask)


def test_hooks_see_the_request_before_and_after_its_turn_is_chosen(sdk: Sdk, ask: Ask) -> None:
    seen: list[Any] = []
    answer = turn(text("a"))
    with FakeAnthropic(
        [answer],
        on_request=lambda request: seen.append((request.index, fake.remaining)),
        before_response=lambda request, chosen: seen.append((request.status, chosen)),
    ) as fake:
        sdk(fake).messages.create(**ask)
    assert seen == [(0, 1), (None, answer)]


def test_a_hook_that_fails_fails_the_test(sdk: Sdk, ask: Ask) -> None:
    def _hook(request: RecordedRequest) -> None:
        raise LookupError("no such thing")

    with (
        pytest.raises(AssertionError, match="LookupError"),
        FakeAnthropic([turn(text("a"))], on_request=_hook) as fake,
    ):
        with pytest.raises(anthropic.NotFoundError, match="no such thing"):
            sdk(fake).messages.create(**ask)
        assert [type(failure) for failure in fake.failures] == [LookupError]


def test_a_hook_may_wait_while_other_requests_are_answered(sdk: Sdk, ask: Ask) -> None:
    free = threading.Event()

    def _hook(request: RecordedRequest) -> None:
        if request.index == 0:
            assert free.wait(5)

    with FakeAnthropic([turn(text("a")), turn(text("b"))], on_request=_hook) as fake:
        held = threading.Thread(target=lambda: sdk(fake).messages.create(**ask))
        held.start()
        fake.wait_arrived(1)
        assert sdk(fake).messages.create(**ask).content[0].text == "a"
        free.set()
        held.join(5)
        assert fake.wait_answered(1).status == 200


def test_waiting_for_what_does_not_happen_ends_with_the_numbers(sdk: Sdk, ask: Ask) -> None:
    with FakeAnthropic([turn(text("a"))]) as fake:
        sdk(fake).messages.create(**ask)
        assert fake.wait_arrived(1).index == 0
        with pytest.raises(TimeoutError, match=r"request 2 did not come within 0\.01 s: 1 came"):
            fake.wait_arrived(2, timeout_s=0.01)
        with pytest.raises(TimeoutError, match="request 1 was not given up"):
            fake.wait_client_closed(1, timeout_s=0.01)


@pytest.mark.parametrize("place", ["stream", "whole", "hook"])
def test_a_client_that_is_cancelled_is_seen_to_go_at_once(ask: Ask, place: str) -> None:
    gate = Gate()
    free = threading.Event()

    async def _cancel(fake: FakeAnthropic) -> float:
        async with anthropic.AsyncAnthropic(
            api_key="k", base_url=fake.base_url, max_retries=0
        ) as client:
            asked = asyncio.create_task(_listen(client, ask, stream=place == "stream"))
            if place == "hook":
                await asyncio.to_thread(fake.wait_arrived, 1)
            else:
                await asyncio.to_thread(gate.wait_reached)
            cancelled_at = time.monotonic()
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            gone = await asyncio.to_thread(fake.wait_client_closed, 1, 2.0)
            assert gone.client_closed_at is not None and gone.answered_at is None
            return gone.client_closed_at - cancelled_at

    with FakeAnthropic(
        [turn(text("hello"), fault=stall_after(2, gate=gate))],
        on_request=(lambda _: free.wait(5)) if place == "hook" else None,
    ) as fake:
        assert 0 <= asyncio.run(_cancel(fake)) < 1
        free.set()


async def _listen(client: anthropic.AsyncAnthropic, ask: Ask, *, stream: bool) -> None:
    if not stream:
        await client.messages.create(**ask)
        return
    async for _ in await client.messages.create(**ask, stream=True):
        pass


def test_it_is_an_async_context_manager_too(ask: Ask) -> None:
    async def _ask() -> object:
        async with (
            FakeAnthropic([turn(text("a"))]) as fake,
            anthropic.AsyncAnthropic(api_key="k", base_url=fake.base_url, max_retries=0) as client,
        ):
            return (await client.messages.create(**ask)).to_dict()["content"]

    assert asyncio.run(_ask()) == [{"type": "text", "text": "a"}]
    with pytest.raises(AssertionError, match="script_exhausted"):
        asyncio.run(_run_out(ask))


async def _run_out(ask: Ask) -> None:
    async with (
        FakeAnthropic() as fake,
        anthropic.AsyncAnthropic(api_key="k", base_url=fake.base_url, max_retries=0) as client,
    ):
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.create(**ask)


ASK_AND_WAIT = """
import anthropic
with anthropic.Anthropic(max_retries=0) as client:
    client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
"""


@pytest.mark.slow
def test_another_process_finds_it_and_a_hook_can_kill_that_process() -> None:
    started: queue.Queue[subprocess.Popen[bytes]] = queue.Queue()

    def _kill(request: RecordedRequest, chosen: Turn) -> None:
        process = started.get(timeout=5)
        process.kill()
        process.wait(5)

    with FakeAnthropic([turn(text("a"))], before_response=_kill, api_key="mine") as fake:
        process = subprocess.Popen(
            [sys.executable, "-c", ASK_AND_WAIT], env={**os.environ, **fake.env}
        )
        started.put(process)
        try:
            assert process.wait(50) == -signal.SIGKILL
        finally:
            process.kill()
            process.wait()
        assert fake.wait_client_closed(1).error == "" and fake.count == 1


def test_when_it_has_ended_its_port_is_closed_and_nothing_runs(sdk: Sdk, ask: Ask) -> None:
    with FakeAnthropic([turn(text("a"), fault=stall_after(1))]) as fake:
        stream = sdk(fake).messages.create(**ask, stream=True)
        port = int(fake.base_url.rpartition(":")[2])
    stream.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name == "fake-anthropic"]
    fake.stop()  # Once more does nothing.
    with pytest.raises(RuntimeError, match="Use one fake once"):
        fake.start()


def test_it_can_answer_slowly_for_those_who_watch(sdk: Sdk, ask: Ask) -> None:
    with FakeAnthropic([turn(text("a"))], latency_s=0.05) as fake:
        sdk(fake).messages.create(**ask)
        request = fake.wait_answered(1)
        assert request.answered_at is not None
        assert request.answered_at - request.received_at >= 0.05


def test_it_stands_on_the_standard_library_alone() -> None:
    own = "treadle.worker.agent.testing"
    found: set[str] = set()
    for path in Path(testing.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    foreign = {name for name in found if not f"{name}.".startswith(f"{own}.")}
    assert {name.partition(".")[0] for name in foreign} <= sys.stdlib_module_names
    assert foreign != found
