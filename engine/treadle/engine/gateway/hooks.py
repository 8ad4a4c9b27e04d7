"""Webhooks: a delivery that its sender has signed counts once, however often it is sent.

It starts a run, or becomes part of one if the workflow collects its starts.
"""

from __future__ import annotations

import logging
import time

from starlette.requests import Request
from starlette.responses import Response

from treadle.engine.gateway import bodies, replies, starting
from treadle.engine.gateway.finding import Finder
from treadle.engine.gateway.replies import Refusal
from treadle.engine.gateway.secret import SecretMissing, secrets_at
from treadle.sdk.client.collecting import Receipt
from treadle.sdk.client.store import Store
from treadle.sdk.log_fields import spaced
from treadle.sdk.triggers.naming import delivery_run_id
from treadle.sdk.triggers.signatures import Unsigned, delivery_of
from treadle.sdk.triggers.trigger import Webhook

_log = logging.getLogger("treadle.http")


class Hooks:
    """The webhooks of a namespace."""

    def __init__(self, store: Store, finder: Finder) -> None:
        self._store = store
        self._finder = finder

    async def post(self, request: Request) -> Response:
        """Take a delivery: 202 once its run is stored, or itself if it is collected."""
        name: str = request.path_params["name"]
        trigger = await self._finder.named(name, Webhook)
        if trigger is None or not isinstance(trigger.on, Webhook):
            raise Refusal(
                404, "UnknownTrigger", f"there is no webhook {name!r}. Check the address."
            )
        on = trigger.on
        body = await bodies.read(request, on.body_bytes_max)
        try:
            secrets = secrets_at(on.secret)
            delivery = delivery_of(on, secrets, request.headers, body, time.time())
        except SecretMissing as exc:
            extra = {"trigger": name, "error": str(exc)}
            _log.error("http.secret-missing %s", spaced(extra), extra=extra)
            text = (
                "the gateway has no secret of this webhook. Its operator can read why in its log."
            )
            raise Refusal(503, "SecretMissing", text) from exc
        except Unsigned as exc:
            raise Refusal(401, "Unsigned", str(exc)) from exc
        starting.check_running(name, trigger)
        raw = bodies.input_of(request, body, on.headers)
        run = delivery_run_id(name, delivery)
        taken = await starting.deliver(self._store, name, trigger, raw, run, request.headers)
        if isinstance(taken, Receipt):
            return replies.json(202, {"collected": taken.sequence, "trigger": name})
        return replies.json(202, {"run": run, "trigger": name}, run)
