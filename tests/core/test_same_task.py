"""Whatever comes of a step, each of its tasks carries what the definition says of it.
Method: lives of steps; what no event may change is compared with the first task."""

from __future__ import annotations

import msgspec
from hypothesis import given
from tests.core import strategies as own
from tests.core.moves import moves
from tests.core.walks import StepWalk

from treadle.engine.core.bounds import task_of
from treadle.sdk.definition import AgentLoopStep, TaskStep
from treadle.sdk.messages import Ended, Parked, Task

Moves = list[tuple[str, dict[str, object]]]

LASTING = (
    "workflow",
    "definition",
    "loop",
    "started_ms",
    "timeout_ms",
    "budget_warn_at",
    "budget_force_at",
)
"""What a step is given once. Its bounds, ``max_iterations``, ``deadline_ms`` and ``limits``, are
raised by a resume, and by nothing else."""


def _lasting(task: Task) -> dict[str, object]:
    return {name: getattr(task, name) for name in LASTING}


@given(own.work_steps(), moves())
def test_first_dispatch_retry_iteration_and_delay_carry_the_same(
    step: TaskStep | AgentLoopStep, moves: Moves
) -> None:
    if isinstance(step, AgentLoopStep):
        step = msgspec.structs.replace(step, budget_warn_at=1, budget_force_at=2)
    walk = StepWalk(step)
    first = walk.now
    assert isinstance(first, Task)
    assert first.workflow
    assert first.definition
    assert first.timeout_ms == round(step.timeout_s * 1000)
    for verb, arguments in moves:
        before, after = walk.now, getattr(walk, verb)(**arguments)
        if isinstance(before, Ended) or isinstance(after, Ended):
            return
        task = task_of(after)
        assert _lasting(task) == _lasting(first)
        # A resume raises the bounds, and the wrapping-up iteration has a time limit of its own.
        if not task.wrap_up and not isinstance(before, Parked):
            old = task_of(before)
            assert (task.max_iterations, task.deadline_ms) == (old.max_iterations, old.deadline_ms)
            assert task.limits == old.limits
