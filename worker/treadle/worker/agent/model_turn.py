"""One model call of a run: from the request to a durable answer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from treadle.worker.agent import compacting
from treadle.worker.agent import hooks as hooking
from treadle.worker.agent.core import earlier
from treadle.worker.agent.core.conversation import (
    TRANSIENT,
    Message,
    ModelError,
    ModelRequest,
    Usage,
)
from treadle.worker.agent.core.decide import CallModel
from treadle.worker.agent.core.entries import Answered, Heard, Wasted
from treadle.worker.agent.core.healing import heal
from treadle.worker.agent.core.rules import problems
from treadle.worker.agent.core.stops import StopReason
from treadle.worker.agent.models import retrying
from treadle.worker.agent.models.retrying import ModelBusy, RetryPolicy

if TYPE_CHECKING:
    from treadle.worker.agent.driving import Driver
    from treadle.worker.agent.equipment import Equipment


async def call_model(equipment: Equipment, driver: Driver, action: CallModel) -> None:
    """Call the model and append its answer, or the end of the run.

    Raises ``ModelError`` or ``ModelBusy`` when the call may succeed later.
    """
    request, found = await _prepared(equipment, driver, action.request)
    if _results(action.request.messages[-1:]) - _results(request.messages):
        detail = (
            "a hook left results of the present turn out of the conversation: the model would "
            "make the same calls for ever. Leave out older messages only"
        )
        await _end(driver, "failed", detail)
        return
    if found:
        await _end(driver, "failed", f"the request is not one the API takes: {'; '.join(found)}")
        return
    emitter = driver.emitter
    emitter.emit("agent.turn.started", purpose=action.purpose)
    emitter.emit("agent.message.started")
    began_ms = driver.now_ms()
    model = equipment.model_for(request.model)
    request = msgspec.structs.replace(request, model=model.name)
    hooks = equipment.hooks
    key = ""
    if hooks.get_api_key is not None:
        found_key: str | None = await hooking.call(hooks.get_api_key, model.provider)
        key = found_key or ""

    def superseded() -> None:
        emitter.emit("agent.message.superseded")
        emitter.emit("agent.message.started")

    try:
        called = await retrying.call(
            model,
            request,
            _policy(equipment, driver),
            on_delta=emitter.delta if equipment.stream else None,
            on_retry=lambda retry: emitter.emit(
                "agent.model.retry", error=retry.fault.kind, delay_s=round(retry.delay_s, 2)
            ),
            on_superseded=superseded,
            timeout_s=equipment.model_timeout_s,
            api_key=key,
            passage=equipment.passage(model, driver.now_ms),
        )
    except (ModelError, ModelBusy) as exc:
        if exc.fault.is_committed:
            emitter.emit("agent.message.superseded")
        if exc.fault.usage != Usage():
            cost = equipment.cost(request.model, exc.fault.usage)
            wasted = Wasted(at_ms=driver.now_ms(), usage=exc.fault.usage, cost_micro_usd=cost)
            await driver.append(wasted)
        if isinstance(exc, ModelBusy):
            raise
        await _failed(equipment, driver, exc)
        return
    response = called.response
    answered = Answered(
        at_ms=driver.now_ms(),
        purpose=action.purpose,
        content=response.content,
        stop_reason=response.stop_reason,
        usage=response.usage,
        wasted=called.wasted,
        cost_micro_usd=equipment.cost(response.model or request.model, response.usage)
        + equipment.cost(response.model or request.model, called.wasted),
        model=response.model,
        response_id=response.id,
        tries=called.tries,
        duration_ms=driver.now_ms() - began_ms,
    )
    await driver.append(answered)
    emitter.emit(
        "agent.message.ended",
        stop_reason=response.stop_reason,
        usage=msgspec.to_builtins(response.usage),
    )


def _policy(equipment: Equipment, driver: Driver) -> RetryPolicy:
    """Return how calls are repeated: whoever cannot come back later waits here."""
    policy = equipment.model_retry
    return policy if driver.root.is_retried else structs.replace(policy, wait_s_max=math.inf)


async def _prepared(
    equipment: Equipment, driver: Driver, request: ModelRequest
) -> tuple[ModelRequest, list[str]]:
    """Return the request as it is sent, and what the API would find wrong with it."""
    hooks = equipment.hooks
    if hooks.transform_context is not None:
        request = await hooking.call(hooks.transform_context, request)
    if hooks.convert_to_llm is not None:
        messages: list[Message] = await hooking.call(hooks.convert_to_llm, request.messages)
        request = msgspec.structs.replace(request, messages=messages)
    continues = driver.state.watch.streaks.is_paused
    found = problems(request, continues=continues)
    if not found:
        return request, found
    healed = heal(request.messages)
    if healed.repairs:
        driver.emitter.emit("agent.transcript.healed", repairs=list(healed.repairs))
    request = msgspec.structs.replace(request, messages=healed.messages)
    return request, problems(request, continues=continues)


def _results(messages: list[Message]) -> set[str]:
    return {
        block["tool_use_id"]
        for message in messages
        for block in message["content"]
        if block.get("type") == "tool_result"
    }


async def _failed(equipment: Equipment, driver: Driver, exc: ModelError) -> None:
    fault = exc.fault
    if fault.kind == "context_exceeded":
        if not await compacting.compact_by_force(equipment, driver):
            await _end(driver, "context_exceeded", fault.message, exc)
        return
    if fault.kind in TRANSIENT:
        raise exc
    if fault.kind == "malformed" and driver.state.watch.malformed < 2:
        text = (
            "Your last answer could not be used: the arguments of a tool call were no valid JSON. "
            "Make the call again with complete and valid arguments."
        )
        heard = Heard(
            at_ms=driver.now_ms(),
            source="notice",
            content=[earlier.note(text)],
            is_malformed=True,
        )
        await driver.append(heard)
        return
    await _end(driver, "failed", f"{fault.kind}: {fault.message}", exc)


async def _end(
    driver: Driver, reason: StopReason, detail: str, exc: ModelError | None = None
) -> None:
    # Its usage was counted when the call failed.
    fault = None if exc is None else msgspec.structs.replace(exc.fault, usage=Usage(), limits=None)
    await driver.stop(reason, detail, fault)
