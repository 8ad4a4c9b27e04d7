"""At which of its own bounds a parked step would stop again, and what raises them. Pure."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from treadle.sdk.client.raising import raise_past, used_text
from treadle.sdk.messages import ResumeRequested, Task
from treadle.sdk.spending import plus, raised, reached


class Bound(msgspec.Struct, frozen=True):
    """A bound of its own at which a step would stop again."""

    name: str
    used: str
    """What was used of it: ``5 iterations of at most 5``."""
    options: str
    """Of a resume that raises it past that."""


def bounds(task: Task, parked_ms: int) -> tuple[Bound, ...]:
    """Return the bounds that stop a parked task again, those that it shares left out."""
    found: list[Bound] = []
    if (over := task.iteration - task.max_iterations) >= 0:
        text = f"{task.iteration} iterations of at most {task.max_iterations}"
        found.append(Bound("max_iterations", text, f"--max-iterations +{10 + over}"))
    spent = plus(task.spent, task.spent_now)
    if task.deadline_ms and task.deadline_ms <= parked_ms:
        # Time that it was parked before does not count.
        began_ms = task.started_ms + task.parked_ms
        used, most = parked_ms - began_ms, task.deadline_ms - began_ms
        text = f"{used / 1000:g} s of at most {most / 1000:g} s"
        late_ms = parked_ms - task.deadline_ms
        options = raise_past("max_duration", task.limits, spent, late_ms)
        found.append(Bound("max_duration", text, options))
    if reason := reached(task.limits, spent):
        text = used_text(reason, task.limits, spent)
        found.append(Bound(reason, text, raise_past(reason, task.limits, spent, 0)))
    return tuple(found)


def asked(task: Task, request: ResumeRequested) -> Task:
    """Return a parked task with the bounds raised that a resume raises."""
    iterations = max(task.max_iterations, request.max_iterations) + request.add_iterations
    deadline_ms = task.deadline_ms
    if deadline_ms:
        began_ms = task.started_ms + task.parked_ms
        most_ms = max(deadline_ms - began_ms, request.max_duration_ms) + request.add_duration_ms
        deadline_ms = began_ms + most_ms
    limits = raised(task.limits, request.max_spending, request.add_spending)
    return replace(task, max_iterations=iterations, deadline_ms=deadline_ms, limits=limits)
