"""From a server's declaration to a client of the ``mcp`` library, entered.

A command runs in a process group of its own. The group ends with the connection, whatever the
server does about it, and a guard ends it if this process is killed. The library does not tell the
pid, so the command is started through a shell that writes its own to a file and becomes it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2
from mcp import Client, StdioServerParameters, stdio_client
from mcp.client import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import ToolListChangedNotification

from treadle.worker.agent.mcp.errors import McpUnavailable
from treadle.worker.agent.mcp.server import McpServer
from treadle.worker.agent.tools.guard import Guard

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S_MIN = 300.0
"""A server may hold a stream open without a word for this long."""

_EXEC = 'echo $$ > "$0" && exec "$@"'


@asynccontextmanager
async def open_client(
    server: McpServer, *, on_changed: Callable[[], None], on_ended: Callable[[], None]
) -> AsyncGenerator[Client]:
    """Connect and shake hands. Enter and leave this in one task.

    ``on_changed`` is called when the server says that its tools have changed, ``on_ended`` when
    it has closed the connection.
    """

    async def hear(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            on_changed()

    transport = _http(server) if server.url else _stdio(server)
    client = Client(_noticing(transport, on_ended), message_handler=hear, cache=None)
    async with client:
        yield client


@asynccontextmanager
async def _http(server: McpServer) -> AsyncGenerator[Any]:
    given = server.headers() if callable(server.headers) else server.headers
    timeout = httpx2.Timeout(CONNECT_TIMEOUT_S, read=max(server.timeout_s, READ_TIMEOUT_S_MIN))
    async with (
        httpx2.AsyncClient(headers=dict(given or {}), timeout=timeout) as http,
        streamable_http_client(server.url, http_client=http) as streams,
    ):
        yield streams


@asynccontextmanager
async def _stdio(server: McpServer) -> AsyncGenerator[Any]:
    program = server.command[0]
    path = server.env.get("PATH", os.environ.get("PATH"))
    if shutil.which(program, path=path) is None and not (Path(server.cwd) / program).exists():
        raise McpUnavailable(server.name, server.where, f"there is no program {program!r}")
    group = 0
    with tempfile.TemporaryDirectory(prefix="treadle-mcp-") as directory:
        told = Path(directory) / "pid"
        parameters = StdioServerParameters(
            command="/bin/sh",
            args=["-c", _EXEC, str(told), *server.command],
            env=server.env or None,
            cwd=server.cwd or None,
        )
        guard = await Guard.start()
        try:
            async with stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr) as streams:

                def watch() -> None:
                    nonlocal group
                    if not group and told.exists() and (text := told.read_text().strip()):
                        group = int(text)
                        guard.watch(group)

                yield _Heard(streams[0], watch), streams[1]
        finally:
            # The library leaves alone what a server that has ended has left behind.
            if group:
                _kill(group)
            await guard.release()


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


@asynccontextmanager
async def _noticing(transport: Any, on_ended: Callable[[], None]) -> AsyncGenerator[Any]:
    async with transport as (reading, writing):
        yield _Heard(reading, lambda: None, on_ended), writing


class _Heard:
    """A stream of messages that tells of the first one, and of its end."""

    def __init__(
        self,
        inner: Any,
        on_message: Callable[[], None],
        on_ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._inner = inner
        self._on_message = on_message
        self._on_ended = on_ended

    @property
    def last_context(self) -> Any:
        """What the library notes of the sender."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        message: SessionMessage | Exception = await self._inner.receive()
        self._on_message()
        return message

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            message: SessionMessage | Exception = await self._inner.__anext__()
        except StopAsyncIteration:
            self._on_ended()
            raise
        self._on_message()
        return message

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        left: bool | None = await self._inner.__aexit__(exc_type, exc_val, exc_tb)
        return left
