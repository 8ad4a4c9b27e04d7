"""Server-sent events of a message, in the order and shape in which the API streams them."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.worker.agent.testing.render import Rendered
from treadle.worker.agent.testing.wire import Json, compact

DELTA_CHARS = 12
"""Characters of one delta: short, so that small answers have several."""


def encode(event: Json) -> bytes:
    """Write one event as it travels."""
    return f"event: {event['type']}\ndata: {compact(event)}\n\n".encode()


def stream(message: Json, content: list[Rendered]) -> list[Json]:
    """Return the events of a whole message."""
    usage = message["usage"]
    # The API does not know the output yet and says 1; the last event has the sum.
    start: Json = {
        **message,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {**usage, "output_tokens": 1},
    }
    start.pop("stop_details", None)
    events: list[Json] = [{"type": "message_start", "message": start}]
    for index, rendered in enumerate(content):
        events.append(
            {"type": "content_block_start", "index": index, "content_block": rendered.opening()}
        )
        if index == 0:
            events.append({"type": "ping"})
        for delta in _deltas(rendered):
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    end: Json = {
        "stop_reason": message["stop_reason"],
        "stop_sequence": message["stop_sequence"],
    }
    if "stop_details" in message:
        end["stop_details"] = message["stop_details"]
    sums = {key: value for key, value in usage.items() if isinstance(value, int)}
    return [
        *events,
        {"type": "message_delta", "delta": end, "usage": sums},
        {"type": "message_stop"},
    ]


def _deltas(rendered: Rendered) -> Iterator[Json]:
    block = rendered.block
    match block["type"]:
        case "text":
            for part in _parts(block["text"]):
                yield {"type": "text_delta", "text": part}
        case "thinking":
            for part in _parts(block["thinking"]):
                yield {"type": "thinking_delta", "thinking": part}
            if "signature" in block:
                yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use" | "server_tool_use":
            yield {"type": "input_json_delta", "partial_json": ""}
            for part in _parts(rendered.input_json):
                yield {"type": "input_json_delta", "partial_json": part}
        case _:
            return  # Such a block is whole when it starts.


def _parts(text: str) -> Iterator[str]:
    for start in range(0, len(text), DELTA_CHARS):
        yield text[start : start + DELTA_CHARS]
