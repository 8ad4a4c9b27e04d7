"""Requests: each starts a run and waits for its response, or is told where to ask for it."""

from __future__ import annotations

import asyncio
import hmac
import logging
import re

from starlette.requests import Request
from starlette.responses import Response

from treadle.engine.gateway import bodies, replies, starting
from treadle.engine.gateway.answers import answer, answer_of
from treadle.engine.gateway.finding import Finder
from treadle.engine.gateway.replies import Refusal
from treadle.engine.gateway.secret import SecretMissing, secrets_at
from treadle.sdk.client.requests import cancel, requested
from treadle.sdk.client.store import Store
from treadle.sdk.errors import RunConflict
from treadle.sdk.identifier import is_id
from treadle.sdk.ids import new_run_id
from treadle.sdk.log_fields import spaced
from treadle.sdk.triggers.naming import TRIGGER_KEY, delivery_run_id
from treadle.sdk.triggers.signatures import ID_CHARS_MAX
from treadle.sdk.triggers.trigger import Http, Trigger

IDEMPOTENCY_HEADER = "idempotency-key"
_WAIT = re.compile(r"\bwait=(\d{1,6})\b")
_log = logging.getLogger("treadle.http")


class Calls:
    """The HTTP triggers of a namespace."""

    def __init__(self, store: Store, finder: Finder, stopping: asyncio.Event) -> None:
        self._store = store
        self._finder = finder
        self._stopping = stopping

    async def post(self, request: Request) -> Response:
        """Start a run and answer with its response; after the timeout 202, and where to ask."""
        name, trigger, on = await self._trigger(request)
        starting.check_running(name, trigger)
        body = await bodies.read(request, on.body_bytes_max)
        raw = bodies.input_of(request, body, on.headers)
        run = _run_of(name, request)
        run = await starting.start(self._store, name, trigger, raw, run, request.headers)
        given = await self._wait(request, run, _wait_s(request, on.timeout_s), cancels=on.cancels)
        return given or _later(request, on, name, run, "running")

    async def get(self, request: Request) -> Response:
        """Answer with the response of a run that a request has started, or with where it stands."""
        name, _, on = await self._trigger(request)
        run: str = request.path_params["run"]
        document = await self._store.document(run) if is_id(run) else None
        found = await requested(self._store, run, document) if is_id(run) else None
        if found is None or found[0].metadata.get(TRIGGER_KEY) != name:
            text = f"trigger {name!r} has started no run {run!r:.80}, or it is kept no longer."
            raise Refusal(404, "UnknownRun", text)
        given = await answer_of(self._store, document) if document else None
        return given or _later(request, on, name, run, document.status if document else "running")

    async def _trigger(self, request: Request) -> tuple[str, Trigger, Http]:
        path: str = request.path_params["path"]
        found = await self._finder.at_path(path)
        if found is None or not isinstance(found[1].on, Http):
            text = f"nothing is served at /api/{path:.200}. Check the address."
            raise Refusal(404, "UnknownTrigger", text)
        name, trigger = found
        _check_token(name, trigger.on, request)  # type: ignore[arg-type]
        return name, trigger, found[1].on

    async def _wait(
        self, request: Request, run: str, timeout_s: float, *, cancels: bool
    ) -> Response | None:
        """Wait for the response, as long as the client does and the gateway serves."""
        answering = asyncio.create_task(answer(self._store, run, timeout_s))
        gone = asyncio.create_task(_gone(request))
        stopping = asyncio.create_task(self._stopping.wait())
        tasks = (answering, gone, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                return answering.result()
            if gone.done() and cancels:
                await self._cancel(run)
            return None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _cancel(self, run: str) -> None:
        try:
            await cancel(self._store, run, "the client of the HTTP request went away")
        except RunConflict as exc:
            extra = {"run": run, "error": str(exc)}
            _log.info("http.cancel-late %s", spaced(extra), extra=extra)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _run_of(name: str, request: Request) -> str:
    key = request.headers.get(IDEMPOTENCY_HEADER, "")
    if len(key) > ID_CHARS_MAX:
        text = f"header {IDEMPOTENCY_HEADER} has {len(key)} characters; {ID_CHARS_MAX} are allowed."
        raise Refusal(400, "InvalidHeader", text)
    return delivery_run_id(name, key) if key else new_run_id()


def _wait_s(request: Request, timeout_s: float) -> float:
    """Return how long to wait: the client may prefer less (RFC 7240)."""
    prefer = request.headers.get("prefer", "").lower()
    if "respond-async" in prefer:
        return 0.0
    asked = _WAIT.search(prefer)
    return min(float(asked[1]), timeout_s) if asked else timeout_s


def _later(request: Request, on: Http, name: str, run: str, status: str) -> Response:
    where = f"/api/{on.path or name}/runs/{run}"
    headers = {"location": where, "retry-after": "1"}
    return replies.json(202, {"run": run, "status": status, "location": where}, run, headers)


def _check_token(name: str, on: Http, request: Request) -> None:
    if not on.secret:
        return
    try:
        secrets = secrets_at(on.secret)
    except SecretMissing as exc:
        extra = {"trigger": name, "error": str(exc)}
        _log.error("http.secret-missing %s", spaced(extra), extra=extra)
        text = "the gateway has no token of this trigger. Its operator can read why in its log."
        raise Refusal(503, "SecretMissing", text) from exc
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    token = given.strip().encode() if scheme.lower() == "bearer" else b""
    matches = [hmac.compare_digest(token, each.encode()) for each in secrets]
    if not any(matches):
        text = "the bearer token is missing or wrong. Send the header Authorization: Bearer TOKEN."
        raise Refusal(401, "Unauthorized", text, {"www-authenticate": "Bearer"})
