"""One turn of the repair through the real SDK, against the scripted model or a canned reply.

Method: drive ``edit_once`` directly; canned replies come from an HTTP server of this file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import claude
import pytest
import scripted_model
import turn
from claude import Message
from workspace import SuiteResult, Workspace, read_files

from treadle.sdk.errors import NonRetryable, Retryable

pytestmark = pytest.mark.slow

FILES = read_files(Path(turn.__file__).with_name("timetable"))
FAILING = SuiteResult(1, ("tests/test_agenda.py::test_an_agenda_lists_the_day_in_order",), "E")


async def _turn(workspace: Workspace, messages: list[Message]) -> str:
    if not messages:
        turn.show(messages, FAILING, workspace)
    async with claude.client() as model:
        return await turn.edit_once(model, messages, workspace, lambda: None)


@pytest.mark.usefixtures("scripted")
def test_a_turn_reads_then_edits_and_repeats_exactly_when_it_is_executed_again(
    tmp_path: Path,
) -> None:
    seen: list[tuple[str, list[Message], dict[str, str]]] = []
    for name in ("first", "again"):
        workspace, messages = Workspace(tmp_path / name, FILES), list[Message]()
        edit = asyncio.run(_turn(workspace, messages))
        seen.append((edit, messages, workspace.files))
    assert seen[0] == seen[1]
    edit, messages, files = seen[0]
    assert edit == "timetable/clock.py: :{minute % 60:02}"
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2 + ["user"]
    assert files["timetable/clock.py"] != FILES["timetable/clock.py"]


@pytest.mark.usefixtures("scripted")
def test_six_edits_repair_the_package(tmp_path: Path) -> None:
    async def repair() -> tuple[int, SuiteResult]:
        files, messages = FILES, list[Message]()
        tests = FAILING
        for number in range(1, 10):
            workspace = Workspace(tmp_path / str(number), files)
            assert await _turn(workspace, messages)
            tests, files = await workspace.run_tests(), workspace.files
            if not tests.failed:
                return number, tests
            turn.show(messages, tests, workspace)
        return 0, tests

    assert asyncio.run(repair()) == (6, SuiteResult(22, ()))


# ---------------------------------------------------------------- canned replies


class _Canned:
    """Answers with the given replies, one after another, and records the requests."""

    def __init__(self, *replies: tuple[int, dict[str, Any], dict[str, str]]) -> None:
        self.replies = list(replies)
        self.requests: list[dict[str, Any]] = []


@contextlib.contextmanager
def _serve(canned: _Canned, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            canned.requests.append(json.loads(body))
            status, reply, headers = canned.replies.pop(0)
            self.send_response(status)
            for name, value in {"content-type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("ANTHROPIC_BASE_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "any")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _reply(stop_reason: str | None, *content: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg", "type": "message", "role": "assistant", "model": "m", "usage": usage}
    return 200, {**message, "content": content, "stop_reason": stop_reason}, {}


def _edit(old: str, new: str, call: str = "toolu_1") -> dict[str, Any]:
    arguments = {"path": "timetable/clock.py", "old": old, "new": new}
    return {"type": "tool_use", "id": call, "name": "replace_in_file", "input": arguments}


def _error(status: int, kind: str, **headers: str) -> tuple[int, Any, dict[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, {"type": "error", "error": {"type": kind, "message": "no"}}, named


def test_a_tool_call_of_a_reply_cut_by_max_tokens_is_never_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _edit("minutes > 59", "minutes >= 60")
    canned = _Canned(
        _reply("max_tokens", _edit("minutes > 59", "minutes >")), _reply("tool_use", whole)
    )
    workspace, messages = Workspace(tmp_path, FILES), list[Message]()
    with _serve(canned, monkeypatch):
        edit = asyncio.run(_turn(workspace, messages))
    assert edit.endswith("minutes >= 60")
    assert "minutes >= 60 or" in workspace.files["timetable/clock.py"]
    # The cut reply left no trace in the conversation, and more room was given.
    assert canned.requests[0]["messages"] == canned.requests[1]["messages"]
    assert canned.requests[0]["max_tokens"] < canned.requests[1]["max_tokens"]


def test_a_reply_that_is_cut_again_with_more_room_ends_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canned = _Canned(*[_reply("max_tokens", _edit("import re", "import"))] * 2)
    workspace = Workspace(tmp_path, FILES)
    with _serve(canned, monkeypatch), pytest.raises(NonRetryable, match="does not fit"):
        asyncio.run(_turn(workspace, []))
    assert workspace.files == FILES


def test_every_tool_call_is_answered_and_only_the_first_edit_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = {"type": "tool_use", "id": "toolu_0", "name": "rm", "input": {}}
    shapeless = {"type": "tool_use", "id": "toolu_3", "name": "read_file", "input": {"path": 7}}
    calls = [unknown, _edit("minutes > 59", "minutes > 60"), _edit("9", "8", "toolu_2"), shapeless]
    workspace, messages = Workspace(tmp_path, FILES), list[Message]()
    with _serve(_Canned(_reply("tool_use", *calls)), monkeypatch):
        asyncio.run(_turn(workspace, messages))
    results = messages[-1]["content"]
    assert [result["tool_use_id"] for result in results] == [call["id"] for call in calls]
    assert [result["is_error"] for result in results] == [True, False, True, True]
    turn.show(messages, FAILING, workspace)
    assert messages[-1]["content"][-1]["type"] == "text"
    scripted_model.check({"max_tokens": 1, "messages": messages})


def test_a_reply_without_an_edit_is_kept_as_it_came_without_its_empty_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    texts = [{"type": "text", "text": ""}, {"type": "text", "text": "I give up."}]
    messages = list[Message]()
    with _serve(_Canned(_reply("end_turn", thought, *texts)), monkeypatch):
        assert asyncio.run(_turn(Workspace(tmp_path, FILES), messages)) == ""
    assert messages[-1] == {"role": "assistant", "content": [thought, texts[1]]}


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (_reply("refusal"), NonRetryable),
        (_reply("model_context_window_exceeded"), NonRetryable),
        (_reply(None, _edit("import re", "import")), Retryable),
        (_reply("end_turn"), Retryable),
        (_error(400, "invalid_request_error"), NonRetryable),
        (_error(401, "authentication_error"), NonRetryable),
        (_error(413, "request_too_large"), NonRetryable),
        (_error(408, "timeout_error"), Retryable),
        (_error(429, "rate_limit_error", retry_after="7"), Retryable),
        (_error(429, "rate_limit_error", retry_after="99999"), NonRetryable),
        (_error(500, "api_error"), Retryable),
        (_error(529, "overloaded_error"), Retryable),
    ],
)
def test_a_failure_is_retryable_only_if_the_same_question_may_succeed_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reply: tuple[int, Any, dict[str, str]],
    error: type[NonRetryable | Retryable],
) -> None:
    canned, workspace = _Canned(reply), Workspace(tmp_path, FILES)
    with _serve(canned, monkeypatch), pytest.raises(error) as caught:
        asyncio.run(_turn(workspace, []))
    assert len(canned.requests) == 1  # The SDK did not try again behind our back.
    assert workspace.files == FILES
    if reply[2].get("retry-after") == "7":
        assert isinstance(caught.value, Retryable) and caught.value.after_s == 7


def test_a_model_that_cannot_be_reached_is_retryable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _serve(_Canned(), monkeypatch):
        pass  # The server is gone, its address stays.
    with pytest.raises(Retryable, match="could not be reached"):
        asyncio.run(_turn(Workspace(tmp_path, FILES), []))


def test_without_a_key_the_error_names_the_ways_to_get_a_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(NonRetryable, match=r"ANTHROPIC_API_KEY is not set.*scripted_model"):
        claude.client()
