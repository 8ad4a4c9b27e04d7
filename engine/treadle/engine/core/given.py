"""The answer to what is asked of stored values before a step begins."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.engine.core.facts import StepDecided
from treadle.engine.core.fitting import misfit
from treadle.engine.core.flow import resolve
from treadle.sdk import conditions, wording
from treadle.sdk.definition import ChoiceStep, SleepStep, Step, TypedStep, WorkStep, has_keys
from treadle.sdk.limits import DURATION_S_MAX
from treadle.sdk.messages import Failure
from treadle.sdk.rfc3339 import moment_ms


def needs_input(step: Step) -> bool:
    """True if a step's input is looked at before it begins."""
    return isinstance(step, WorkStep) and step.input_schema is not None


def decision(
    step: Step, run_input: object, outputs: Mapping[str, object], given: object = None
) -> StepDecided:
    """Return whether a step begins, given these values; a failure if they do not fit.

    ``given`` is its input, if it is looked at. Of a choice that has its turn: with the first
    branch whose own condition holds. The keys of a step's limits have to have
    values too: nothing can say so once it is active.
    """
    decided = _asked(step, run_input, outputs)
    if not decided.holds or not isinstance(step, WorkStep) or step.input_schema is None:
        return decided
    what = f"the input of step {step.id!r}"
    failure = misfit("invalid_input", what, step.input_schema, given)
    return StepDecided(step.id, False, failure) if failure else decided


def _asked(step: Step, run_input: object, outputs: Mapping[str, object]) -> StepDecided:
    try:
        holds = not step.when or conditions.evaluate(step.when, run_input, outputs)
        if holds and isinstance(step, TypedStep) and has_keys(step):
            resolve("", step, run_input, outputs)
        if holds and isinstance(step, SleepStep) and step.expression:
            return _asleep(step, conditions.value_of(step.expression, run_input, outputs))
        if not holds or not isinstance(step, ChoiceStep):
            return StepDecided(step.id, holds)
        taken = (b.name for b in step.branches if conditions.evaluate(b.when, run_input, outputs))
        return StepDecided(step.id, True, branch=next(taken, step.default))
    except conditions.ConditionError as exc:
        return StepDecided(step.id, False, Failure("condition", str(exc), retryable=False))


def _asleep(step: SleepStep, value: object) -> StepDecided:
    """Return how long a sleep is whose expression has this value."""
    match value:
        case bool():
            pass
        case int() | float() if 0 <= value <= DURATION_S_MAX:
            return StepDecided(step.id, True, duration_ms=round(value * 1000))
        case str() if (until_ms := moment_ms(value)) is not None:
            return StepDecided(step.id, True, until_ms=max(1, until_ms))
        case _:
            pass
    text = (
        f"expression {step.expression} comes to {wording.shown(value)}, and a sleep takes 0 to "
        f"{DURATION_S_MAX} seconds, or a time like 2027-01-31T09:00:00+01:00"
    )
    return StepDecided(step.id, False, Failure("condition", text, retryable=False))
