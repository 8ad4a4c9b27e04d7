"""Workflow definitions as YAML or JSON text: the same definition, the same checks as in Python.

    name: code-review
    steps:
      - {kind: task, id: fetch, type: fetch-diff, retry: {max_attempts: 5}}
      - {kind: agent_loop, id: review, type: llm-review, after: [fetch], max_iterations: 10}

Strict, so that a typo is refused and not ignored: an unknown field, a key that is there twice, a
second document, a tag, each an error with its path. docs/workflow.schema.json tells an editor.
"""

from __future__ import annotations

import json
from os import PathLike
from pathlib import Path
from typing import Literal

import msgspec

from treadle.sdk.definition import WorkflowDefinition, to_plain
from treadle.sdk.errors import InvalidDefinition, Problem, clause
from treadle.sdk.limits import DEFINITION_BYTES_MAX
from treadle.sdk.validation import definition_from, refused
from treadle.sdk.written import Malformed, Pairs, Plain
from treadle.sdk.yaml_text import read_yaml, write_yaml

Format = Literal["yaml", "json"]

_FORMATS: dict[str, Format] = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}


def load_definition(path: str | PathLike[str]) -> WorkflowDefinition:
    """Read a definition from a ``.yaml``, ``.yml`` or ``.json`` file.

    Raises ``InvalidDefinition`` with all problems, and ``OSError`` if the file cannot be read.
    """
    file = Path(path)
    source = file.name
    kind = _FORMATS.get(file.suffix.lower())
    if kind is None:
        raise _invalid(source, "", "its name does not end in .yaml, .yml or .json. Rename it.")
    with file.open("rb") as stream:
        raw = stream.read(DEFINITION_BYTES_MAX + 1)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise _invalid(source, f"byte {exc.start}", "it is not UTF-8. Save it as UTF-8.") from exc
    return parse_definition(text, kind, source=source)


def parse_definition(text: str, kind: Format, *, source: str = "") -> WorkflowDefinition:
    """Return the definition that a text holds; raise ``InvalidDefinition`` with all problems.

    ``source`` stands for the workflow in errors if the text does not name it.
    """
    if len(text) > DEFINITION_BYTES_MAX:
        raise _invalid(
            source,
            "",
            f"it is longer than {DEFINITION_BYTES_MAX} bytes, because a definition is stored as "
            "one message. Split the workflow.",
        )
    plain = Plain()
    try:
        value = plain.value(read_yaml(text) if kind == "yaml" else _read_json(text))
    except Malformed as exc:
        raise refused(source, [*plain.problems, exc.problem]) from exc
    return definition_from(value, source=source, found=plain.problems)


def format_definition(definition: WorkflowDefinition, kind: Format) -> str:
    """Return the definition as text that ``parse_definition`` reads as the same."""
    plain = to_plain(definition)
    if kind == "yaml":
        return write_yaml(plain)
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n"


def _read_json(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=Pairs)
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise Malformed(where, f"it is not JSON: {exc.msg}. Correct the text.") from exc
    except ValueError as exc:  # An integer with more digits than Python reads.
        raise Malformed("", f"it is not JSON: {clause(exc)}. Correct the text.") from exc
    except RecursionError as exc:
        raise Malformed("", "it is nested too deep. Flatten it.") from exc


def _invalid(source: str, path: str, text: str) -> InvalidDefinition:
    return refused(source, [Problem(path, text)])
