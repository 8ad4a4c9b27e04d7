"""What the fake was asked, when, and what became of it: written by its thread, read by tests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from treadle.worker.agent.testing.wire import Json, as_list, blocks_of, objects


@dataclass
class RecordedRequest:
    """One request. The times are of ``time.monotonic()``."""

    index: int
    """Its place among the requests of the same path, from 0."""
    path: str
    headers: dict[str, str]
    """The names are in lower case."""
    body: Json
    """Empty if the body was no JSON object."""
    raw: bytes
    received_at: float
    status: int | None = None
    """Of the answer; ``None`` until there is one, and for a request that was hung up on."""
    error: str = ""
    """The message of the error that was answered, if it was one."""
    answered_at: float | None = None
    """When the last byte was handed to the socket."""
    client_closed_at: float | None = None
    """When the client went away before it had the whole answer."""

    @property
    def messages(self) -> list[Json]:
        """The conversation."""
        return objects(self.body.get("messages"))

    @property
    def is_stream(self) -> bool:
        """True if a stream was asked for."""
        return self.body.get("stream") is True

    @property
    def last_text(self) -> str:
        """The text of the last message."""
        last = blocks_of(self.messages[-1].get("content")) if self.messages else []
        return "\n".join(block["text"] for block in last if block.get("type") == "text")

    @property
    def tool_results(self) -> dict[str, Any]:
        """The results in the last message: content by the id of the call."""
        return _results_in(self.messages[-1:])

    @property
    def all_tool_results(self) -> dict[str, Any]:
        """The results in the whole conversation: content by the id of the call."""
        return _results_in(self.messages)

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools on offer."""
        return [str(tool.get("name")) for tool in objects(as_list(self.body.get("tools")))]


def _results_in(messages: list[Json]) -> dict[str, Any]:
    blocks = [block for message in messages for block in blocks_of(message.get("content"))]
    results = [block for block in blocks if block.get("type") == "tool_result"]
    return {block["tool_use_id"]: block.get("content", "") for block in results}


class Journal:
    """The requests of one path, in the order they came."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._requests: list[RecordedRequest] = []

    @property
    def requests(self) -> list[RecordedRequest]:
        """All requests so far."""
        with self._changed:
            return list(self._requests)

    def add(self, path: str, headers: dict[str, str], body: Json, raw: bytes) -> RecordedRequest:
        """Record a request that has arrived whole."""
        with self._changed:
            request = RecordedRequest(
                len(self._requests), path, headers, body, raw, received_at=time.monotonic()
            )
            self._requests.append(request)
            self._changed.notify_all()
        return request

    def note_answered(self, request: RecordedRequest) -> None:
        """Record that the whole answer was sent."""
        with self._changed:
            request.answered_at = time.monotonic()
            self._changed.notify_all()

    def note_client_closed(self, request: RecordedRequest) -> None:
        """Record that the client closed its socket before the answer was whole."""
        with self._changed:
            request.client_closed_at = time.monotonic()
            self._changed.notify_all()

    def wait(
        self, what: str, index: int, met: Callable[[RecordedRequest], bool], timeout_s: float
    ) -> RecordedRequest:
        """Block until request ``index`` exists and ``met`` holds; raise ``TimeoutError``."""

        def is_met() -> bool:
            return len(self._requests) > index and met(self._requests[index])

        with self._changed:
            if not self._changed.wait_for(is_met, timeout_s):
                raise TimeoutError(
                    f"request {index + 1} {what} within {timeout_s} s: "
                    f"{len(self._requests)} came. Look at what the client does instead."
                )
            return self._requests[index]
