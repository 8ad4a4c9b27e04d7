"""One connection to an MCP server: a task of its own enters it, serves requests and leaves it.

    callers ──requests──> queue ──> owner task ──> one task per call ──> answer or error

The scopes of a connection belong to the task that entered them: left by another one they would
spin. So callers only put requests into the queue. A connection is never mended: after a fault, or
an aborted call, it is retired. It ends with its last call, and whoever asks next opens another.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, cast

import httpx2
from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED, INVALID_REQUEST, Tool

from treadle.worker.agent.mcp.errors import McpConnectionLost, McpUnavailable, Unsent
from treadle.worker.agent.mcp.server import McpServer
from treadle.worker.agent.mcp.transport import open_client

LIST_PAGES_MAX = 100
"""A server whose list never ends is not waited for."""
COURTESY_S = 1.0
"""For calls that are cut off, to tell the server so."""

_CLOSED = "Connection closed"
_SESSION_ENDED = "Session terminated"
_log = logging.getLogger("treadle.mcp")

Send = Callable[[Client], Awaitable[Any]]


class _Request:
    __slots__ = ("outcome", "send", "work")

    def __init__(self, send: Send, outcome: asyncio.Future[Any]) -> None:
        self.send = send
        self.outcome = outcome
        self.work: asyncio.Task[None] | None = None


class Connection:
    """One connection, from before it is open until after it has ended."""

    def __init__(self, server: McpServer) -> None:
        loop = asyncio.get_running_loop()
        self._server = server
        self._queue: asyncio.Queue[_Request | None] = asyncio.Queue()
        self._working: set[_Request] = set()
        self._cut: list[_Request] = []
        """Under way when the connection ended: answered once it is known why."""
        self._is_over = False
        self._why = "it was closed"
        self.takes_requests = True
        self.tools: tuple[Tool, ...] = ()
        self.listed_s = 0.0
        """When the tools were listed, by the monotonic clock; 0: they may have changed since."""
        self.ready: asyncio.Future[None] = loop.create_future()
        """Done when the connection is open; raises ``McpUnavailable`` if it cannot be."""
        self.ready.add_done_callback(_retrieve)
        # A context of its own: it outlives the run that happened to need it first.
        self.owner = loop.create_task(
            self._own(), name=f"mcp {server.name}", context=contextvars.Context()
        )

    async def ask(self, send: Send) -> Any:
        """Have a request performed; return its answer.

        Raise ``Unsent`` if it was not sent, ``McpConnectionLost`` if the connection ended under
        it, and what the library raises for an answer that is an error. Cancelled, it tells the
        server so and retires the connection: who knows what the server still does.
        """
        if not self.takes_requests:
            raise Unsent("the connection has ended")
        request = _Request(send, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(request)
        try:
            return await request.outcome
        except asyncio.CancelledError:
            if request.work is not None:
                request.work.cancel()
                self.retire("a call was aborted")
            raise

    async def list_tools(self) -> None:
        """List the tools anew."""
        began_s = time.monotonic()
        self.listed_s = began_s
        async with asyncio.timeout(self._server.init_timeout_s):
            self.tools = await self.ask(_all_tools)

    def changed(self) -> None:
        """Note that the tools are not what they were."""
        self.listed_s = 0.0

    def retire(self, why: str) -> None:
        """Take no further requests, and end with the last one that is under way."""
        if self.takes_requests:
            self.takes_requests = False
            self._why = why
            _log.info("mcp.connection-retired server=%s: %s", self._server.name, why)
            self._queue.put_nowait(None)

    def end(self, why: str) -> None:
        """End now, whatever is under way."""
        self._is_over = True
        self.retire(why)
        self._queue.put_nowait(None)

    # ---------------------------------------------------------------- the owner

    async def _own(self) -> None:
        fault: BaseException | None = None
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._server.init_timeout_s):
                    opened = open_client(
                        self._server,
                        on_changed=self.changed,
                        on_ended=lambda: self.end("the server has closed it"),
                    )
                    client = await stack.enter_async_context(opened)
                    self.tools = await _all_tools(client)
                    self.listed_s = time.monotonic()
                self.ready.set_result(None)
                await self._serve(client)
        except Exception as exc:  # noqa: BLE001 — whatever a transport raises ends the connection
            fault = exc
        except BaseException as exc:
            fault = exc
            raise
        finally:
            self._leave(fault)

    async def _serve(self, client: Client) -> None:
        while not self._is_over and (self.takes_requests or self._working):
            request = await self._queue.get()
            if request is None or request.outcome.done():
                continue
            self._working.add(request)
            request.work = asyncio.get_running_loop().create_task(self._perform(client, request))
        # Ended over calls that are under way: they tell the server while it can be told.
        if works := [request.work for request in self._working if request.work is not None]:
            for work in works:
                work.cancel()
            await asyncio.wait(works, timeout=COURTESY_S)

    async def _perform(self, client: Client, request: _Request) -> None:
        try:
            answer = await request.send(client)
        except MCPError as exc:
            # Servers use the code for errors of their own; the words are the library's.
            if exc.code == CONNECTION_CLOSED and exc.message == _CLOSED:
                self._cut.append(request)
                self.end(str(exc))
            elif exc.code == INVALID_REQUEST and exc.message == _SESSION_ENDED:
                self.retire("the server has forgotten the session")
                _fail(request, Unsent(str(exc)))
            else:
                _fail(request, exc)
        except asyncio.CancelledError:
            self._cut.append(request)
            raise
        except Exception as exc:  # noqa: BLE001 — an answer that the library refuses
            _fail(request, exc)
        else:
            if not request.outcome.done():
                request.outcome.set_result(answer)
        finally:
            self._working.discard(request)
            self._queue.put_nowait(None)

    def _leave(self, fault: BaseException | None) -> None:
        """Answer everybody who still waits. The connection has ended."""
        self.takes_requests = False
        server = self._server
        is_unsent = any(isinstance(leaf, httpx2.ConnectError) for leaf in _leaves(fault))
        is_stopped = fault is None or isinstance(fault, asyncio.CancelledError)
        why = self._why if fault is None or is_stopped else _why(fault, server.init_timeout_s)
        if not self.ready.done():
            if not isinstance(fault, McpUnavailable):
                fault = McpUnavailable(server.name, server.where, why)
            self.ready.set_exception(fault)
        for request in self._working:
            if request.work is not None:
                request.work.cancel()
        for request in (*self._cut, *self._working):
            lost = McpConnectionLost(server.name, server.where, why)
            _fail(request, Unsent(why) if is_unsent else lost)
        while not self._queue.empty():
            if (waiting := self._queue.get_nowait()) is not None:
                _fail(waiting, Unsent(why))
        if not is_stopped:
            _log.warning("mcp.connection-failed server=%s: %s", server.name, why)


async def _all_tools(client: Client) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(LIST_PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(sorted(tools, key=lambda tool: tool.name))


def _fail(request: _Request, error: BaseException) -> None:
    if not request.outcome.done():
        request.outcome.set_exception(error)


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()


def _why(fault: BaseException, init_timeout_s: float) -> str:
    if isinstance(fault, TimeoutError):
        return f"it did not answer within {init_timeout_s:g} s"
    told = [f"{type(leaf).__name__}: {leaf}".removesuffix(": ") for leaf in _leaves(fault)]
    return "; ".join(dict.fromkeys(told))


def _leaves(fault: BaseException | None) -> list[BaseException]:
    if isinstance(fault, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", fault)
        return [leaf for inner in group.exceptions for leaf in _leaves(inner)]
    return [] if fault is None else [fault]
