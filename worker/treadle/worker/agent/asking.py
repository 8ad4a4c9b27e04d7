"""Questions to people: asked once, answered in any order, escalated and expired at their times.

The first answer to a question counts. One that cannot be taken goes back to the person who gave
it, with the reason, and the question stays open; the model hears of answers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.sdk.asks import Reply
from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.entries import Asked, Escalated, Refused, Replied
from treadle.worker.agent.core.nested import address
from treadle.worker.agent.ports import Letter
from treadle.worker.agent.tools.canonical import well_formed

if TYPE_CHECKING:
    from treadle.worker.agent.driving import Driver
    from treadle.worker.agent.equipment import Equipment

SHOWN_CHARS = 12
"""Of a hash, for people."""


async def ask(equipment: Equipment, driver: Driver, calls: tuple[ToolCall, ...]) -> bool:
    """Take the answers that are there, or what their absence means; return whether some was."""
    new = [call for call in calls if call.id not in driver.state.asking]
    # What may have run is another question than whether it may run: an earlier answer is none.
    for group in (
        [call for call in new if call.decision != "uncertain"],
        [call for call in new if call.decision == "uncertain"],
    ):
        if group:
            await _begin(equipment, driver, group)
    by_id = {call.id: call for call in calls}
    answered = False
    for letter in await driver.take("reply"):
        call = by_id.get(letter.call_id)
        asking = driver.state.asking.get(letter.call_id)
        if call is None or asking is None or letter.sequence <= asking.after:
            continue
        entry = await _taken(equipment, driver, call, letter)
        await driver.append(entry)
        if isinstance(entry, Refused):
            id = address(driver.emitter.path, call.id)
            driver.emitter.emit("agent_run.answer_refused", id=id, problem=entry.problem)
        answered = answered or isinstance(entry, Replied)
    return answered or await _unanswered(equipment, driver, calls)


async def _begin(equipment: Equipment, driver: Driver, calls: Sequence[ToolCall]) -> None:
    after = 0
    if calls[0].decision == "uncertain":
        await driver.look()
        after = driver.read_to
    now_ms = driver.now_ms()
    # Told before it is stored: who dies in between tells it again, and nobody is left waiting.
    path = driver.emitter.path
    driver.emitter.emit("agent_run.waiting", calls=[_question(path, call) for call in calls])
    await driver.append(
        Asked(
            at_ms=now_ms,
            call_ids=tuple(call.id for call in calls),
            due_ms=equipment.approval_due_ms(now_ms),
            levels=equipment.escalation_levels(now_ms),
            after=after,
        )
    )


async def _unanswered(equipment: Equipment, driver: Driver, calls: tuple[ToolCall, ...]) -> bool:
    """Escalate or expire what is due; return whether something has expired."""
    now_ms = driver.now_ms()
    expired: list[Replied] = []
    risen: dict[int, list[str]] = {}
    for call in calls:
        if (asking := driver.state.asking.get(call.id)) is None:
            continue
        if 0 < asking.due_ms <= now_ms:
            expired.append(_overdue(equipment, call, now_ms))
        elif (level := asking.reached(now_ms)) > asking.level:
            risen.setdefault(level, []).append(call.id)
    for level, ids in sorted(risen.items()):
        to = driver.state.asking[ids[0]].levels[level - 1].to
        named = [address(driver.emitter.path, id) for id in ids]
        driver.emitter.emit("agent_run.escalated", ids=named, level=level, to=to)
        await driver.append(Escalated(at_ms=now_ms, call_ids=tuple(ids), level=level))
    if expired:
        await driver.append(*expired)
    return bool(expired)


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


async def _taken(
    equipment: Equipment, driver: Driver, call: ToolCall, letter: Letter
) -> Replied | Refused:
    """Return the answer as an entry: taken, or refused with what is wrong with it."""
    at_ms, reply = driver.now_ms(), letter.reply
    if reply is None:
        problem = f"it is no answer: {letter.text}"
        return Refused(at_ms=at_ms, call_id=call.id, problem=problem, seen=letter.sequence)
    refused = Refused(
        at_ms=at_ms,
        call_id=call.id,
        problem=_misfit(call, reply),
        by=well_formed(reply.by),
        seen=letter.sequence,
    )
    if refused.problem:
        return refused
    edited: ToolCall | None = None
    if reply.verdict == "approve" and reply.input is not None:
        edited = await equipment.judge_edited(driver.state, call, reply.input)
        if edited.decision != "execute":
            return msgspec.structs.replace(
                refused, problem=edited.reason or "They are not allowed."
            )
    return Replied(
        at_ms=at_ms,
        call_id=call.id,
        verdict=reply.verdict,
        args_hash=reply.args_hash,
        input=edited.input if edited is not None else None,
        input_hash=edited.args_hash if edited is not None else "",
        text=well_formed(reply.text),
        by=well_formed(reply.by),
        seen=letter.sequence,
    )


def _misfit(call: ToolCall, reply: Reply) -> str:
    """Return why the reply is no answer to what is asked; '' if it is one."""
    if reply.verdict == "approve" and reply.args_hash != call.args_hash:
        return (
            f"it approves arguments of hash {reply.args_hash[:SHOWN_CHARS] or 'none'}, and these "
            f"have {call.args_hash[:SHOWN_CHARS]}. Look at them again."
        )
    if reply.verdict == "approve" and call.decision == "question":
        return "it approves a question, which has nothing to run. Answer it, or reject it."
    is_approval = reply.verdict == "approve" and call.decision == "needs_approval"
    if reply.input is not None and not is_approval:
        return (
            "it has other arguments, and only the approval of a call that has not begun can have "
            "them."
        )
    return ""
