"""The limits of a step: what shares them, with which keys, and what they make of a dispatch.

    any value that would be given out ──a limit──> Queued ──granted──> Task
                                                      └──too early──> Delayed | Sleeping

A step's keys are asked once, when it begins; a key that has no value fails the step like a
condition would. Slots are taken in one order, the narrow limits first, so that nobody waits for a
broad one while it keeps others of its own from a narrow one, and no two wait for each other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from treadle.engine.core.moment import Moment
from treadle.sdk import conditions, wording
from treadle.sdk.conditions import ConditionError
from treadle.sdk.definition import Step, TypedStep
from treadle.sdk.flow import PRIORITY_MAX, Concurrency, RateLimit, key_that_names
from treadle.sdk.messages import (
    Ended,
    Flow,
    LiveRegister,
    Queued,
    RateClaim,
    Register,
    SlotClaim,
    Task,
)

KEY_CHARS = 24
"""Hexadecimal digits, 96 bits: no two limits meet by chance."""
SHOWN_CHARS_MAX = 60
_BREADTH = {"step": 0, "workflow": 1, "type": 2, "namespace": 3}


class SlotsGranted(msgspec.Struct, frozen=True):
    """Every slot of a queued register is held; it is given out."""

    token: int


class RateDeferred(msgspec.Struct, frozen=True):
    """A queued register came too early for its rates: it is given out at this time."""

    token: int
    due_ms: int


def is_limited(step: Step) -> bool:
    """True for a step whose tasks wait for limits."""
    return isinstance(step, TypedStep) and bool(step.concurrency or step.rate_limits)


def resolve(
    workflow: str,
    step: TypedStep,
    run_input: object,
    outputs: Mapping[str, object],
    run_priority: int = 0,
) -> Flow:
    """Return the limits of a step with the values of their keys; raise ``ConditionError``.

    ``workflow`` is the name of the one that the step belongs to.
    """
    slots: list[tuple[tuple[bool, int, str], SlotClaim]] = []
    for limit in step.concurrency:
        key, label = _named(workflow, step, limit, run_input, outputs)
        claim = SlotClaim(key, label, limit.limit)
        slots.append(((not limit.key, _BREADTH[limit.scope], key), claim))
    fair = _text(step.fair_by, run_input, outputs) if step.fair_by else ""
    return Flow(
        slots=tuple(claim for _, claim in sorted(slots, key=lambda each: each[0])),
        rates=tuple(_rate(workflow, step, limit, run_input, outputs) for limit in step.rate_limits),
        priority=run_priority or _priority(step.priority, run_input, outputs),
        fair=fair,
        weight=step.weights.get(fair, 1.0),
    )


def gated(register: Register, moment: Moment) -> Register:
    """Return a new value of a register; a task under limits waits for them first."""
    if not isinstance(register, Task) or register.flow is None:
        return register
    # What its rates let wait goes on waiting: it is the same dispatch.
    queued_ms = register.queued_ms if register.reserved_ms else 0
    task = msgspec.structs.replace(register, claim=0, queued_ms=queued_ms)
    return Queued(parent=register.parent, task=task, since_ms=moment.ms)


def granted(queued: Queued, event: SlotsGranted, moment: Moment) -> Task:
    """Return the task of a queued register that holds all its slots."""
    return msgspec.structs.replace(
        queued.task,
        parent=moment.id,
        claim=event.token,
        reserved_ms=0,
        queued_ms=queued.task.queued_ms + max(0, moment.ms - queued.since_ms),
    )


def grant_moment(run: str, token: int, queued: Queued, now_ms: int) -> Moment:
    """Return the moment of what follows a queued register: one id for every engine.

    It is later than the event that queued it, whatever the engine's clock says.
    """
    return Moment(run, f"l{token}", max(now_ms, queued.since_ms + 1), token)


def below(register: Register, position: int) -> int:
    """Return the token below which a register holds no slot, given its value at a sequence."""
    if isinstance(register, Task):
        return register.claim or position
    return position


def slots_of(register: Register) -> tuple[str, ...]:
    """Return the keys of the limits in which a register may have a slot."""
    if isinstance(register, Ended):
        return register.slots
    flow = _task(register).flow
    return tuple(claim.key for claim in flow.slots) if flow else ()


def weight_of(task: Task) -> int:
    """Return how many executions a task counts as: a chunk of a map as many as it has items."""
    return task.chunk.count if task.chunk is not None else 1


def is_timely(task: Task, now_ms: int) -> bool:
    """True while the time that its rates gave a dispatch still counts."""
    if not task.reserved_ms or task.flow is None:
        return False
    period_ms = min((rate.period_ms for rate in task.flow.rates), default=0)
    return task.reserved_ms <= now_ms <= task.reserved_ms + period_ms


def line_of(flow: Flow) -> str:
    """Return the name of the line in which a step with these limits waits."""
    return f"{flow.priority + PRIORITY_MAX:03d}-{_digest(flow.fair)[:12] if flow.fair else '0'}"


def _task(register: LiveRegister) -> Task:
    return register if isinstance(register, Task) else register.task


def _named(
    workflow: str,
    step: TypedStep,
    limit: Concurrency | RateLimit,
    run_input: object,
    outputs: Mapping[str, object],
) -> tuple[str, str]:
    owner = {
        "step": f"{workflow}/{step.id}",
        "workflow": workflow,
        "type": step.type,
        "namespace": "",
    }[limit.scope]
    kind = "rate" if isinstance(limit, RateLimit) else "slots"
    parts = [kind, limit.scope, owner, limit.name, key_that_names(limit)]
    label = " ".join(part for part in (limit.scope, owner, limit.name) if part)
    if limit.key:
        value = _text(limit.key, run_input, outputs)
        parts.append(value)
        shown = value if len(value) <= SHOWN_CHARS_MAX else f"{value[:SHOWN_CHARS_MAX]}…"
        label = f"{label} [{shown}]"
    return _digest("\x1f".join(parts)), label


def _rate(
    workflow: str,
    step: TypedStep,
    limit: RateLimit,
    run_input: object,
    outputs: Mapping[str, object],
) -> RateClaim:
    key, label = _named(workflow, step, limit, run_input, outputs)
    interval_us = max(1, round(limit.per_s * 1_000_000 / limit.limit))
    burst = limit.burst or limit.limit
    return RateClaim(key, label, interval_us, burst, round(limit.per_s * 1000))


def _text(expression: str, run_input: object, outputs: Mapping[str, object]) -> str:
    """Return the value of a key: texts, numbers and truth values are good for one."""
    value = conditions.value_of(expression, run_input, outputs)
    if value is None or isinstance(value, str | bool | int | float):
        return conditions.as_key(expression, value)
    raise ConditionError(
        f"key {expression} gives a {type(value).__name__}, and a key is a text or a number. Name "
        "a part of it."
    )


def _priority(expression: str, run_input: object, outputs: Mapping[str, object]) -> int:
    if not expression:
        return 0
    value = conditions.value_of(expression, run_input, outputs)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > PRIORITY_MAX:
        raise ConditionError(
            f"priority {expression} gives {wording.shown(value)}, and a priority is a "
            f"whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}. Correct it."
        )
    return value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_CHARS]
