"""What to say of a record that is larger than the server takes: which value in it is to blame."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from treadle.sdk.errors import InvalidPayload
from treadle.worker.agent.core.entries import (
    Answered,
    Compacted,
    Entry,
    Heard,
    Judged,
    Noted,
    Opened,
    Settled,
    Stopped,
    innermost,
)


def oversize(entries: Sequence[Entry], step: str, refusal: InvalidPayload) -> InvalidPayload:
    """Return the error that names the largest value of a record which was refused."""
    largest = max(entries, key=lambda entry: len(msgspec.json.encode(entry)))
    size_bytes = len(msgspec.json.encode(largest))
    return InvalidPayload(
        f"{_what(innermost(largest))} in step {step!r}",
        f"it is {size_bytes} bytes of JSON, too large to be stored: {refusal}",
        "A tool's max_output bounds what is kept of its results; let it return less, or where "
        "the rest is to be found.",
    )


def _what(entry: Entry) -> str:
    match entry:
        case Settled():
            return f"the result of {entry.result.name} (call {entry.result.id!r})"
        case Answered():
            return "an answer of the model"
        case Judged():
            return f"the arguments of {', '.join(call.name for call in entry.calls)}"
        case Opened():
            return "the goal of the run"
        case Heard():
            return "what was said to the run"
        case Compacted():
            return "the summary of the conversation"
        case Noted():
            return f"{entry.field} of the run journal"
        case Stopped():
            return "the result of the run"
        case _:
            return f"an entry {entry.__struct_config__.tag!r} of the journal"
