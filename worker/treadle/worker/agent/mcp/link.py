"""What one event loop has to an MCP server: the connection of the moment, opened when needed."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from mcp_types import Tool

from treadle.worker.agent.mcp.connection import Connection, Send
from treadle.worker.agent.mcp.errors import McpConnectionLost, McpUnavailable, Unsent
from treadle.worker.agent.mcp.server import McpServer

LIST_AGE_S_MAX = 60.0
"""A server that does not tell of changes is asked this often, when a turn needs its tools."""
CLOSE_S_MAX = 10.0
"""The library gives a process 2 s to end by itself, then 2 s after TERM."""


class Link:
    """The connection of the moment, and those that have not ended yet."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._current: Connection | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._listing: asyncio.Task[None] | None = None

    async def ask(self, send: Send) -> Any:
        """Have a request performed: see ``Connection.ask``.

        One that was not sent is sent once more, over a new connection. Raises ``McpUnavailable``.
        """
        try:
            return await (await self._open()).ask(send)
        except Unsent:
            pass
        try:
            return await (await self._open()).ask(send)
        except Unsent as exc:
            raise McpUnavailable(self._server.name, self._server.where, str(exc)) from exc

    async def tools(self) -> tuple[Tool, ...]:
        """Return the tools of the server, sorted by name; raise ``McpUnavailable``."""
        connection = await self._open()
        if not connection.listed_s or time.monotonic() - connection.listed_s > LIST_AGE_S_MAX:
            # All runs that need the list wait for one question.
            if self._listing is None or self._listing.done():
                self._listing = asyncio.get_running_loop().create_task(self._list(connection))
                self._listing.add_done_callback(_retrieve)
            await asyncio.shield(self._listing)
            connection = await self._open()
        return connection.tools

    async def close(self) -> None:
        """End the connections and wait until they have ended, processes included."""
        if self._current is not None:
            self._current.end("it is not needed any more")
            self._current = None
        if self._ending:
            _, late = await asyncio.wait(self._ending, timeout=CLOSE_S_MAX)
            for owner in late:
                owner.cancel()
            if late:
                await asyncio.wait(late, timeout=CLOSE_S_MAX)

    async def _open(self) -> Connection:
        connection = self._current
        if connection is None or not connection.takes_requests:
            connection = self._current = Connection(self._server)
            self._ending.add(connection.owner)
            connection.owner.add_done_callback(self._ending.discard)
        # Shielded: the connection is opened for all who wait for it.
        await asyncio.shield(connection.ready)
        return connection

    async def _list(self, connection: Connection) -> None:
        try:
            await connection.list_tools()
        except (Unsent, McpConnectionLost):
            pass  # The next connection lists its tools when it is opened.
        except TimeoutError as exc:
            why = f"it did not list its tools within {self._server.init_timeout_s:g} s"
            connection.retire(why)
            raise McpUnavailable(self._server.name, self._server.where, why) from exc


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
