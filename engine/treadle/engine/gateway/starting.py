"""A request becomes a run: what the client refuses is told to whoever has sent it."""

from __future__ import annotations

from collections.abc import Mapping

from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from treadle.engine.gateway.replies import Refusal
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
    token = context.attach(_propagator.extract(headers))
    try:
        return await start_run(store, name, trigger, raw, run)
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
