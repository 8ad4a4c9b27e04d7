"""The published JSON schema says what the decoder does, wherever a schema can say it.
Method: compare the file with the types, then let jsonschema judge the decoder's examples."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from tests.sdk.strategies import FAULTS, QUICK, SAMPLE, Fault, broken, definitions, faults

from treadle.sdk.definition import WorkflowDefinition, to_plain
from treadle.sdk.document import parse_definition
from treadle.sdk.errors import InvalidDefinition
from treadle.sdk.schema import schema_text, workflow_schema

FILE = Path(__file__).parents[2] / "docs" / "workflow.schema.json"

jsonschema: Any = importlib.import_module("jsonschema")  # It comes without types.
VALIDATOR = jsonschema.Draft202012Validator(workflow_schema())


def _schema_accepts(plain: object) -> bool:
    return bool(VALIDATOR.is_valid(plain))


def test_the_published_file_is_current() -> None:
    current = FILE.read_text(encoding="utf-8") == schema_text()
    assert current, "run: python -m treadle.sdk.schema > docs/workflow.schema.json"


def test_the_published_file_is_a_valid_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(FILE.read_text(encoding="utf-8")))


@QUICK
@given(definitions())
def test_what_the_decoder_accepts_the_schema_accepts(definition: WorkflowDefinition) -> None:
    assert _schema_accepts(to_plain(definition))


@QUICK
@given(faults())
def test_what_the_decoder_refuses_the_schema_refuses_unless_it_is_an_edge(fault: Fault) -> None:
    with pytest.raises(InvalidDefinition):
        parse_definition(json.dumps(fault.plain), "json")
    assert _schema_accepts(fault.plain) == (not fault.in_schema)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_seen_by_the_schema_unless_it_is_an_edge(name: str) -> None:
    fault = broken(SAMPLE, name)
    assert fault is not None
    assert _schema_accepts(fault.plain) == (not fault.in_schema)


def test_every_field_tells_an_editor_what_it_is() -> None:
    silent = [
        f"{name}.{field}"
        for name, part in _structs(workflow_schema()).items()
        for field, of in part["properties"].items()
        if field not in ("kind", "retry", "description") and "description" not in of
    ]
    assert silent == []


def test_a_field_without_a_place_in_the_types_is_refused() -> None:
    assert all(
        part["additionalProperties"] is False for part in _structs(workflow_schema()).values()
    )


def _structs(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    defs: dict[str, dict[str, Any]] = schema["$defs"]
    return defs
