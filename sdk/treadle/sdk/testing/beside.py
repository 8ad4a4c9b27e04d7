"""What executions store beside their register: checkpoints and the records of journals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.sdk.errors import InvariantError
from treadle.sdk.messages import Checkpoint, Task
from treadle.worker.execution import Fenced, Record

if TYPE_CHECKING:
    from treadle.sdk.testing.world import World


class Beside:
    """The checkpoints and journals of one run, under the fence of its registers."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._checkpoints: dict[str, Checkpoint] = {}
        self._records: dict[str, list[Record]] = {}
        self._newest: dict[str, int] = {}
        """Sequence of the newest checkpoint or record, by step."""

    def head(self, step_id: str) -> int:
        """Return the newest sequence of a step, its register's included."""
        return max(self._world.token(step_id), self._newest.get(step_id, 0))

    def load(self, step_id: str, task: Task) -> Checkpoint | None:
        """Return the checkpoint that stands; raise ``Fenced`` for a stale task."""
        stored = self._checkpoints.get(step_id)
        if stored is not None and stored.iteration > task.iteration:
            raise Fenced("the step has moved on")
        return stored

    def save(self, step_id: str, head: int, checkpoint: Checkpoint) -> int:
        """Store a checkpoint over ``head``; raise ``Fenced`` if the pair has moved."""
        sequence = self._over(step_id, head)
        self._checkpoints[step_id] = checkpoint
        return sequence

    def append(self, step_id: str, head: int, number: int, record: Record) -> int:
        """Store a record of the step's journal; raise ``Fenced`` if the step has moved."""
        records = self._records.setdefault(step_id, [])
        sequence = self._over(step_id, head)
        if number != len(records):
            raise InvariantError(f"record {number} follows {len(records)} records")
        records.append(record)
        return sequence

    def records(self, step_id: str) -> list[Record]:
        """Return the step's journal."""
        return list(self._records.get(step_id, []))

    def _over(self, step_id: str, head: int) -> int:
        if self.head(step_id) != head:
            raise Fenced("the step has moved on")
        self._newest[step_id] = self._world.next_sequence()
        return self._newest[step_id]
