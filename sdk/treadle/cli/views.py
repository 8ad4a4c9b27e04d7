"""Runs and events as a person reads them in a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from treadle.cli import output
from treadle.sdk.client import RunEvent, RunView, StepView
from treadle.sdk.client.ending import timeout_text
from treadle.sdk.client.notes import queued_text
from treadle.sdk.client.origin import ForkedFrom
from treadle.sdk.times import age, date
from treadle.sdk.wording import items_text

_STYLE_BY_KIND = {
    "step.failed": "red",
    "task.lost": "yellow",
    "step.parked": "bold yellow",
    "corrupt": "bold red",
}
_BOUNDED = ("waiting", "awaiting_signal", "awaiting_event", "awaiting_approval")
"""What a step does that may have an end of its own."""


def show(view: RunView) -> None:
    """Print where a run stands."""
    output.say(f"{view.id}  {view.workflow}  {view.status}", output.STYLES.get(view.status, ""))
    for line in _facts(view):
        output.say(f"  {output.one_line(line)}")
    if view.steps:
        output.say("")
        steps(view.steps)
    if view.notes:
        output.say("")
        output.notes(view.notes)


def steps(found: Sequence[StepView]) -> None:
    """Print how steps stand, one a line."""
    rows = [_step_row(step) for step in found]
    output.table(("STEP", "STATUS", "ITERATIONS", "ATTEMPT", "TOOK", ""), rows)


def listing(views: Sequence[RunView]) -> None:
    """Print runs, one a line."""
    rows = [
        (view.id, view.workflow, view.status, date(view.requested_ms), _took(view), _why(view))
        for view in views
    ]
    output.table(("RUN", "WORKFLOW", "STATUS", "REQUESTED", "TOOK", ""), rows, cut_last=True)


def summary(view: RunView) -> dict[str, Any]:
    """Return what a listing tells of a run, as data."""
    return {
        "id": view.id,
        "workflow": view.workflow,
        "status": view.status,
        "requested_ms": view.requested_ms,
        "ended_ms": view.ended_ms,
        "failed_step": view.failed_step,
        "failure": view.failure,
        "metadata": view.metadata,
        "parent": view.parent,
        "lane": view.lane,
        "ahead": view.ahead,
    }


def event(happened: RunEvent, loops: frozenset[str]) -> None:
    """Print one event on one line; only ``loops`` are steps that have iterations."""
    style = _STYLE_BY_KIND.get(happened.kind) or output.STYLES.get(happened.status, "")
    if happened.step not in loops:
        happened = msgspec.structs.replace(happened, iteration=None)
    output.say(output.one_line(str(happened)), style)


def loops_of(view: RunView) -> frozenset[str]:
    """Return the ids of the steps that iterate."""
    return frozenset(step.id for step in view.steps if step.kind == "agent_loop")


# ---------------------------------------------------------------- leaves


def _facts(view: RunView) -> list[str]:
    facts = [f"requested {date(view.requested_ms)}, version {view.definition}"]
    if view.starts_ms:
        began = "begins" if view.status == "scheduled" else "scheduled for"
        facts.append(f"{began} {date(view.starts_ms)}")
    if view.ended_ms:
        facts.append(f"ended {date(view.ended_ms)}, after {age(view.ended_ms - view.requested_ms)}")
    if view.forked_from is not None:
        facts.append(_forked(view.forked_from))
    if view.pause is not None:
        why = f": {view.pause.reason}" if view.pause.reason else ""
        facts.append(f"paused {date(view.pause.since_ms)}{why}")
    if view.parent is not None:
        started = "started, detached, by" if view.parent.detached else "started by"
        facts.append(f"{started} step {view.parent.step!r} of run {view.parent.run}")
    if view.lane:
        facts.append(f"lane {view.lane}")
    if view.failure is not None:
        where = f"at step {view.failed_step!r}: " if view.failed_step else ""
        facts.extend(f"{where}{view.failure}".split("\n"))
        if view.failure.traceback:
            facts.extend(f"  {line}" for line in view.failure.traceback.rstrip().split("\n"))
    still = "was never consumed" if view.is_terminal else "waits to be consumed"
    facts.extend(
        f"signal {name!r} {still} ({count})" for name, count in view.signals_waiting.items()
    )
    if view.status == "completed":
        facts.append(f"its result: {output.command(f'treadle run result {view.id}')}")
    facts.extend(f"{key}={value}" for key, value in view.metadata.items())
    return facts


def _forked(fork: ForkedFrom) -> str:
    at = f" at iteration {fork.iteration}" if fork.iteration >= 0 else ""
    where = f" from step {fork.step!r}{at}" if fork.step else ""
    kept = f", with {fork.kept or 'none'} of its steps"
    see = output.command(f"treadle run show {fork.run}")
    return f"made of run {fork.run}{where}{kept}: {see}"


def _step_row(step: StepView) -> tuple[str, ...]:
    iterations, attempt = "", ""
    if step.kind == "agent_loop" and step.status not in ("waiting", "not_reached"):
        bound = f"/{step.max_iterations}" if step.max_iterations else ""
        iterations = f"{step.iterations}{bound}"
    if step.attempt:
        attempt = str(step.attempt)
    end_ms = step.ended_ms or (_now_ms() if step.status == "active" else 0)
    took = age(end_ms - step.started_ms) if step.started_ms and end_ms and not step.is_kept else ""
    status = step.status.replace("_", " ")
    return (step.id, status, iterations, attempt, took, _doing(step))


def _doing(step: StepView) -> str:
    if step.status in ("waiting", "not_reached"):
        return f"after {', '.join(step.after)}" if step.after else ""
    failed = str(step.failure) if step.failure else ""
    match step.doing:
        case "queued_or_running":
            text = f"dispatched {age(_now_ms() - step.since_ms)} ago"
        case "limited":
            text = f"waits {age(_now_ms() - step.since_ms)} for its limits"
        case "delayed" | "sleeping":
            left_ms = step.due_ms - _now_ms()
            text = f"goes on in {age(left_ms)}" if left_ms > 0 else "is due"
        case "parked":
            text = f"parked {age(_now_ms() - step.since_ms)} ago"
        case "paused":
            text = "held, the run is paused"
        case "waiting" if step.line:
            text = f"waits {age(_now_ms() - step.since_ms)} for its turn: {step.waits_for}"
        case "waiting":
            text = f"waits {age(_now_ms() - step.since_ms)} for a message"
        case "awaiting_signal":
            text = f"waits {age(_now_ms() - step.since_ms)} for signal {step.signal}"
        case "awaiting_event":
            text = f"waits {age(_now_ms() - step.since_ms)} for event {step.event}"
        case "awaiting_approval":
            text = f"waits {age(_now_ms() - step.since_ms)} for an approval"
        case "awaiting_child":
            text = f"waits {age(_now_ms() - step.since_ms)} for run {step.child}"
        case "mapping" | "":
            text = f"run {step.child}" if step.child else step.why
    if step.due_ms and step.doing in _BOUNDED:
        text = f"{text}, at most {age(max(0, step.due_ms - _now_ms()))} more"
    if failed and step.doing and step.status == "active":
        failed = f"last failure {failed}"
    if step.timed_out == "complete":
        awaited = step.signal or step.event or "an answer"
        text = f"timed out without {awaited}; {timeout_text(step.timed_out)}"
    kept = "taken over" if step.is_kept else ""
    return "; ".join(filter(None, (kept, _items(step), text, failed)))


def _items(step: StepView) -> str:
    """Return how far a map is."""
    return items_text(step.items_done, step.items, step.items_failed) if step.chunks else ""


def _took(view: RunView) -> str:
    end_ms = view.ended_ms or _now_ms()
    return age(end_ms - view.requested_ms) if view.requested_ms else ""


def _why(view: RunView) -> str:
    if view.ahead is not None:
        return queued_text(view.lane, view.ahead)
    if view.status == "scheduled":
        return f"begins {date(view.starts_ms)}"
    if view.failure is None:
        return f"started by {view.parent.run}" if view.parent else ""
    where = f"{view.failed_step}: " if view.failed_step else ""
    return f"{where}{view.failure}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
