"""Events that cancel the runs of a workflow: ``cancel_on``, a match by the name of an event.

A run waits for each of them from its request to its end, as a step waits for its event, under an
id that no step can have. Where to read next: ``docs/events.md``.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.sdk import expressions, matching, wording
from treadle.sdk.definition import EventStep, WorkflowDefinition
from treadle.sdk.errors import Problem
from treadle.sdk.limits import CANCEL_ON_MAX

_SIGN = "~"
OF_CANCELS = ("event", "input")
"""What the match of an event that cancels may ask for: it is there before any step."""


def is_cancel_id(step_id: str) -> bool:
    """True for the id under which a run, and no step of it, waits for an event."""
    return step_id.startswith(_SIGN)


def cancels_of(definition: WorkflowDefinition) -> dict[str, EventStep]:
    """Return what each run of a workflow waits for to be cancelled by, by the id of the wait."""
    return {
        f"{_SIGN}{n}": EventStep(id=f"{_SIGN}{n}", event=event, match=match)
        for n, (event, match) in enumerate(sorted(definition.cancel_on.items()))
    }


def problems_of(definition: WorkflowDefinition) -> Iterator[Problem]:
    """Yield what is wrong with the events that cancel."""
    if len(definition.cancel_on) > CANCEL_ON_MAX:
        yield Problem(
            "cancel_on",
            f"it has {len(definition.cancel_on)} events, and {CANCEL_ON_MAX} are allowed, because "
            "each run waits for all of them. Publish one event for several reasons.",
        )
    for event, match in definition.cancel_on.items():
        path = wording.field("cancel_on", event)
        if not matching.is_event_name(event):
            yield Problem(path, matching.name_problem(event))
        else:
            what = "the condition"
            yield from expressions.problems_of(
                path, match, "Match by less.", names=OF_CANCELS, what=what
            )
