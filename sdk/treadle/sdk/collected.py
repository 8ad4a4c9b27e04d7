"""What is stored of collected starts, and what follows from a start's input alone. Pure.

<ns>_COLLECT   a message for each start: ``CollectedStart``
KV_<ns>_windows  a record for each key: ``WindowRecord``, changed by compare-and-set only
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from treadle.sdk import conditions, payload, schema_check
from treadle.sdk.collecting import Batch
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.errors import InvalidPayload
from treadle.sdk.identifier import ID_CHARS_MAX
from treadle.sdk.lanes import LANE_CHARS_MAX
from treadle.sdk.messages import NO_RAW, MetadataValue
from treadle.sdk.singletons import placed

WINDOW_KEY = "window_key"
WINDOW_FIRST = "window_first"
WINDOW_LAST = "window_last"
WINDOW_COUNT = "window_count"
"""Keys of a run's metadata: which starts it was made of. Sequences are those of the receipts."""
_DIGEST_CHARS = 32
_RUN_DIGEST_CHARS = 16


class CollectedStart(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A start that waits to become part of a run; its workflow is in its subject."""

    key: str = ""
    """The text of its key, for people."""
    version: str
    """Content hash of the definition with which it was accepted."""
    input: msgspec.Raw = NO_RAW
    metadata: Mapping[str, MetadataValue] = {}


class CollectDue(msgspec.Struct, frozen=True, tag="collect.due", tag_field="event"):
    """The timer of a key fired. It is a hint: what is due is read from what is stored."""

    workflow: str
    due_ms: int


class WindowRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far the starts of a key have become runs. Whoever writes a window into it decides it."""

    closed: int = 0
    """Every start up to this sequence is in a run that was requested."""
    run: str = ""
    """The run of the window that is decided and may not be requested yet; empty is none."""
    version: str = ""
    first: int = 0
    last: int = 0
    """It has the starts from one of these sequences to the other,"""
    count: int = 0
    """which are so many."""
    write: str = ""
    """Nonce of the write: recognises a compare-and-set whose acknowledgement was lost."""


class Key(NamedTuple):
    """The key of a start: its text, and the token that stands for it in subjects."""

    text: str
    digest: str


def key_of(definition: WorkflowDefinition, raw: bytes) -> Key:
    """Return the key of a start with this input; raise ``InvalidPayload`` if it has none."""
    assert definition.collect is not None
    if not definition.collect.key:
        return Key("", _digest("")[:_DIGEST_CHARS])
    try:
        text = conditions.key_of(definition.collect.key, msgspec.json.decode(raw), {})
    except conditions.ConditionError as exc:
        raise InvalidPayload(
            f"input of workflow {definition.name!r}",
            f"it has no key by which its starts are collected: {exc}",
            "Give it what the key asks for",
        ) from exc
    is_short = len(text) <= LANE_CHARS_MAX and text.isprintable()
    digest = _digest(text)[:_DIGEST_CHARS]
    return Key(text if is_short else digest, digest)


def check_start(definition: WorkflowDefinition, raw: bytes) -> None:
    """Raise ``UserError`` if a run could not take this input, alone or among others."""
    what = f"input of workflow {definition.name!r}"
    run_input = input_of(definition, [raw])
    payload.decode(what, run_input)
    schema = definition.input_schema
    if schema is not None and (found := schema_check.problems(msgspec.json.decode(raw), schema)):
        raise InvalidPayload(
            what,
            f"it does not fit: {'; '.join(found)}",
            f"Correct it; `treadle workflow show {definition.name}` has the schema",
        )
    placed(definition, run_input, None, None)


def input_of(definition: WorkflowDefinition, inputs: list[bytes]) -> bytes:
    """Return the input of the run that these starts become, in their order."""
    if isinstance(definition.collect, Batch):
        return b"[" + b",".join(inputs) + b"]"
    return inputs[-1]


def run_of(workflow: str, digest: str, first: int, first_ms: int) -> str:
    """Return the id of the run whose window begins with the start of that sequence and time."""
    made = _digest(f"{workflow}:{digest}:{first}:{first_ms}")[:_RUN_DIGEST_CHARS]
    return f"{workflow[: ID_CHARS_MAX - 1 - _RUN_DIGEST_CHARS]}-{made}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
