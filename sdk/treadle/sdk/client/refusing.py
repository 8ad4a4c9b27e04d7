"""Why a resume is refused: the step would be stopped again at once, by these bounds."""

from __future__ import annotations

import asyncio

import msgspec

from treadle.sdk.client import resuming
from treadle.sdk.client.bounds import (
    Bound,
    asked,
    bounds,
    resume_commands,
    shared_used,
    stops_text,
)
from treadle.sdk.client.planned import definition_of
from treadle.sdk.client.raising import raise_of
from treadle.sdk.client.store import Store
from treadle.sdk.errors import RunConflict
from treadle.sdk.messages import Parked, ResumeRequested
from treadle.sdk.run import RunDocument

RAISED_LOOKS_S = (0.05, 0.1, 0.2)
"""Pauses between looks at a budget that is used up: it may have been raised just now."""


async def refusal(
    store: Store, document: RunDocument, step: str, request: ResumeRequested
) -> RunConflict | None:
    """Return the error if a parked step, resumed so, would be stopped by a bound at once.

    The budget of a run above may have been raised just now: its engine is given a moment.
    """
    definition = await definition_of(store, document)
    task_type = getattr(definition.step(step), "type", "") if definition else ""
    held = await store.register(document.run, step, task_type, document.domain)
    if held is None or not isinstance(held.register, Parked):
        return None
    task = await resuming.under_newest(store, step, held.register)
    version = task.definition if task is not held.register.task else ""
    parked_ms = held.register.parked_ms
    left: tuple[Bound, ...] = ()
    for pause_s in (*RAISED_LOOKS_S, None):
        found = (await resuming.with_budgets(store, document, step, held)).register
        assert isinstance(found, Parked)
        task = msgspec.structs.replace(task, budgets=found.task.budgets)
        left = bounds(asked(task, document.run, request), parked_ms)
        if not left:
            return None
        if pause_s is None or all(bound.run in ("", document.run) for bound in left):
            break
        await asyncio.sleep(pause_s)
    # What the request would raise is part of the command, or the next one is refused for it.
    command = resume_commands(
        document.run, bounds(task, parked_ms), request.step, by=raise_of(request)
    )
    return _conflict(document.run, step, left, version, command)


def _conflict(
    run: str, step: str, left: tuple[Bound, ...], version: str, command: str
) -> RunConflict:
    under = f" under version {version}, the newest of its workflow" if version else ""
    if all(bound.run for bound in left):
        used_up = " and ".join(
            f"the budget of run {owner!r} used up ({used})" for owner, used in shared_used(left)
        )
        what = f"is parked at step {step!r} with {used_up}, and would stop there again{under}"
    else:
        what = (
            f"is parked at step {step!r}, and would stop there again{under} at {stops_text(left)}"
        )
    them = "it" if len(left) == 1 else "them"
    return RunConflict(run, what, f"Raise {them} past that: `{command}`.")
