"""The gateway as a process serves it: routes, and what every failure becomes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Generator

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from treadle.engine.gateway import replies
from treadle.engine.gateway.calls import Calls
from treadle.engine.gateway.finding import Finder
from treadle.engine.gateway.hooks import Hooks
from treadle.engine.gateway.replies import Refusal
from treadle.sdk.bus.connection import Connection, Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.client.store import Store
from treadle.sdk.errors import ServerError, StoredUnreadable, UserError, clause
from treadle.sdk.log_fields import spaced
from treadle.sdk.namespace import awaited_namespace
from treadle.sdk.settings import Settings

CONNECTIONS_MAX = 1_000
"""Requests of one gateway at once; further ones get 503. Each that waits holds a subscription."""
GRACE_S = 10

Handler = Callable[[Request], Awaitable[Response]]
_log = logging.getLogger("treadle.http")


class Gateway:
    """One gateway; ``run`` returns after ``stop``. Port 0 is a free one, which ``port`` names."""

    def __init__(self, settings: Settings, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._settings = settings
        self._socket = _listen(host, port)
        self.host = host
        self.port: int = self._socket.getsockname()[1]
        self._stopping = asyncio.Event()
        self.ready = asyncio.Event()
        """Set once requests are served."""

    def stop(self) -> None:
        """Ask the gateway to finish: what waits is told where to ask."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until ``stop``, as soon as an engine has set up the namespace.

        Raises ``ServerError`` if NATS cannot be used.
        """
        try:
            connection = await Connection.open(self._settings, name="treadle-http")
        except BaseException:
            self._socket.close()
            raise
        try:
            js = JetStream(connection, message_ids=self._settings.message_ids)
            subjects = await awaited_namespace(js, self._settings, self._stopping, self._tell)
            if subjects is not None:
                await self._serve(app_of(Store(js, subjects), self._stopping))
        finally:
            self._socket.close()
            await connection.close()

    def _tell(self) -> None:
        _log.warning(
            "http.waiting namespace=%s: no engine has set it up on this server yet. "
            "Start one: treadle engine",
            self._settings.namespace,
        )

    async def _serve(self, app: Starlette) -> None:
        config = uvicorn.Config(
            app,
            loop="none",
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_graceful_shutdown=GRACE_S,
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[self._socket]))
        stopping = asyncio.create_task(self._stopping.wait())
        while not (server.started or serving.done()):
            await asyncio.sleep(0.005)
        self.ready.set()
        _log.info("http.ready %s:%d", self.host, self.port)
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        stopping.cancel()
        await serving
        _log.info("http.stopped %s:%d", self.host, self.port)


def app_of(store: Store, stopping: asyncio.Event) -> Starlette:
    """Return the gateway as an ASGI application on a namespace."""
    finder = Finder(store)
    hooks, calls = Hooks(store, finder), Calls(store, finder, stopping)

    async def healthy(_: Request) -> Response:
        await store.js.api(f"STREAM.INFO.{store.subjects.events_stream}")
        return replies.json(200, {"status": "ok"})

    return Starlette(
        routes=[
            Route("/hooks/{name}", _told(hooks.post), methods=["POST"]),
            Route("/api/{path:path}/runs/{run}", _told(calls.get), methods=["GET"]),
            Route("/api/{path:path}", _told(calls.post), methods=["POST"]),
            Route("/healthz", _told(healthy), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error},
    )


class _Server(uvicorn.Server):
    """Without signals of its own: whoever runs the gateway says when it stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _told(handler: Handler) -> Handler:
    """Let what goes wrong become a reply that says so, and a line in the log if it is ours."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except Refusal as exc:
            return exc.reply()
        except (ServerError, Unknown, ApiError, StoredUnreadable) as exc:
            extra = {"path": request.url.path, "error": repr(exc)}
            _log.warning("http.delayed %s", spaced(extra), extra=extra)
            text = "the store cannot be used now, so nothing is certain. Send it again."
            return Refusal(503, "Unavailable", text, {"retry-after": "5"}).reply()
        except Exception as exc:  # noqa: BLE001 — one request must not stop the gateway
            extra = {"path": request.url.path, "error": repr(exc)}
            _log.error("http.failed %s", spaced(extra), extra=extra, exc_info=exc)
            text = (
                "the gateway has failed; its log says why. Nothing is certain: ask or send again."
            )
            return Refusal(500, "Failed", text).reply()

    return handle


async def _http_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    text = f"{clause(exc.detail)}. Served are POST /hooks/NAME and POST /api/PATH."
    return Refusal(exc.status_code, "HTTPError", text, exc.headers).reply()


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.create_server((host, port), backlog=1024)
    except OSError as exc:
        raise UserError(
            f"the gateway cannot listen on {host}:{port}: {exc.strerror or exc}. Choose another "
            "--port, or 0 for a free one."
        ) from exc
    found.setblocking(False)
    return found
