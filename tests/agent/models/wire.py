"""A loopback server that answers with exactly the bytes a test gives it, and says what it saw."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from treadle.worker.agent.core.conversation import ModelError, ModelFault, ModelRequest
from treadle.worker.agent.models.port import Delta, Model

Json = dict[str, Any]
WAIT_S = 5.0


@dataclass(frozen=True)
class Reply:
    """Bytes of one whole HTTP answer; ``hold`` keeps the socket open until the client goes."""

    raw: bytes
    hold: bool = False


@dataclass
class Seen:
    """One request."""

    path: str
    headers: dict[str, str]
    body: Json


@dataclass
class Wire:
    """The running server."""

    url: str = ""
    requests: list[Seen] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    gone_at_s: float = 0.0


def http(
    status: int, body: object, headers: Json | None = None, length: int | None = None
) -> Reply:
    """Return an answer that is not streamed; ``length`` may claim more than is sent."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"content-type": "application/json", "content-length": length or len(raw)}
    lines |= headers or {}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return Reply(f"HTTP/1.1 {status} X\r\n{head}connection: close\r\n\r\n".encode() + raw)


def stream(
    *events: object, length: int | None = None, hold: bool = False, headers: str = ""
) -> Reply:
    """Return a stream of these events; bytes are sent as they are. It ends with the socket."""
    raw = b"".join(event if isinstance(event, bytes) else sse(event) for event in events)
    extra = f"content-length: {length}\r\n" if length else ""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{extra}{headers}"
    return Reply(f"{head}connection: close\r\n\r\n".encode() + raw, hold)


def sse(event: object) -> bytes:
    """Return the event as the Messages API sends it."""
    assert isinstance(event, dict)
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


@contextlib.asynccontextmanager
async def serve(*replies: Reply) -> AsyncIterator[Wire]:
    """Answer the requests in turn; every connection carries one."""
    wire, left = Wire(), list(replies)
    serving: set[asyncio.Task[Any]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            wire.requests.append(await _request(reader))
            wire.arrived.set()
            reply = left.pop(0)
            writer.write(reply.raw)
            await writer.drain()
            if reply.hold:
                await reader.read()
                wire.gone_at_s = time.monotonic()
                wire.gone.set()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        await server.wait_closed()
        if serving:
            await asyncio.wait(serving, timeout=WAIT_S)


async def _request(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(first.split()[1], headers, json.loads(body))


def ask(**changes: Any) -> ModelRequest:
    """Return a small request."""
    given: Json = {"model": "", "max_tokens": 4096, "messages": [said("user", "hi")]}
    return ModelRequest(**(given | changes))


def said(role: str, *content: object) -> Json:
    """Return a message; texts become blocks."""
    return {"role": role, "content": [block_of(part) for part in content]}


def block_of(part: object) -> Json:
    """Return the part as a block."""
    return part if isinstance(part, dict) else {"type": "text", "text": str(part)}


async def fault(model: Model, request: ModelRequest, **options: Any) -> ModelFault:
    """Call the model and return the fault it must end with."""
    try:
        answer = await model.respond(request, **options)
    except ModelError as exc:
        return exc.fault
    raise AssertionError(f"the call did not fail, but answered {answer}")


def message_start(**usage: int) -> Json:
    """Return the event that opens a message."""
    counts = {"input_tokens": 11, "output_tokens": 1} | usage
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    message |= {"model": "m-1", "stop_reason": None, "usage": counts}
    return {"type": "message_start", "message": message}


def begin(index: int, **block: Any) -> Json:
    """Return the event that opens a block."""
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: Any) -> Json:
    """Return a delta of a block."""
    inner = {"type": kind, **fields}
    return {"type": "content_block_delta", "index": index, "delta": inner}


def end(index: int) -> Json:
    """Return the event that closes a block."""
    return {"type": "content_block_stop", "index": index}


def message_end(stop_reason: str | None = "end_turn", **fields: Any) -> list[Json]:
    """Return the two events that close a message."""
    last = {"type": "message_delta", "delta": {"stop_reason": stop_reason, **fields}}
    return [last | {"usage": {"output_tokens": 9}}, {"type": "message_stop"}]


def text_block(*texts: str, index: int = 0) -> list[Json]:
    """Return the events of a block of text."""
    deltas = [delta(index, "text_delta", text=text) for text in texts]
    return [begin(index, type="text", text=""), *deltas, end(index)]


def call_block(raw: str, *, id: str = "t1", name: str = "send", index: int = 0) -> list[Json]:
    """Return the events of a tool call with that JSON, in pieces of five characters."""
    pieces = [raw[at : at + 5] for at in range(0, len(raw), 5)]
    deltas = [delta(index, "input_json_delta", partial_json=piece) for piece in pieces]
    return [begin(index, type="tool_use", id=id, name=name, input={}), *deltas, end(index)]


class Deltas(list[Delta]):
    """Collects what is given out; pass it as ``on_delta``."""

    __call__ = list[Delta].append
