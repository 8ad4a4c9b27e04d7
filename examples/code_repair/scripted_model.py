"""A stand-in for the model: answers Messages API requests about ``timetable`` from a script.

Without a key the example runs against this server, through the real SDK::

    python examples/code_repair/scripted_model.py     # prints two variables to set

It keeps no state. What it answers follows from the conversation it is sent: which test fails,
which file was read since the last edit, which edits were made. So a worker that repeats an
iteration gets the same answers. It runs until its standard input is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "scripted"
LATENCY_S = float(os.environ.get("SCRIPTED_MODEL_LATENCY_S", "0.25"))
"""A pause before each answer, so that a person can follow and a kill hits something."""


@dataclass(frozen=True)
class Edit:
    """What the model does about a failing test, once it has read the file."""

    test: str
    path: str
    old: str
    new: str
    thought: str


SCRIPT = [
    Edit(
        "test_an_agenda_lists_the_day_in_order",
        "timetable/clock.py",
        ":{minute % 60}",
        ":{minute % 60:02}",
        "The minutes of a formatted time are not padded to two digits.",
    ),
    Edit(
        "test_minutes_booked_twice_are_counted_once",
        "timetable/span.py",
        "Span(merged[-1].start, span.end)",
        "Span(merged[-1].start, max(merged[-1].end, span.end))",
        "merge cuts a span short when the next one lies inside it.",
    ),
    Edit(
        "test_two_rooms_share_no_bookings",
        "timetable/room.py",
        "bookings: list[Booking] = [],",
        "bookings: list[Booking] | None = None,",
        "The default list is made once and shared by all rooms.",
    ),
    Edit(
        "test_two_rooms_share_no_bookings",
        "timetable/room.py",
        "self.bookings = bookings",
        "self.bookings = [] if bookings is None else bookings",
        "Now each room needs a list of its own when it is given none.",
    ),
    Edit(
        "test_bookings_may_follow_each_other_without_a_pause",
        "timetable/span.py",
        "self.start <= other.end and other.start <= self.end",
        "self.start < other.end and other.start < self.end",
        "Spans are half-open, so two that only touch share no minute.",
    ),
    Edit(
        "test_a_room_is_free_between_and_after_its_bookings",
        "timetable/span.py",
        "        cursor = max(cursor, span.end)\n",
        "        cursor = max(cursor, span.end)\n"
        "    if cursor < within.end:\n"
        "        free.append(Span(cursor, within.end))\n",
        "gaps forgets what is left after the last taken span.",
    ),
]

Blocks = list[dict[str, Any]]


class Refused(Exception):
    """The request is not one that the API accepts."""


def answer(request: dict[str, Any]) -> tuple[Blocks, str]:
    """Return content and stop reason for a request; raise ``Refused`` if it is not valid."""
    calls = check(request)
    blocks = [block for message in request["messages"] for block in message["content"]]
    texts = [block["text"] for block in blocks if block["type"] == "text"]
    failing = re.findall(r"first that fails is \S+::(\w+)", "\n".join(texts))
    made = {call["input"].get("old") for call in calls if call["name"] == "replace_in_file"}
    edit = next((e for e in SCRIPT if e.test in failing[-1:] and e.old not in made), None)
    if edit is None:
        return [{"type": "text", "text": "I do not know what to do about this test."}], "end_turn"
    name, arguments = "read_file", {"path": edit.path}
    if calls and calls[-1]["name"] == name and calls[-1]["input"] == arguments:
        name, arguments = "replace_in_file", {**arguments, "old": edit.old, "new": edit.new}
    call = {"type": "tool_use", "id": f"toolu_{len(calls):04}", "name": name, "input": arguments}
    return [{"type": "text", "text": edit.thought}, call], "tool_use"


def check(request: dict[str, Any]) -> Blocks:
    """Return all tool calls of a conversation; raise ``Refused`` where the API would."""
    if not isinstance(request.get("max_tokens"), int) or request["max_tokens"] < 1:
        raise Refused("max_tokens: must be greater than or equal to 1")
    messages = request.get("messages")
    if not messages or messages[0].get("role") != "user":
        raise Refused("messages: first message must use the 'user' role")
    calls: Blocks = []
    open_ids: set[str] = set()
    for index, message in enumerate(messages):
        results = [b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"]
        if set(results) != open_ids or len(results) != len(open_ids):
            raise Refused(
                f"messages.{index}: tool_use ids and tool_result blocks do not match: "
                f"called {sorted(open_ids)}, answered {sorted(results)}"
            )
        if any(b["type"] == "text" and not b["text"] for b in message["content"]):
            raise Refused(f"messages.{index}: text content blocks must be non-empty")
        made = [block for block in message["content"] if block["type"] == "tool_use"]
        if made and message["role"] != "assistant":
            raise Refused(f"messages.{index}: tool_use blocks can only be in assistant messages")
        calls += made
        open_ids = {call["id"] for call in made}
    if open_ids or messages[-1]["role"] != "user":
        raise Refused("messages: the last message must be from the user and answer every tool_use")
    if len({call["id"] for call in calls}) != len(calls):
        raise Refused("messages: tool_use ids must be unique")
    return calls


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path.partition("?")[0] != "/v1/messages":
            return self._fail(404, "not_found_error", f"there is no {self.path}")
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        if self.headers.get("x-api-key", bearer) != KEY:  # The SDK's versions differ.
            return self._fail(401, "authentication_error", f"the key must be {KEY!r}")
        try:
            request = json.loads(body)
            content, stop_reason = answer(request)
        except (Refused, ValueError, KeyError, TypeError, AttributeError) as exc:
            return self._fail(400, "invalid_request_error", str(exc))
        time.sleep(LATENCY_S)
        message = {
            "id": f"msg_{time.time_ns()}",
            "type": "message",
            "role": "assistant",
            "model": request.get("model", ""),
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": {"input_tokens": len(body) // 4, "output_tokens": 60},
        }
        return self._send(200, message)

    def _fail(self, status: int, kind: str, text: str) -> None:
        self._send(status, {"type": "error", "error": {"type": kind, "message": text}})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the one who asks says enough."""


def serve() -> ThreadingHTTPServer:
    """Start the server on a free port of this machine and return it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main() -> None:
    server = serve()
    print(f"ANTHROPIC_BASE_URL=http://127.0.0.1:{server.server_port}")
    print(f"ANTHROPIC_API_KEY={KEY}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()
