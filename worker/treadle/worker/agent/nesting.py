"""A round of sub-agents: each that an open call runs takes one turn, side by side.

    begin      the answer's calls become runs of their own; that ends the iteration
    a round    one turn each, and the result of each that has stopped; that ends an iteration too

Failures are of three kinds:

    a sub-agent stops       the result of its call says so, and the others go on
    its model does not      the others finish their turn; then it is raised, or, if nobody calls
    answer                  again, the sub-agent stops
    anything else           (a hook, the journal) the others are cancelled and awaited
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from treadle.worker.agent import asking, tool_turn
from treadle.worker.agent import hooks as hooking
from treadle.worker.agent.core import nested
from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.core.conversation import ModelError
from treadle.worker.agent.core.decide import Advance
from treadle.worker.agent.core.entries import Entry, RoundEnded, Settled
from treadle.worker.agent.core.state import State
from treadle.worker.agent.events import tell_stop
from treadle.worker.agent.models.retrying import ModelBusy
from treadle.worker.agent.tools.outcomes import replaced
from treadle.worker.agent.tools.rendering import error_text

if TYPE_CHECKING:
    from treadle.worker.agent.driving import Driver
    from treadle.worker.agent.equipment import Equipment

PARALLEL_MAX = 16
"""Model calls of one round: more would mostly queue at the same provider."""

Where = Literal["turn", "stopped", "waiting"]


async def advance(
    equipment: Equipment, driver: Driver, action: Advance
) -> Literal["turn", "waiting"] | None:
    """Let the sub-agents begin, or take a turn each; return where the run stands with it.

    ``None``: it goes on at once, because all have ended or people have answered.
    Raises ``ModelError`` and ``ModelBusy`` for a model call that may succeed later.
    """
    await driver.look()
    read_to = driver.read_to
    if fresh := [call for call in action.calls if call.id not in driver.state.children]:
        return await _begin(equipment, driver, fresh)
    await _round(equipment, driver, action.calls)
    if not any(call.id in driver.state.children for call in action.calls):
        return None
    # Asked of the state alone: a round that was cut and gone on with ends like any other.
    if driver.state.is_round_open:
        await driver.append(RoundEnded(at_ms=driver.now_ms(), iteration=driver.iteration))
        return "turn"
    if action.asked and await asking.ask(equipment, driver, action.asked):
        return None
    # What has arrived since the round began may be for one of those that wait.
    return None if driver.read_to > read_to else "waiting"


async def _begin(
    equipment: Equipment, driver: Driver, calls: Sequence[ToolCall]
) -> Literal["turn"] | None:
    now_ms, trace_id = driver.now_ms(), driver.state.trace_id
    entries: list[Entry] = []
    begun: list[ToolCall] = []
    for call in calls:
        if reason := tool_turn.skip_reason(driver, call):
            entries.append(nested.unbegun(call, reason, now_ms))
            continue
        begun.append(call)
        opened = equipment.subagents[call.name].opened(call, now_ms, trace_id)
        entries += nested.wrapped(call.id, [opened])
    if begun:
        entries.append(RoundEnded(at_ms=now_ms, iteration=driver.iteration))
    await driver.append(*entries)
    for call in begun:
        driver.emitter.emit("agent.tool.started", id=call.id, tool=call.name)
        driver.emitter.nested(call.id).emit("agent_run.started")
    return "turn" if begun else None


# ------------------------------------------------------------------ a round


async def _round(equipment: Equipment, driver: Driver, calls: Sequence[ToolCall]) -> None:
    """Let each take its turn, unless an earlier attempt of this iteration has seen to it."""
    left = min(driver.steps_left(), 1 if equipment.sequential else PARALLEL_MAX)
    tasks: list[asyncio.Task[Where | ModelError | ModelBusy]] = []
    for call in calls:
        child = driver.state.children[call.id]
        if child.stopped is not None:
            await _settle(equipment, driver, call)
        elif child.ended_iteration == driver.iteration >= 0:
            continue
        elif child.answer is not None or left > 0:
            quota = max(0, min(nested.demand(child), left))
            left -= quota
            tasks.append(asyncio.create_task(_turn(equipment, driver, call, quota)))
    outcomes = await _together(tasks)
    faults = [each for each in outcomes if isinstance(each, (ModelError, ModelBusy))]
    if faults:
        # The longest wait serves all of them.
        raise max(
            faults, key=lambda fault: (isinstance(fault, ModelBusy), fault.fault.retry_after_s)
        )


async def _turn(
    equipment: Equipment, driver: Driver, call: ToolCall, quota: int
) -> Where | ModelError | ModelBusy:
    child = driver.child(call, quota)
    try:
        reached = await child.turn()
    except (ModelError, ModelBusy) as exc:
        if driver.is_retried:
            return exc
        reached = await child.stop("failed", str(exc), fault=exc.fault)
    if reached.where == "stopped":
        await _settle(equipment, driver, call)
    return reached.where


async def _together(
    tasks: Sequence[asyncio.Task[Where | ModelError | ModelBusy]],
) -> list[Where | ModelError | ModelBusy]:
    """Await all; once one raises, cancel the others. None is alive afterwards."""
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await _cancel(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()):
            raise error
    return [task.result() for task in tasks]


async def _cancel(tasks: Sequence[asyncio.Task[Where | ModelError | ModelBusy]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    if not pending:
        return
    try:
        await asyncio.wait(pending)
    except asyncio.CancelledError:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)
        raise


# ------------------------------------------------------------------ how it ends


async def _settle(equipment: Equipment, driver: Driver, call: ToolCall) -> None:
    """Give the call of a sub-agent that has stopped its result."""
    result = nested.result(equipment.spec, call, driver.state.children[call.id])
    try:
        result = await tool_turn.after_hook(equipment, call, result)
    except Exception as exc:  # noqa: BLE001 — a user's hook may raise anything
        # It may have been there to hide something: its failure shows nothing.
        text = f"The sub-agent ended, but a hook on its result failed: {error_text(exc)}"
        result = replaced(result, "error", text, "hook")
    await driver.append(Settled(at_ms=driver.now_ms(), result=result))
    _tell_result(driver, result)


async def tell_ends(
    equipment: Equipment, driver: Driver, before: State, entries: Sequence[Entry]
) -> None:
    """Tell everybody about the sub-agents that these entries have ended, the deepest first."""
    if not before.children:
        return
    for path, stopped in nested.stops_in(before, entries):
        emitter = driver.emitter
        for call in path:
            emitter = emitter.nested(call.id)
        tell_stop(emitter, stopped)
        ended = _equipment_of(equipment, path)
        if ended is not None and (on_stop := ended.hooks.on_stop) is not None:
            await hooking.call(on_stop, stopped)
    for entry in entries:
        if isinstance(entry, Settled) and entry.result.id in before.children:
            _tell_result(driver, entry.result)


def _equipment_of(equipment: Equipment, path: Sequence[ToolCall]) -> Equipment | None:
    """Return what the sub-agent at the end of those calls works with, if it is still there."""
    for call in path:
        if call.name not in equipment.subagents:
            return None  # The agent is another now than when the call was made.
        equipment = equipment.subagents[call.name].equipped(equipment, call)
    return equipment


def _tell_result(driver: Driver, result: ToolResult) -> None:
    driver.emitter.emit("agent.tool.ended", id=result.id, tool=result.name, status=result.status)
