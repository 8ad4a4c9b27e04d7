"""Is a document older than what is known of its run?"""

from __future__ import annotations

from treadle.engine.core import RunEvent, StepEnded, StepParked, StepResumed
from treadle.engine.core.moment import Moment
from treadle.sdk.cancel_on import is_cancel_id
from treadle.sdk.messages import ChildEnded, EventMatched, MessageSent
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import step_of

_ABOUT_STEPS = StepEnded | StepParked | StepResumed | MessageSent | EventMatched | ChildEnded


def is_behind(run: RunDocument, facts: list[tuple[RunEvent, Moment]]) -> bool:
    """True when a step with a register, or with an answer, has no entry: a deposed leader has
    answered, with a document older than that. The events have to be looked at again."""
    if run.is_terminal:
        return False
    for fact, _ in facts:
        if isinstance(fact, EventMatched) and (
            fact.request != run.requested or is_cancel_id(fact.step)
        ):
            continue
        if isinstance(fact, _ABOUT_STEPS):
            entry = run.steps.get(step_of(fact.step))
            if entry is None or (isinstance(fact, ChildEnded) and entry.attempt < fact.attempt):
                return True
    return False
