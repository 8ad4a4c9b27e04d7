"""The published JSON schema of definitions: docs/workflow.schema.json.

Derived from the types, their docstrings and the limits, so it cannot say something else than
the decoder. It knows shapes, names and ranges; edges (cycles, unknown steps) are beyond JSON
schema. ``python -m treadle.sdk.schema > docs/workflow.schema.json`` writes it anew.
"""

from __future__ import annotations

import ast
import inspect
import sys
from typing import Any

import msgspec

from treadle.sdk import collecting as collecting_module
from treadle.sdk import definition as definition_module
from treadle.sdk import flow as flow_module
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.identifier import ID_CHARS_MAX
from treadle.sdk.limits import (
    ALLOWED_TASKS_MAX,
    APPROVERS_MAX,
    BRANCHES_MAX,
    CANCEL_ON_MAX,
    CONDITION_CHARS_MAX,
    FLOW_LIMITS_MAX,
    HEADERS_MAX,
    NON_RETRYABLE_MAX,
    PLACES_MAX,
    PROMPT_CHARS_MAX,
    RANGES,
    STEP_METADATA_MAX,
    STEPS_MAX,
    TEXT_CHARS_MAX,
    WEIGHTS_MAX,
    WORD_CHARS_MAX,
)
from treadle.sdk.matching import NAME_CHARS_MAX, NAME_PATTERN
from treadle.sdk.triggers.times import EXPRESSION_CHARS_MAX

_ID = {"pattern": f"^[A-Za-z0-9_][A-Za-z0-9_-]{{0,{ID_CHARS_MAX - 1}}}$"}

#: What the types cannot say, by field.
_NARROWER: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("name", "id", "type", "signal", "default", "workflow"), _ID),
    **{name: {"minimum": r.least, "maximum": r.most} for name, r in RANGES.items()},
    "steps": {"minItems": 1, "maxItems": STEPS_MAX},
    "after": {"uniqueItems": True},
    "when": {"maxLength": CONDITION_CHARS_MAX},
    **{name: {"maxLength": CONDITION_CHARS_MAX} for name in ("singleton_key", "concurrency_key")},
    **dict.fromkeys(("on_failure", "compensate"), _ID),
    "event": {"pattern": f"^{NAME_PATTERN}$", "maxLength": NAME_CHARS_MAX},
    "match": {"maxLength": CONDITION_CHARS_MAX},
    "branches": {"minItems": 1, "maxItems": BRANCHES_MAX},
    "headers": {"maxProperties": HEADERS_MAX},
    "prompt": {"maxLength": PROMPT_CHARS_MAX},
    "approvers": {"maxItems": APPROVERS_MAX},
    "cancel_on": {"maxProperties": CANCEL_ON_MAX},
    **{
        name: {"maxLength": CONDITION_CHARS_MAX}
        for name in ("key", "priority", "fair_by", "expression")
    },
    **{name: {"maxItems": FLOW_LIMITS_MAX} for name in ("concurrency", "rate_limits")},
    "weights": {"maxProperties": WEIGHTS_MAX},
    "metadata": {"maxProperties": STEP_METADATA_MAX},
    "non_retryable": {"maxItems": NON_RETRYABLE_MAX},
    "cron": {"maxLength": EXPRESSION_CHARS_MAX},
    "over": {"maxLength": WORD_CHARS_MAX},
    "allowed_tasks": {"maxItems": ALLOWED_TASKS_MAX, "uniqueItems": True},
    "description": {"maxLength": TEXT_CHARS_MAX},
}
#: What a field of the workflow means that steps have too.
_OF_WORKFLOW: dict[str, dict[str, Any]] = {"concurrency": {"minimum": 0, "maximum": PLACES_MAX}}
#: Whose fields a type has too.
_INHERITED = {"PlannerStep": ("TaskStep",)}
_ITEMS: dict[str, dict[str, Any]] = {
    "after": _ID,
    "approvers": {"minLength": 1, "maxLength": WORD_CHARS_MAX},
    "allowed_tasks": _ID,
    "non_retryable": {"minLength": 1, "maxLength": WORD_CHARS_MAX},
}


def workflow_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a workflow definition."""
    schema = msgspec.json.schema(WorkflowDefinition)
    described = _field_docs()
    for name, part in schema["$defs"].items():
        for field, of in part["properties"].items():
            is_of_workflow = name == WorkflowDefinition.__name__ and field in _OF_WORKFLOW
            of.update((_OF_WORKFLOW if is_of_workflow else _NARROWER).get(field, {}))
            if field in _ITEMS:
                of["items"].update(_ITEMS[field])
            owners = (name, *_INHERITED.get(name, ()), "_Dispatched", "_StepBase")
            texts = (described.get((owner, field), "") for owner in owners)
            if text := next(filter(None, texts), ""):
                of["description"] = text
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Treadle workflow",
        **schema,
    }


def _field_docs() -> dict[tuple[str, str], str]:
    """Return the texts below the fields of the definition types, by class and field."""
    docs: dict[tuple[str, str], str] = {}
    modules = (definition_module, flow_module, collecting_module)
    for node in (node for module in modules for node in ast.parse(inspect.getsource(module)).body):
        if not isinstance(node, ast.ClassDef):
            continue
        for field, below in zip(node.body, node.body[1:], strict=False):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    docs[node.name, name] = inspect.cleandoc(text).replace("\n", " ")
                case _:
                    pass
    return docs


def schema_text() -> str:
    """Return the schema as the published file holds it."""
    return msgspec.json.format(msgspec.json.encode(workflow_schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
