"""What steps of the simulated world are given and put out, from where it is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.engine.core import Placed
from treadle.engine.core.maps import output_of
from treadle.sdk.definition import MapStep, Step, SubWorkflowStep, WaitStep
from treadle.sdk.errors import InvariantError
from treadle.sdk.gathering import Part, gather
from treadle.sdk.given import failed_before, given_by, shape_of
from treadle.sdk.messages import Ended, Inline
from treadle.sdk.plans import result_of
from treadle.sdk.run import RunDocument, kept_output
from treadle.sdk.shape import Shape, assembled, leaves
from treadle.sdk.subjects import chunk_id
from treadle.worker.execution import Record

if TYPE_CHECKING:
    from treadle.sdk.testing.world import World


class Outputs:
    """What the steps of a run are given, and what they put out."""

    def __init__(self, world: World) -> None:
        self._world = world

    def input_of(self, step_id: str) -> Inline:
        """Return the input of a step whose turn it is, or was."""
        assert self._world.run is not None
        step = self._world.plan.steps[step_id]
        if failed := failed_before(self._world.plan, self._world.run, step):
            return Inline(msgspec.Raw(msgspec.json.encode(failed)))
        shape = shape_of(self._world.plan, self._world.run, step)
        return Inline(self._world.input if shape is None else self.put_together(shape))

    def put_together(self, shape: Shape) -> msgspec.Raw:
        """Return the value of a shape, of the outputs that it names."""
        values = {
            leaf: given_by(self._world.plan, leaf) or bytes(self._own(leaf))
            for leaf in leaves(shape)
        }
        return msgspec.Raw(assembled(shape, values))

    def named(self, shapes: Mapping[str, Shape]) -> dict[str, Any]:
        """Return the values of shapes, as ``steps`` of an expression has them."""
        return {name: msgspec.json.decode(self.put_together(of)) for name, of in shapes.items()}

    def left(self, step_id: str) -> msgspec.Raw:
        """Return what a step that is over has left, also one that failed at a bound."""
        assert self._world.run is not None
        placed, entry = self._world.registers.get(step_id), self._world.run.steps.get(step_id)
        is_completed = entry is not None and entry.status == "completed"
        if isinstance(self._world.plan.steps[step_id], MapStep) and not is_completed:
            return msgspec.Raw(b"null")
        ended = placed.register if placed else None
        return ended.output if isinstance(ended, Ended) else self.output(step_id)

    def output(self, step_id: str) -> msgspec.Raw:
        """Return the output of a step that has ended; of a planner, the result of its plan."""
        assert self._world.run is not None
        return self.put_together(result_of(self._world.plan.plans, self._world.run, step_id))

    def _own(self, step_id: str) -> msgspec.Raw:
        assert self._world.run is not None
        step, records = self._world.plan.steps[step_id], self._world.beside.records
        return _put_out(step, self._world.run, self._world.registers, self._world.payloads, records)


def _put_out(
    step: Step,
    run: RunDocument,
    registers: Mapping[str, Placed],
    payloads: Mapping[int, msgspec.Raw],
    records: Callable[[str], list[Record]],
) -> msgspec.Raw:
    """Return the output of a step that is over; ``null`` if it has none."""
    if (held := kept_output(run, step)) is not None:
        return msgspec.Raw(held)
    if isinstance(step, WaitStep | SubWorkflowStep):
        return payloads[int(run.steps[step.id].event[1:])]
    if isinstance(step, MapStep):
        names = (chunk_id(step.id, n) for n in range(run.maps[step.id].chunks))
        parts = (_part(_ended(registers, name), records(name)) for name in names)
        return msgspec.Raw(gather(parts, output_of(step, run)))
    return _ended(registers, step.id).output


def _ended(registers: Mapping[str, Placed], name: str) -> Ended:
    register = registers[name].register
    if not isinstance(register, Ended):
        raise InvariantError(f"step {name!r} has not ended")
    return register


def _part(ended: Ended, records: list[Record]) -> Part:
    count = ended.chunk.records if ended.chunk else 0
    return Part(ended, [record.body for record in records[:count]])
