"""From a verdict to the event that tells the engine.

The event is stored until it is confirmed; only then may the task be acknowledged. A verdict's
output travels as the bytes the handler's return was encoded to.
"""

from __future__ import annotations

from typing import assert_never

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
    Task,
    TaskDue,
    TaskEvent,
    TaskLost,
)
from treadle.sdk.subjects import RegisterAddress, Subjects, settle_id
from treadle.worker.failure import describe
from treadle.worker.held import HeldTask
from treadle.worker.verdict import Complete, Continue, Fail, HandlerVerdict

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
        verb, event = self._event(held, verdict)
        try:
            await self._store(held.address, event, verb)
        except InvalidPayload as exc:
            # It passed our limit but not this server's.
            verb, event = self._event(held, Fail(describe(exc)))
            await self._store(held.address, event, verb)
        failpoints.reach("worker.settle-stored")

    async def lost(self, address: RegisterAddress, task: Task, token: int, reason: str) -> None:
        """Store that the execution holding the token will not settle."""
        event = TaskLost(
            step=address.step,
            type=address.type,
            token=token,
            iteration=task.iteration,
            attempt=task.attempt,
            worker=self._worker,
            reason=reason,
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
        task, address = held.task, held.address
        match verdict:
            case Continue(output, delay_ms):
                return "continue", StepContinued(
                    step=address.step,
                    type=address.type,
                    token=held.token,
                    iteration=task.iteration,
                    attempt=task.attempt,
                    worker=self._worker,
                    head=held.head,
                    output=msgspec.Raw(output),
                    delay_ms=delay_ms,
                )
            case Complete(output):
                return "complete", StepCompleted(
                    step=address.step,
                    type=address.type,
                    token=held.token,
                    iteration=task.iteration,
                    attempt=task.attempt,
                    worker=self._worker,
                    head=held.head,
                    output=msgspec.Raw(output),
                )
            case Fail(failure):
                return "fail", StepFailed(
                    step=address.step,
                    type=address.type,
                    token=held.token,
                    iteration=task.iteration,
                    attempt=task.attempt,
                    worker=self._worker,
                    head=held.head,
                    failure=failure,
                )
            case _:
                assert_never(verdict)


def timeout_failure(task: Task) -> Failure:
    """Return the failure of an attempt that ran longer than its ``timeout``."""
    return Failure(
        type="timeout",
        message=(
            f"attempt {task.attempt} of iteration {task.iteration} ran longer than its timeout of "
            f"{task.timeout_ms / 1000:g} s and was stopped"
        ),
    )
