"""A request becomes a run: what the client refuses is told to whoever has sent it.

They get what is wrong and what to do with the request. What an operator may do, such as a command
of ``treadle``, is for the log.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from treadle.engine.gateway.replies import Refusal
from treadle.sdk.client.collecting import Receipt
from treadle.sdk.client.starting import deliver as deliver_one
from treadle.sdk.client.starting import start as start_run
from treadle.sdk.client.store import Store
from treadle.sdk.errors import (
    InvalidPayload,
    RunConflict,
    UnknownWorkflow,
    UserError,
    sentence,
)
from treadle.sdk.log_fields import spaced
from treadle.sdk.triggers.trigger import Trigger

RETRY_AFTER_S = "30"
_log = logging.getLogger("treadle.http")
_propagator = TraceContextTextMapPropagator()


def check_running(name: str, trigger: Trigger) -> None:
    """Raise ``Refusal`` if the trigger is paused: its sender is to try again later."""
    if trigger.paused:
        text = f"trigger {name!r} is paused and starts nothing. Send it again later."
        raise Refusal(503, "Paused", text, {"retry-after": RETRY_AFTER_S})


async def start(
    store: Store,
    name: str,
    trigger: Trigger,
    raw: bytes,
    run: str | None,
    headers: Mapping[str, str],
) -> str:
    """Start the run of a request, as a part of the trace that its headers name; return its id."""
    with _told(name, headers):
        return await start_run(store, name, trigger, raw, run)


async def deliver(
    store: Store,
    name: str,
    trigger: Trigger,
    raw: bytes,
    delivery: str,
    headers: Mapping[str, str],
) -> str | Receipt:
    """Start the run of a delivery likewise, or collect it if its workflow collects its starts."""
    with _told(name, headers):
        return await deliver_one(store, name, trigger, raw, delivery)


@contextmanager
def _told(name: str, headers: Mapping[str, str]) -> Generator[None]:
    """Let the request's trace be the one around, and tell its sender what the client refuses."""
    token = context.attach(_propagator.extract(headers))
    try:
        yield
    except UserError as exc:
        extra = {"trigger": name, "error": str(exc)}
        _log.warning("http.refused %s", spaced(extra), extra=extra)
        raise _refusal(name, exc) from exc
    finally:
        context.detach(token)


def _refusal(name: str, error: UserError) -> Refusal:
    match error:
        case InvalidPayload():
            text = f"{error.what}: {sentence(error.why)} Correct the body of the request."
        case RunConflict():
            text = (
                f"this request is run {error.run!r} already, which {sentence(error.why)} "
                "Send the same body again, or this one under another id."
            )
        case UnknownWorkflow():
            text = (
                f"trigger {name!r} starts nothing now: its workflow {error.name!r} is not "
                "registered. Send it again later."
            )
            return Refusal(503, "UnknownWorkflow", text, {"retry-after": RETRY_AFTER_S})
        case _:
            text = (
                f"trigger {name!r} cannot take this request. Its operator can read why in the log "
                "of the gateway."
            )
    return Refusal(422, type(error).__name__, text)
