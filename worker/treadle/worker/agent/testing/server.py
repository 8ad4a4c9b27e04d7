"""A loopback server in a thread of its own, with a loop of its own.

So the one who asks may be a synchronous test, a coroutine or another process, and a test that
blocks its loop does not block the answers.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from treadle.worker.agent.testing.http import Peer

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0


class LoopbackServer:
    """Listens on a free port of 127.0.0.1 and serves each connection with ``serve``."""

    def __init__(self, serve: Callable[[Peer], Awaitable[None]]) -> None:
        self._serve = serve
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    def start(self) -> None:
        """Start to listen; return when it does."""
        if self._thread is not None:
            raise RuntimeError("the server runs already. Use one fake once.")
        self._thread = threading.Thread(target=self._run, name="fake-anthropic", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S) or not self.port:
            raise RuntimeError(f"the fake did not start to listen within {START_TIMEOUT_S} s.")

    def stop(self) -> None:
        """Close all connections and end the thread. Does nothing the second time."""
        if self._thread is None or self._loop is None or self._stopping is None:
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive():
            raise RuntimeError(
                f"the fake did not end within {STOP_TIMEOUT_S} s: a hook or the function that "
                "gives its turns is still running. Let them end before the fake does."
            )

    def _run(self) -> None:
        try:
            asyncio.run(self._listen())
        finally:
            self._started.set()

    async def _listen(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stopping.wait()
        server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await server.wait_closed()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve_one(Peer(reader, writer)))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve_one(self, peer: Peer) -> None:
        try:
            await self._serve(peer)
        finally:
            await peer.close()
