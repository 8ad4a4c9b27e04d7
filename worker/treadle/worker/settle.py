"""From a verdict to the event that tells the engine.

The event is stored until it is confirmed; only then may the task be acknowledged. A verdict's
output travels as the bytes the handler's return was encoded to.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, assert_never

import msgspec

from treadle.sdk import failpoints
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import InvalidPayload
from treadle.sdk.ids import new_nonce
from treadle.sdk.messages import (
    Failure,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    Task,
    TaskDue,
    TaskEvent,
    TaskLost,
)
from treadle.sdk.subjects import RegisterAddress, Subjects, settle_id
from treadle.worker.failure import describe, log_failure
from treadle.worker.held import HeldTask
from treadle.worker.verdict import Complete, Continue, Fail, HandlerVerdict, Wait

if TYPE_CHECKING:
    from treadle.worker.execution import Call

_log = logging.getLogger("treadle.worker")

SETTLE_BUDGET_S = 120.0
"""A finished execution may have cost minutes and money, so its result is offered for longer than
any restart or election takes; after that the task is left to redelivery."""


class Settler:
    """Stores what became of tasks. Each thread has its own, on its own connection."""

    def __init__(self, js: JetStream, subjects: Subjects, worker: str) -> None:
        self._js = js
        self._subjects = subjects
        self._worker = worker
        self._encode = msgspec.json.Encoder().encode

    async def settle(self, held: HeldTask, verdict: HandlerVerdict) -> None:
        """Store the verdict; raise ``ServerUnavailable`` when that stays unknown."""
        failpoints.reach("worker.settle-before")
        if isinstance(verdict, Fail):
            log_failure(held, verdict)
        verb, event = self._event(held, verdict)
        try:
            await self._store(held.address, event, verb)
        except InvalidPayload as exc:
            await self._store_less(held, verdict, exc)
        failpoints.reach("worker.settle-stored")

    async def _store_less(
        self, held: HeldTask, verdict: HandlerVerdict, refusal: InvalidPayload
    ) -> None:
        """Store a verdict that passed our limit but not this server's, or that it did not."""
        if held.call is not None and held.call.content:
            # What is only for people to look at never costs a result.
            held.call.content = {}
            verb, event = self._event(held, verdict)
            try:
                await self._store(held.address, event, verb)
            except InvalidPayload as exc:
                refusal = exc
            else:
                _log.info(
                    "worker.content-left-out run=%s step=%s: with it the verdict is too large",
                    held.address.run,
                    held.address.step,
                )
                return
        refused = Fail(describe(refusal))
        log_failure(held, refused)
        verb, event = self._event(held, refused)
        await self._store(held.address, event, verb)

    async def lost(
        self, address: RegisterAddress, task: Task, token: int, reason: str, queued_us: int
    ) -> None:
        """Store that the execution holding the token will not settle."""
        event = TaskLost(
            step=address.step,
            type=address.type,
            token=token,
            iteration=task.iteration,
            attempt=task.attempt,
            worker=self._worker,
            reason=reason,
            queued_us=queued_us if task.trace else 0,
        )
        await self._store(address, event, "lost")

    async def due(self, address: RegisterAddress, task: Task, token: int) -> None:
        """Store that the delay of the register at the token is over."""
        event = TaskDue(
            step=address.step,
            type=address.type,
            token=token,
            iteration=task.iteration,
            attempt=task.attempt,
            worker=self._worker,
        )
        await self._store(address, event, "due")

    async def look(self, address: RegisterAddress, token: int) -> None:
        """Store an event that makes the engine read the register, and moves nothing by itself."""
        await self._store(
            address, TaskDue(step=address.step, type=address.type, token=token), "due"
        )

    async def _store(self, address: RegisterAddress, event: TaskEvent, verb: str) -> None:
        await self._js.store(
            self._subjects.event(address.run, address.domain),
            self._encode(event),
            # Fresh per execution: a publish retried after a lost acknowledgement is recognised,
            # another execution's is not swallowed.
            message_id=settle_id(address.run, address.step, event.iteration, verb, new_nonce()),
            budget_s=SETTLE_BUDGET_S,
        )

    def _event(self, held: HeldTask, verdict: HandlerVerdict) -> tuple[str, TaskEvent]:
        common = self._common(held)
        match verdict:
            case Continue(output, delay_ms):
                raw = msgspec.Raw(output)
                return "continue", StepContinued(**common, output=raw, delay_ms=delay_ms)
            case Wait(output, reason, due_ms, asks, counts, line):
                return "wait", StepWaiting(
                    **common,
                    output=msgspec.Raw(output),
                    reason=reason,
                    due_ms=due_ms,
                    asks=asks,
                    uncounted=not counts,
                    line=line,
                )
            case Complete(output, chunk):
                raw = msgspec.Raw(output)
                return "complete", StepCompleted(**common, output=raw, chunk=chunk)
            case Fail(failure=failure):
                return "fail", StepFailed(**common, failure=failure)
            case _:
                assert_never(verdict)

    def _common(self, held: HeldTask) -> dict[str, Any]:
        task, address, call = held.task, held.address, held.call
        common: dict[str, Any] = {
            "step": address.step,
            "type": address.type,
            "token": held.token,
            "iteration": task.iteration,
            "attempt": task.attempt,
            "worker": self._worker,
            "head": held.head,
        }
        if task.trace:
            common |= {"queued_us": held.queued_us, "taken_us": held.taken_us}
        # None if it was never executed. Another thread may settle in the worker's stead: each of
        # these is one value that is read once.
        if call is not None:
            common |= told_by(call)
        return common


def told_by(call: Call) -> dict[str, Any]:
    """Return what an execution tells beside its verdict: what it has used, and has seen."""
    return {
        "spent": call.spent_now,
        "seen": call.seen,
        "takes_messages": call.takes_messages,
        "parts": call.parts,
        "content": call.content,
    }


def timeout_failure(task: Task) -> Failure:
    """Return the failure of an attempt that ran longer than its ``timeout``."""
    return Failure(
        type="timeout",
        message=(
            f"attempt {task.attempt}{f' of iteration {task.iteration}' if task.loop else ''} ran "
            f"longer than its timeout of {task.timeout_ms / 1000:g} s and was stopped"
        ),
    )
