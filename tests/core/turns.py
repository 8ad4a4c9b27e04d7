"""When it may have been a step's turn: the rules of docs/control-flow.md, read off a document."""

from __future__ import annotations

from treadle.engine.core import Plan
from treadle.sdk.run import RunDocument

STARTED = frozenset({"active", "parked", "completed", "failed", "cancelled"})
OVER = frozenset({"completed", "skipped", "failed"})


def check_turn(plan: Plan, run: RunDocument, step_id: str) -> None:
    """Assert that a step has an entry for a reason; what is over stays as it was."""
    step, entry = plan.steps[step_id], run.steps[step_id]
    undone = [other.id for other in plan.definition.steps if other.compensate == step_id]
    if undone:
        check_undoing(plan, run, step_id, undone[0])
        return
    handled = [other.id for other in plan.definition.steps if other.on_failure == step_id]
    statuses = [_seen(plan, run, step_id, other) for other in handled or step.after]
    completed = statuses.count("completed")
    if entry.status in STARTED and not (entry.status == "failed" and step.when and not completed):
        if handled:
            assert "failed" in statuses
        elif step.quorum:
            assert completed >= step.quorum
        else:
            assert set(statuses) <= {"completed", "skipped"}
            assert completed or not statuses
    if entry.status == "skipped" and step.when in ("", "true"):
        if handled:
            assert set(statuses) <= {"completed", "skipped"}
        elif step.quorum:
            assert completed < step.quorum
            open_ = sum(status not in OVER for status in statuses)
            assert run.is_terminal or completed + open_ < step.quorum
        else:
            assert "failed" in statuses or set(statuses) == {"skipped"}


def check_undoing(plan: Plan, run: RunDocument, step_id: str, undone: str) -> None:
    """Assert that a step is undone for a reason, and the newest first."""
    entry, of = run.steps[step_id], run.steps.get(undone)
    if entry.status == "skipped":
        assert run.status == "completed"
        return
    assert run.undoing or run.status in ("failed", "cancelled")
    assert of is not None
    assert of.status == "completed"
    for other in plan.definition.steps:
        begun = run.steps.get(other.compensate) if other.compensate else None
        if begun is not None and other.id != undone and begun.started_ms < entry.started_ms:
            assert run.steps[other.id].ended_ms >= of.ended_ms, "the newest is undone first"
            assert begun.ended_ms, "one by one"


def check_pause(plan: Plan, before: RunDocument | None, after: RunDocument) -> None:
    """Assert that no step begins while a run is paused, and that none was left when it ends."""
    if before is None or not after.is_paused:
        return
    new = after.steps.keys() - before.steps.keys()
    assert {after.steps[step_id].status for step_id in new} <= {"skipped"}
    if after.status == "completed":
        assert not ready(plan, before, after), "a run does not end by its pause"


def check_all_begun(plan: Plan, run: RunDocument) -> None:
    """Assert that a run that is not paused holds no step back."""
    assert run.is_paused or run.is_terminal or run.undoing or not ready(plan, run, run)


def ready(plan: Plan, before: RunDocument, after: RunDocument) -> list[str]:
    """Return the plain steps that had no entry before, and all of whose predecessors completed."""
    undoing = {step.compensate for step in plan.definition.steps}
    handlers = {step.on_failure for step in plan.definition.steps}
    return [
        step.id
        for step in plan.definition.steps
        if step.id not in before.steps.keys() | undoing | handlers
        and {_seen(plan, after, step.id, other) for other in step.after} <= {"completed"}
    ]


def _seen(plan: Plan, run: RunDocument, step_id: str, other: str) -> str:
    """Return where a step stands for one that waits for it: a planner where its plan does."""
    status, planned = status_of(run, other), plan.plans.get(other)
    if status != "completed" or planned is None or step_id in planned.names:
        return status
    inner = [step for step in plan.definition.steps if step.id in planned.names]
    waited = {name for step in inner for name in step.after}
    undoing = {step.compensate for step in inner}
    ends = [step.id for step in inner if step.id not in waited | undoing]
    seen = {step.id: _seen(plan, run, "", step.id) for step in inner}
    if any(seen[end] not in OVER for end in ends):
        return "active"
    for step in inner:
        followers = [each for each in inner if step.id in each.after]
        is_met = followers and all(each.quorum for each in followers)
        if seen[step.id] == "failed" and not step.on_failure and not is_met:
            return "failed"
    return "completed" if not ends or "completed" in map(seen.get, ends) else "skipped"


def status_of(run: RunDocument, step_id: str) -> str:
    """Return where a step stands; ``waiting`` without an entry."""
    entry = run.steps.get(step_id)
    return entry.status if entry else "waiting"
