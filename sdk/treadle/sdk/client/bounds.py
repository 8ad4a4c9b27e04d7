"""Which bounds stop a parked step again, and the commands that raise them. Pure.

Of its own, those of the newer version it would go on under, and the budgets of its run and of those
above, which it shares: all are told at once. Who is told of one at a time raises one, and is
refused for the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from treadle.sdk import spending
from treadle.sdk.client.raising import Raise, past, past_duration, past_iterations, used_text
from treadle.sdk.messages import Parked, Register, ResumeRequested, Task
from treadle.sdk.spending import RUN_BUDGET, SharedBudget, plus


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A bound at which a step would stop again."""

    name: str
    used: str
    """What was used of it: ``5 iterations of at most 5``."""
    past: Raise
    """What raises it above that."""
    run: str = ""
    """Whose budget it is part of; empty for a bound of the step's own."""


class Stops(msgspec.Struct, frozen=True, kw_only=True):
    """What stops a parked step again if it is resumed as it is."""

    bounds: tuple[Bound, ...] = ()
    version: str = ""
    """The newer version under which it would go on; empty is its own."""


NO_STOPS = Stops()
NOT_AT_ALL = Raise()


def bounds(task: Task, parked_ms: int) -> tuple[Bound, ...]:
    """Return every bound that stops a parked task again, its own before those that it shares."""
    found: list[Bound] = []
    if (over := task.iteration - task.max_iterations) >= 0:
        done, most = task.counted, task.counted_max
        text = f"{done} iterations of at most {most}"
        found.append(Bound(name="max_iterations", used=text, past=past_iterations(over)))
    if task.deadline_ms and task.deadline_ms <= parked_ms:
        # Time that it was parked before does not count.
        began_ms = task.started_ms + task.parked_ms
        used, limit = parked_ms - began_ms, task.deadline_ms - began_ms
        text = f"{used / 1000:g} s of at most {limit / 1000:g} s"
        late_ms = parked_ms - task.deadline_ms
        found.append(Bound(name="max_duration", used=text, past=past_duration(late_ms)))
    spent = plus(task.spent, task.spent_now)
    for reason in spending.all_reached(task.limits, spent):
        text = used_text(reason, task.limits, spent)
        found.append(Bound(name=reason, used=text, past=past(reason, task.limits, spent)))
    for budget in task.budgets:
        total = plus(budget.others, spent)
        for reason in spending.all_reached(budget.limits, total):
            text = used_text(reason, budget.limits, total)
            by = past(reason, budget.limits, total)
            found.append(Bound(name=RUN_BUDGET, used=text, past=by, run=budget.run))
    return tuple(found)


def own_stops(registers: Mapping[str, Register]) -> dict[str, Stops]:
    """Return what stops the parked steps again, under their own versions."""
    return {
        step: Stops(bounds=bounds(each.task, each.parked_ms))
        for step, each in registers.items()
        if isinstance(each, Parked)
    }


def asked(task: Task, run: str, request: ResumeRequested) -> Task:
    """Return a parked task with the bounds raised that a resume of its run raises."""
    iterations = max(task.max_iterations, request.max_iterations) + request.add_iterations
    deadline_ms = task.deadline_ms
    if deadline_ms:
        began_ms = task.started_ms + task.parked_ms
        most_ms = max(deadline_ms - began_ms, request.max_duration_ms) + request.add_duration_ms
        deadline_ms = began_ms + most_ms
    limits = spending.raised(task.limits, request.max_spending, request.add_spending)
    budgets = tuple(_raised(each, run, request) for each in task.budgets)
    return replace(
        task, max_iterations=iterations, deadline_ms=deadline_ms, limits=limits, budgets=budgets
    )


def resume_commands(
    run: str, stops: Iterable[Bound], step: str = "", by: Raise = NOT_AT_ALL
) -> str:
    """Return the one line that resumes a step past all that stops it, and by no less than ``by``.

    The budgets of the runs above are raised before, the topmost first: each by its own command.
    """
    raises = dict[str, Raise]()
    for bound in stops:
        owner = bound.run or run
        raises[owner] = raises.get(owner, NOT_AT_ALL) | bound.past
    own = raises.pop(run, NOT_AT_ALL) | by
    lines = [" ".join((above, *each.options)) for above, each in reversed(raises.items())]
    lines.append(" ".join((run, *([f"--step {step}"] if step else ()), *own.options)))
    return " && ".join(f"treadle run resume {line}" for line in lines)


def stops_text(stops: Iterable[Bound]) -> str:
    """Return the bounds with what was used of them."""
    stops = tuple(stops)
    own = [f"{bound.name} ({bound.used})" for bound in stops if not bound.run]
    shared = [f"the budget of run {run!r} ({used})" for run, used in shared_used(stops)]
    return ", ".join((*own, *shared))


def shared_used(stops: Iterable[Bound]) -> Sequence[tuple[str, str]]:
    """Return (run, what was used of its budget) of each budget that stops the step."""
    used = dict[str, list[str]]()
    for bound in stops:
        if bound.run:
            used.setdefault(bound.run, []).append(bound.used)
    return [(run, ", ".join(texts)) for run, texts in used.items()]


def _raised(budget: SharedBudget, run: str, request: ResumeRequested) -> SharedBudget:
    if budget.run != run:
        return budget
    limits = spending.raised(budget.limits, request.max_spending, request.add_spending)
    return replace(budget, limits=limits)
