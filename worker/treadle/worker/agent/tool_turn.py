"""The tool calls of one turn: the built-in ones at once, the others through the executor.

On the way back from a crash a call may have run already:

    started, settled        its result stands in the journal; it is not here any more
    started, not settled    idempotent: run again. Otherwise ask its ``reconcile``; without one,
                            or if that does not know, a person decides
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from treadle.sdk.errors import clause
from treadle.worker.agent import hooks as hooking
from treadle.worker.agent.core import kept, notes, tokens
from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.core.entries import Judged, Kept, Noted, Settled, Started
from treadle.worker.agent.tools.calling import reconcile_call
from treadle.worker.agent.tools.env import (
    ToolBegan,
    ToolEnded,
    ToolEnv,
    ToolEvent,
    ToolProgress,
    ToolRetried,
)
from treadle.worker.agent.tools.executing import execute_batch

if TYPE_CHECKING:
    from treadle.worker.agent.driving import Driver
    from treadle.worker.agent.equipment import Equipment

_STEERED = (
    "This call did not run: a person has said something meanwhile, which you read next. Issue it "
    "again if it is still wanted."
)


async def run_calls(
    equipment: Equipment, driver: Driver, calls: Sequence[ToolCall], interrupted: frozenset[str]
) -> None:
    """Run the calls and append their results; each is durable before the model can see it."""
    for call in calls:
        if call.name in notes.NAMES:
            await _note(driver, call)
        elif call.name == kept.READ:
            await _read(equipment, driver, call)
    rest = [call for call in calls if call.name not in (*notes.NAMES, kept.READ)]
    rest = await _without_uncertain(equipment, driver, rest, interrupted)
    if rest:
        await driver.look()
        await execute_batch(rest, equipment.tools, _env(equipment, driver, len(rest)))


def _env(equipment: Equipment, driver: Driver, calls: int) -> ToolEnv:
    left = calls

    async def started(call: ToolCall, key: str) -> None:
        await driver.append(
            Started(
                at_ms=driver.now_ms(),
                id=call.id,
                name=call.name,
                args_hash=call.args_hash,
                key=key,
            )
        )

    async def settled(result: ToolResult) -> None:
        nonlocal left
        await driver.append(Settled(at_ms=driver.now_ms(), result=result))
        left -= 1
        if left:
            await driver.look()

    async def keep(call: ToolCall, whole: bytes) -> str:
        if driver.root.state.kept_bytes + len(whole) > kept.KEPT_BYTES_MAX:
            return f"the run keeps {kept.KEPT_BYTES_MAX} bytes of such outputs, this is too much"
        for part, text in enumerate(kept.parts(whole)):
            await driver.append(
                Kept(
                    at_ms=driver.now_ms(),
                    call_id=call.id,
                    tool=call.name,
                    size_bytes=len(whole),
                    part=part,
                    text=text,
                )
            )
        return kept.reference(call.id)

    async def after(call: ToolCall, result: ToolResult) -> ToolResult:
        return await after_hook(equipment, call, result)

    return ToolEnv(
        deps=equipment.deps,
        run=equipment.run,
        step=equipment.step,
        iteration=driver.state.turn,
        sequential=equipment.sequential,
        cancelled=equipment.cancelled,
        started=started,
        settled=settled,
        after=after,
        skip=lambda call: skip_reason(driver, call),
        keep=keep if equipment.spec.tool(kept.READ) is not None else None,
        output_bytes_max=tokens.result_chars(equipment.spec.context_window),
        on_event=lambda event: _tell(driver, event),
        heartbeat=equipment.heartbeat,
        sleep=equipment.tool_sleep,
    )


async def after_hook(equipment: Equipment, call: ToolCall, result: ToolResult) -> ToolResult:
    """Return the result, or what the hook ``after_tool_call`` puts in its place."""
    hook = equipment.hooks.after_tool_call
    if hook is None:
        return result
    replaced = await hooking.call(hook, call, result)
    return result if replaced is None else replaced


def skip_reason(driver: Driver, call: ToolCall) -> str:
    """Return why the call should not begin any more; what a person approved does."""
    return _STEERED if driver.is_steered and call.id not in driver.state.replies else ""


def _tell(driver: Driver, event: ToolEvent) -> None:
    emit = driver.emitter.emit
    match event:
        case ToolBegan():
            emit("agent.tool.started", id=event.id, tool=event.name)
        case ToolProgress():
            emit("agent.tool.progress", id=event.id, tool=event.name, data=event.data)
        case ToolRetried():
            emit(
                "agent.tool.retry",
                id=event.id,
                tool=event.name,
                attempt=event.attempt,
                error=event.error_type,
            )
        case ToolEnded():
            result = event.result
            emit("agent.tool.ended", id=result.id, tool=result.name, status=result.status)


# ------------------------------------------------------------------ the run journal


async def _note(driver: Driver, call: ToolCall) -> None:
    status, text = "ok", "Written down."
    noted: list[Noted] = []
    try:
        noted = [
            Noted(at_ms=driver.now_ms(), field=name, value=value, append=append)
            for name, value, append in notes.changes(call.name, call.input)
        ]
    except ValueError as exc:
        status, text = "error", f"{clause(exc)}."
    if call.name == notes.GET:
        text = driver.state.journal.rendered() or "The run journal is empty."
    result = msgspec.convert(
        {"id": call.id, "name": call.name, "status": status, "content": text}, ToolResult
    )
    await driver.append(*noted, Settled(at_ms=driver.now_ms(), result=result))
    if noted:
        driver.emitter.emit("agent.journal.changed", fields=[entry.field for entry in noted])


async def _read(equipment: Equipment, driver: Driver, call: ToolCall) -> None:
    status = "ok"
    result_bytes = tokens.result_chars(equipment.spec.context_window)
    try:
        text = kept.page(driver.state.kept, call.input, kept.page_bytes(result_bytes))
    except ValueError as exc:
        status, text = "error", f"{clause(exc)}."
    result = msgspec.convert(
        {"id": call.id, "name": call.name, "status": status, "content": text}, ToolResult
    )
    await driver.append(Settled(at_ms=driver.now_ms(), result=result))


# ------------------------------------------------------------------ after a crash


async def _without_uncertain(
    equipment: Equipment, driver: Driver, calls: Sequence[ToolCall], interrupted: frozenset[str]
) -> list[ToolCall]:
    """Return the calls that may run; settle or hand to people those that may have run."""
    env = _env(equipment, driver, len(calls))
    certain: list[ToolCall] = []
    uncertain: dict[str, ToolCall] = {}
    for call in calls:
        result = None
        if call.id in interrupted:
            result = await reconcile_call(call, equipment.tools, env)
        if result is None:
            certain.append(call)
        elif result.status == "unsafe":
            uncertain[call.id] = call
        else:
            await driver.append(Settled(at_ms=driver.now_ms(), result=result))
    if uncertain:
        await _ask_about(driver, uncertain)
    return certain


async def _ask_about(driver: Driver, uncertain: dict[str, ToolCall]) -> None:
    reason = (
        "This call was under way when its worker died, and it must not run twice. Look whether it "
        "took effect. If not, approve it to run now; else answer with its result, or reject it."
    )
    calls = tuple(
        msgspec.structs.replace(uncertain[call.id], decision="uncertain", reason=reason)
        if call.id in uncertain
        else call
        for call in driver.state.calls
    )
    await driver.append(Judged(at_ms=driver.now_ms(), calls=calls))
    names = [call.name for call in uncertain.values()]
    driver.emitter.emit("agent_run.resume_unsafe", calls=names)
