"""Why a step waits for its limits: which one, who holds its slots, and its place. Pure."""

from __future__ import annotations

from treadle.sdk.client.explain.reason import Reason
from treadle.sdk.client.limits import Wait
from treadle.sdk.client.view import StepView
from treadle.sdk.messages import Task
from treadle.sdk.times import since, until

HOLDERS_SHOWN_MAX = 3
_COMMAND = "treadle limits"


def queued(step: StepView, wait: Wait, now_ms: int) -> Reason:
    """Return the reason of a step that waits for a slot."""
    when = since(step.since_ms, now_ms)
    if not wait.label:
        return _reason(step, "moving", f"is about to be given out ({when})")
    slots = "the slot" if wait.limit == 1 else f"one of {wait.limit} slots"
    who = ", ".join(f"{each.run}/{each.step}" for each in wait.holders[:HOLDERS_SHOWN_MAX])
    more = len(wait.holders) - HOLDERS_SHOWN_MAX
    held = f", held by {who}{f' and {more} more' if more > 0 else ''}" if who else ""
    count = f"{wait.before}{' or more' if wait.is_more else ''}"
    place = f"; {count} before it" if wait.before else "; it is next"
    text = f"waits for {slots} of limit '{wait.label}'{held}{place} ({when})"
    return _reason(step, "limited", text)


def too_early(step: StepView, task: Task, now_ms: int) -> Reason:
    """Return the reason of a step whose rates gave it a later time."""
    rates = task.flow.rates if task.flow is not None else ()
    names = " and ".join(f"'{rate.label}'" for rate in rates)
    text = f"begins {until(step.due_ms, now_ms)}, as its rate limit {names} allows"
    return Reason(
        kind="limited",
        level="pause",
        text=f"step {step.id!r} {text}",
        command=_COMMAND,
        step=step.id,
        until_ms=step.due_ms,
    )


def _reason(step: StepView, kind: str, text: str) -> Reason:
    return Reason(
        kind="limited" if kind == "limited" else "moving",
        level="pause" if kind == "limited" else "works",
        text=f"step {step.id!r} {text}",
        command=_COMMAND if kind == "limited" else "",
        step=step.id,
        since_ms=step.since_ms,
    )
