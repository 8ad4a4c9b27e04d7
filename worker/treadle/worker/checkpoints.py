"""Checkpoints: written beside the register, under the same fence.

Every writer of the pair (register and checkpoint) names the newest sequence of it that it knows,
so a write is refused once the step has moved or another execution of the task has saved:

    stored            go on; the sequence is the new head
    refused, mine     an earlier try was stored and its acknowledgement was lost: go on
    refused, other    stop at once; nothing is settled and nothing acknowledged. If the step has
                      moved, its task is gone with the register's old value; if another
                      execution holds it, the redelivery decides
    no answer         read back: mine, other, or try again
"""

from __future__ import annotations

import asyncio

import msgspec

from treadle.sdk import failpoints
from treadle.sdk.bus.jetstream import CasResult, JetStream, Stored
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.ids import new_nonce
from treadle.sdk.messages import Checkpoint
from treadle.sdk.stored import read
from treadle.sdk.subjects import Subjects
from treadle.worker.execution import Fenced
from treadle.worker.held import HeldTask
from treadle.worker.step_cache import StepCache

SAVE_BUDGET_S = 60.0
"""As for a settle, the work behind a checkpoint is worth waiting out an election or a restart."""


class CheckpointStore:
    """Reads and writes checkpoints for the tasks this process holds."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._cache = StepCache[Checkpoint]()
        self._encode = msgspec.json.Encoder().encode
        self._decoder = msgspec.json.Decoder(Checkpoint)

    async def load(self, held: HeldTask) -> Checkpoint | None:
        """Return the checkpoint that stands; raise ``Fenced`` if it is newer than the task."""
        address, task = held.address, held.task
        if task.checkpoint == 0:
            return None
        if task.checkpoint > 0:
            cached = self._cache.get(address.run, address.step, task.checkpoint)
            if cached is not None:
                return cached
        subject = self._subjects.checkpoint(address.run, address.step, address.domain)
        stored = await self._js.last(self._subjects.steps_stream, subject)
        if stored is None:
            return None
        checkpoint = read(self._decoder, stored)
        if checkpoint.iteration > task.iteration:
            raise Fenced(
                f"the checkpoint is of iteration {checkpoint.iteration} and the task of iteration "
                f"{task.iteration}: the step has moved on"
            )
        if stored.sequence > held.token and checkpoint.token != held.token:
            # Named as the head, it would carry this execution past its own fence.
            raise Fenced(
                f"the checkpoint at sequence {stored.sequence} was saved for the task at "
                f"{checkpoint.token}, and this task is at {held.token}: the step has moved on"
            )
        # Another execution of this very task may have saved. Building on it is safe: what
        # follows names it as the head.
        held.head = max(held.head, stored.sequence)
        self._cache.put(address.run, address.step, stored.sequence, checkpoint, len(stored.data))
        return checkpoint

    async def save(self, held: HeldTask, state: bytes) -> Checkpoint:
        """Store a checkpoint and return it; raise ``Fenced`` if another write came first."""
        if held.saving is None:
            held.saving = asyncio.Lock()
        async with held.saving:
            failpoints.reach("worker.checkpoint-before")
            checkpoint = Checkpoint(
                iteration=held.task.iteration,
                attempt=held.task.attempt,
                token=held.token,
                nonce=new_nonce(),
                state=msgspec.Raw(state),
            )
            result = await self._write(held, checkpoint)
            if result.stored is None:
                raise Fenced(self._why_fenced(held, result))
            held.head = result.stored.sequence
            run, step = held.address.run, held.address.step
            self._cache.put(run, step, held.head, checkpoint, len(state))
            failpoints.reach("worker.checkpoint-stored")
            return checkpoint

    async def _write(self, held: HeldTask, checkpoint: Checkpoint) -> CasResult:
        address = held.address
        return await self._js.compare_and_set(
            self._subjects.steps_stream,
            self._subjects.checkpoint(address.run, address.step, address.domain),
            self._encode(checkpoint),
            expected=held.head,
            filter=self._subjects.pair(address.run, address.step, address.domain),
            is_mine=lambda data: self._is_written_as(data, checkpoint.nonce),
            budget_s=SAVE_BUDGET_S,
        )

    def _why_fenced(self, held: HeldTask, result: CasResult) -> str:
        other = result.head
        if (
            other is not None
            and other.sequence > held.head
            and self._iteration_of(other) == held.task.iteration
        ):
            return f"another execution of the task saved first, at sequence {other.sequence}"
        return f"the step has moved on from sequence {held.head} to {result.newest}"

    def _is_written_as(self, data: bytes, nonce: str) -> bool:
        try:
            return self._decoder.decode(data).nonce == nonce
        except (ValueError, RecursionError):
            return False

    def _iteration_of(self, stored: Stored) -> int:
        try:
            return read(self._decoder, stored).iteration
        except StoredUnreadable:
            return -1
