"""Retries: which failures may pass, for which tools, and how long apart.
Method: tools that fail a number of times; waits are recorded instead of waited."""

from __future__ import annotations

from email.message import Message
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError

import httpx2
import pytest
from tests.agent.tools.stage import Recorder, call, execute, run_one

from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import make_tool, tool
from treadle.worker.agent.tools.env import ToolRetried
from treadle.worker.agent.tools.errors import ToolRejected, TransientToolError
from treadle.worker.agent.tools.retrying import delay_s, is_transient
from treadle.worker.agent.tools.tool import AnyTool


class ServiceError(Exception):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        super().__init__("service")


REQUEST = httpx2.Request("GET", "http://a.example")


@pytest.mark.parametrize(
    "error",
    [
        TransientToolError("busy"),
        TimeoutError(),
        ConnectionRefusedError(),
        ServiceError(status_code=429),
        ServiceError(status=503),
        ServiceError(response=SimpleNamespace(status_code=529)),
        HTTPError("http://a.example", 502, "Bad Gateway", Message(), None),
        URLError(ConnectionResetError()),
        httpx2.ReadTimeout("slow", request=REQUEST),
        httpx2.ConnectError("refused", request=REQUEST),
        ExceptionGroup("both", [TimeoutError(), ConnectionError()]),
    ],
    ids=repr,
)
def test_what_may_pass_is_transient(error: Exception) -> None:
    assert is_transient(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        ToolRejected("x"),
        ServiceError(status_code=404),
        ServiceError(code="503"),
        HTTPError("http://a.example", 400, "Bad Request", Message(), None),
        httpx2.UnsupportedProtocol("ftp", request=REQUEST),
        URLError("unknown url type"),
        PermissionError(),
        ExceptionGroup("one", [TimeoutError(), ValueError()]),
    ],
    ids=repr,
)
def test_what_comes_out_the_same_is_not(error: Exception) -> None:
    assert not is_transient(error)


def failing(times: int, error: BaseException, *, idempotent: bool, **options: Any) -> AnyTool:
    left = times

    async def act(ctx: ToolContext[None]) -> int:
        nonlocal left
        if left:
            left -= 1
            raise error
        return ctx.attempt

    return make_tool(act, name="act", idempotent=idempotent, **options)


def test_an_idempotent_tool_is_tried_three_times_with_growing_waits() -> None:
    recorder = Recorder()
    result = run_one(failing(2, ConnectionError("away"), idempotent=True), recorder)
    assert (result.status, result.content, result.attempts) == ("ok", "3", 3)
    assert recorder.waits_s == [0.5, 2.0]
    retried = [e for e in recorder.events if isinstance(e, ToolRetried)]
    assert [(e.attempt, e.delay_s, e.error_type) for e in retried] == [
        (1, 0.5, "ConnectionError"),
        (2, 2.0, "ConnectionError"),
    ]
    assert retried[0].message == "ConnectionError: away"


def test_after_the_third_failure_the_model_is_told() -> None:
    result = run_one(failing(9, ConnectionError("away"), idempotent=True))
    assert (result.status, result.attempts) == ("error", 3)
    assert result.content == "ConnectionError: away (after 3 attempts)" and result.effect == "none"


def test_a_fourth_attempt_is_made_only_if_asked_for_and_waits_longer() -> None:
    recorder = Recorder()
    run_one(failing(9, TimeoutError(), idempotent=True, max_attempts=4), recorder)
    assert recorder.waits_s == [0.5, 2.0, 8.0]


@pytest.mark.parametrize("error", [ConnectionError(), TransientToolError(), TimeoutError()])
def test_a_tool_with_effects_is_never_tried_again(error: Exception) -> None:
    recorder = Recorder()
    result = run_one(failing(1, error, idempotent=False), recorder)
    assert (result.status, result.attempts, result.effect) == ("error", 1, "unknown")
    assert recorder.waits_s == []


def test_a_permanent_failure_is_not_tried_again() -> None:
    assert run_one(failing(1, ValueError("x"), idempotent=True)).attempts == 1


def test_each_call_has_its_own_attempts() -> None:
    tries: dict[str, int] = {}

    @tool(idempotent=True)
    async def read(name: str) -> str:
        tries[name] = tries.get(name, 0) + 1
        if tries[name] < 3:
            raise TransientToolError("busy")
        return name

    results = execute([call("read", n, name=n) for n in "ab"], [read])
    assert [r.attempts for r in results] == [3, 3]


def test_the_key_is_the_same_for_every_attempt() -> None:
    keys: list[str] = []

    @tool(idempotent=True)
    def read(ctx: ToolContext[None]) -> None:
        keys.append(ctx.idempotency_key)
        raise ConnectionError

    run_one(read)
    assert keys == ["r1:s1:toolu_read"] * 3


def test_a_wait_that_the_service_asks_for_is_kept_or_left_to_the_model() -> None:
    assert delay_s(TransientToolError(retry_after_s=5), 1, 0.0) == 5
    assert delay_s(TransientToolError(retry_after_s=0.1), 1, 0.0) == 0.5
    assert delay_s(TransientToolError(retry_after_s=3600), 1, 0.0) is None
    recorder = Recorder()
    result = run_one(failing(1, TransientToolError(retry_after_s=61), idempotent=True), recorder)
    assert result.attempts == 1 and recorder.waits_s == []


def test_jitter_adds_up_to_a_quarter() -> None:
    assert delay_s(None, 1, 0.0) == 0.5 and delay_s(None, 1, 1.0) == 0.625
    assert delay_s(None, 9, 0.0) == 8.0
