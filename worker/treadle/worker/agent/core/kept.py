"""Outputs that are too long for the model, kept whole, and the tool that reads them again.

    a long output ──> Kept, Kept, ...          in parts, each a record of its own
                      Settled                  cut in the middle; the cut names the call
    read_output ────> a page of the whole      from the state: reading asks nobody

What is kept is part of the journal, so it outlives a worker like every result, and is written
once. It is bounded, because whoever takes a run over reads all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from treadle.worker.agent.core.spec import ToolSpec

READ = "read_output"

KEPT_BYTES_MAX = 4 * 1024 * 1024
"""Of all outputs of a step: as much as a worker reads and holds of a run without noticing it."""
PART_BYTES_MAX = 128 * 1024
"""Of one part as UTF-8. Its JSON takes six times as much at worst, and a message takes 1 MiB."""
PAGE_BYTES_MAX = 16 * 1024
"""About 4,000 tokens: enough to go on with, and a turn pays for it only once."""
PAGE_BYTES_MIN = 256
HEAD_BYTES_MAX = 200
"""Of the line above a page."""
LISTED_MAX = 20
"""Outputs named after a compaction, the last ones."""

SPEC = ToolSpec(
    name=READ,
    description=(
        "Read an output that was cut, page by page. Its notice of what is left out names the "
        "call_id. A page says where the next one begins; start anywhere."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "call_id": {"type": "string", "minLength": 1},
            "offset": {
                "type": "integer",
                "minimum": 0,
                "default": 0,
                "description": "The first character to read.",
            },
        },
        "required": ["call_id"],
        "additionalProperties": False,
    },
    idempotent=True,
)


class KeptOutput(msgspec.Struct, frozen=True):
    """One output, as far as its parts have been stored."""

    tool: str
    size_bytes: int
    """Of the whole, as UTF-8."""
    parts: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """True when no part is missing: a worker may have died over them."""
        return sum(len(part.encode()) for part in self.parts) == self.size_bytes


Outputs = Mapping[str, KeptOutput]
"""By the call's id, in the order in which they were kept."""


def parts(whole: bytes) -> Iterator[str]:
    """Yield the text in parts that a record holds; no character is split."""
    start = 0
    while start < len(whole):
        part = whole[start : start + PART_BYTES_MAX].decode("utf-8", "ignore")
        start += len(part.encode())
        yield part


def with_part(
    outputs: Outputs, call_id: str, tool: str, size_bytes: int, part: int, text: str
) -> dict[str, KeptOutput]:
    """Return the outputs with one part more; part 0 begins anew, as a call that runs again does."""
    before = outputs[call_id].parts if part else ()
    others = {id: each for id, each in outputs.items() if id != call_id}
    return {**others, call_id: KeptOutput(tool, size_bytes, (*before, text))}


def reference(call_id: str) -> str:
    """Return what the notice in a cut output says of the whole."""
    return f'{READ} with call_id "{call_id}" gives the whole'


def page(outputs: Outputs, arguments: Mapping[str, Any], bytes_max: int) -> str:
    """Return the page that a call asks for; raise ``ValueError``, in words for the model."""
    call_id, offset = arguments.get("call_id"), arguments.get("offset", 0)
    output = outputs.get(call_id) if isinstance(call_id, str) else None
    if output is None:
        known = ", ".join(list(outputs)[-LISTED_MAX:]) or "none"
        raise ValueError(f"no output of a call {call_id!r} is kept; those that are: {known}")
    text = "".join(output.parts)
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset < len(text):
        raise ValueError(f"offset must be a whole number from 0 to {len(text) - 1}, not {offset!r}")
    raw = text[offset : offset + bytes_max].encode()[:bytes_max]
    shown = raw.decode("utf-8", "ignore")
    end = offset + len(shown)
    following = f"the next page begins at offset {end}" if end < len(text) else "this is its end"
    head = f"Characters {offset} to {end - 1} of {len(text)} of what {output.tool} returned"
    return f"[{head}; {following}]\n{shown}"


def listed(outputs: Outputs) -> str:
    """Return which outputs can be read, where the notices may be gone; '' if none."""
    lines = [
        f"- {id}: {each.tool}, {each.size_bytes} bytes"
        for id, each in list(outputs.items())[-LISTED_MAX:]
        if each.is_whole
    ]
    if not lines:
        return ""
    return "\n".join([f"Outputs kept whole, to be read with {READ} by call_id:", *lines])


def page_bytes(result_bytes_max: int) -> int:
    """Return how much of an output one page shows where one result may have so many bytes."""
    return max(PAGE_BYTES_MIN, min(result_bytes_max - HEAD_BYTES_MAX, PAGE_BYTES_MAX))
