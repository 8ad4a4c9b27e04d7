"""What a step is given besides outputs: the failure it handles, the answer to its condition."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from treadle.engine.core.facts import StepDecided
from treadle.engine.core.fitting import misfit
from treadle.engine.core.plan import Plan
from treadle.sdk import conditions
from treadle.sdk.definition import ChoiceStep, Step, WorkStep
from treadle.sdk.failed_step import FailedStep
from treadle.sdk.messages import Failure
from treadle.sdk.run import RunDocument


def before_of(plan: Plan, step: Step) -> tuple[str, ...]:
    """Return the steps whose outputs a step is given; none means the run's input."""
    undone = plan.compensations.get(step.id)
    return (undone,) if undone else step.after


def failed_before(plan: Plan, run: RunDocument, step: Step) -> FailedStep | None:
    """Return the failure because of which a step runs; None for a step that handles none."""
    for step_id in plan.handles.get(step.id, ()):
        entry = run.steps.get(step_id)
        if entry is not None and entry.status == "failed" and entry.failure is not None:
            return FailedStep(step_id, entry.failure)
    return None


def decision(
    plan: Plan,
    run: RunDocument,
    step: Step,
    run_input: object,
    outputs: Mapping[str, object],
) -> StepDecided:
    """Return whether a step begins, given these values; a failure if they do not fit.

    Of a choice that has its turn: with the first branch whose own condition holds.
    """
    decided = _asked(step, run_input, outputs)
    if not decided.holds or not isinstance(step, WorkStep) or step.input_schema is None:
        return decided
    given = _input(plan, run, step, run_input, outputs)
    what = f"the input of step {step.id!r}"
    failure = misfit("invalid_input", what, step.input_schema, given)
    return StepDecided(step.id, False, failure) if failure else decided


def _input(
    plan: Plan,
    run: RunDocument,
    step: Step,
    run_input: object,
    outputs: Mapping[str, object],
) -> object:
    if failed := failed_before(plan, run, step):
        return msgspec.to_builtins(failed)
    if not step.after:
        return run_input
    return outputs[step.after[0]] if len(step.after) == 1 else outputs


def _asked(step: Step, run_input: object, outputs: Mapping[str, object]) -> StepDecided:
    try:
        holds = not step.when or conditions.evaluate(step.when, run_input, outputs)
        if not holds or not isinstance(step, ChoiceStep):
            return StepDecided(step.id, holds)
        taken = (b.name for b in step.branches if conditions.evaluate(b.when, run_input, outputs))
        return StepDecided(step.id, True, branch=next(taken, step.default))
    except conditions.ConditionError as exc:
        return StepDecided(step.id, False, Failure("condition", str(exc), retryable=False))
