"""What a start gives its run: encoded, and refused if the workflow would not take it."""

from __future__ import annotations

from typing import Any

from treadle.sdk import payload
from treadle.sdk.builder import Workflow
from treadle.sdk.client import requests
from treadle.sdk.collecting import Batch
from treadle.sdk.definition import WorkflowDefinition


def input_of(
    workflow: Workflow[Any] | WorkflowDefinition,
    definition: WorkflowDefinition,
    value: object,
    *,
    is_one: bool = False,
) -> bytes:
    """Encode an input; refuse what the workflow's own type would not take.

    The run of a batch has a list of them, unless this ``is_one``.
    """
    what = f"input of workflow {workflow.name!r}"
    raw = payload.encode(what, value)
    type_: Any = workflow.input_type if isinstance(workflow, Workflow) else None
    is_list = isinstance(definition.collect, Batch) and not is_one
    if type_ is not None:
        payload.decode(what, raw, list[type_] if is_list else type_)
    if type_ is None or is_list:
        requests.check_schema(workflow.name, definition.input_schema, raw, is_list=is_list)
    return raw
