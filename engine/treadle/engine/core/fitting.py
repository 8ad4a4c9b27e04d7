"""Do the values of a run fit what its workflow declares of them? Decided where they are decided on.

    the run's input       at its request        the run fails
    a step's input        when it is its turn   the step fails
    a step's output       with its completion   the step fails, and is not tried again
    the run's output      after its last step   the run fails

What cannot be said for sure is no objection: see ``schema_check``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from treadle.engine.core.plan import Plan
from treadle.sdk import schema_check
from treadle.sdk.collecting import Batch
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.messages import Failure
from treadle.sdk.outcome import outcome_of
from treadle.sdk.payload import PAYLOAD_BYTES_MAX
from treadle.sdk.plans import result_of
from treadle.sdk.run import RunDocument
from treadle.sdk.shape import leaves

Schema = Mapping[str, Any]


def misfit(kind: str, what: str, schema: Schema | None, value: object) -> Failure | None:
    """Return the failure of a value that does not fit; its type is ``kind``."""
    found = schema_check.problems(value, schema) if schema is not None else ()
    if not found:
        return None
    return Failure(kind, f"{what} does not fit its schema: {'; '.join(found)}", retryable=False)


def result_misfit(plan: Plan, run: RunDocument, outputs: Mapping[str, object]) -> Failure | None:
    """Return the failure of a run whose result does not fit, given the outputs it is made of."""
    steps, is_single = outcome_of(plan.own, run)
    result = outputs[steps[0].id] if is_single else outputs
    schema = plan.definition.output_schema
    return misfit("invalid_output", "the run's result", schema, result)


def too_large(plan: Plan, run: RunDocument) -> Failure | None:
    """Return the failure of a run whose result is declared, and longer than is looked at."""
    shapes = (result_of(plan.plans, run, step.id) for step in outcome_of(plan.own, run).steps)
    names = (name for shape in shapes for name in leaves(shape))
    for name, state in ((name, run.maps.get(name)) for name in names):
        if state is not None and state.size_bytes > PAYLOAD_BYTES_MAX:
            text = (
                f"the output of map {name!r} has {state.size_bytes} bytes, and a result that is "
                f"declared at most {PAYLOAD_BYTES_MAX}. Let a task sum it up, or declare no output"
            )
            return Failure("invalid_output", text, retryable=False)
    return None


def input_misfit(definition: WorkflowDefinition, raw: msgspec.Raw) -> Failure | None:
    """Return why a run's input does not fit; of a batch it is a list of inputs."""
    kind, what = "invalid_input", "the run's input"
    if not isinstance(definition.collect, Batch):
        return raw_misfit(kind, what, definition.input_schema, raw)
    if failure := raw_misfit(kind, what, {}, raw):
        return failure
    found = schema_check.problems_of_list(msgspec.json.decode(raw), definition.input_schema)
    text = f"{what} does not fit its schema: {'; '.join(found)}"
    return Failure(kind, text, retryable=False) if found else None


def raw_misfit(kind: str, what: str, schema: Schema | None, raw: msgspec.Raw) -> Failure | None:
    """Return the same of a value as JSON; one without a schema is not read."""
    if schema is None:
        return None
    try:
        value: object = msgspec.json.decode(raw)
    except (ValueError, RecursionError) as exc:
        return Failure(kind, f"{what} is not JSON: {exc}", retryable=False)
    return misfit(kind, what, schema, value)
