"""Questions to people: asked once, answered in any order, expired at their time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.entries import Asked, Replied
from treadle.worker.agent.core.nested import address
from treadle.worker.agent.ports import Letter
from treadle.worker.agent.tools.canonical import args_hash, well_formed, well_formed_json

if TYPE_CHECKING:
    from treadle.worker.agent.driving import Driver
    from treadle.worker.agent.equipment import Equipment


async def ask(equipment: Equipment, driver: Driver, calls: tuple[ToolCall, ...]) -> bool:
    """Take the answers that are there; return whether there was one."""
    if driver.state.asked is None:
        due_ms = equipment.approval_due_ms(driver.now_ms())
        ids = tuple(call.id for call in calls)
        await driver.append(Asked(at_ms=driver.now_ms(), call_ids=ids, due_ms=due_ms))
        path = driver.emitter.path
        questions = [_question(path, call) for call in calls]
        driver.emitter.emit("agent_run.waiting", calls=questions)
    asked = {call.id: call for call in calls}
    answered = False
    for letter in await driver.take("reply"):
        if letter.reply is not None and letter.reply.call_id in asked:
            call = asked[letter.reply.call_id]
            if (entry := _accepted(call, letter, driver.now_ms())) is not None:
                await driver.append(entry)
                answered = True
    due_ms = driver.state.asked.due_ms if driver.state.asked is not None else 0
    if not answered and due_ms and driver.now_ms() >= due_ms:
        await driver.append(*(_overdue(equipment, call, driver.now_ms()) for call in calls))
        return True
    return answered


def _overdue(equipment: Equipment, call: ToolCall, at_ms: int) -> Replied:
    is_approvable = call.decision == "needs_approval"
    verdict = equipment.approval_default if is_approvable else "expired"
    return Replied(at_ms=at_ms, call_id=call.id, verdict=verdict, args_hash=call.args_hash)


def _question(path: str, call: ToolCall) -> dict[str, Any]:
    """Return what a person has to see to decide: an approval is bound to ``args_hash``."""
    return {
        "id": address(path, call.id),
        "name": call.name,
        "input": call.input,
        "args_hash": call.args_hash,
        "decision": call.decision,
        "reason": call.reason,
    }


def _accepted(call: ToolCall, letter: Letter, at_ms: int) -> Replied | None:
    """Return the reply as an entry, unless it is about other arguments than the call's."""
    reply = letter.reply
    assert reply is not None
    if reply.verdict == "approve" and reply.args_hash != call.args_hash:
        return None
    edited = None if reply.input is None else well_formed_json(reply.input)
    return Replied(
        at_ms=at_ms,
        call_id=call.id,
        verdict=reply.verdict,
        args_hash=reply.args_hash,
        input=edited,
        input_hash=args_hash(edited) if edited is not None else "",
        text=well_formed(reply.text),
        by=reply.by,
        seen=letter.sequence,
    )
