"""A request becomes a run: what the client refuses is told to whoever has sent it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from treadle.engine.gateway.replies import Refusal
from treadle.sdk.client.collecting import Receipt
from treadle.sdk.client.starting import deliver as deliver_one
from treadle.sdk.client.starting import start as start_run
from treadle.sdk.client.store import Store
from treadle.sdk.errors import InvalidPayload, RunConflict, UnknownWorkflow, UserError
from treadle.sdk.triggers.trigger import Trigger

RETRY_AFTER_S = "30"
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
    except InvalidPayload as exc:
        raise Refusal(422, "InvalidPayload", str(exc)) from exc
    except RunConflict as exc:
        raise Refusal(422, "RunConflict", str(exc)) from exc
    except UnknownWorkflow as exc:
        text = f"{exc} Until then trigger {name!r} starts nothing."
        raise Refusal(503, "UnknownWorkflow", text, {"retry-after": RETRY_AFTER_S}) from exc
    except UserError as exc:
        raise Refusal(422, type(exc).__name__, str(exc)) from exc
    finally:
        context.detach(token)
