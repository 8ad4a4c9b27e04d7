"""What messages of every direction hold: failures, and where a task's input is."""

from __future__ import annotations

from typing import Any

import msgspec

MetadataValue = str | bool | int | float
"""A label of a run; a time is a text (``treadle.sdk.metadata``)."""
NO_RAW = msgspec.Raw(b"null")


class FromClient(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """What a client writes: an unknown field is a mistake of somebody."""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A failure as data: it crosses processes and outlives them."""

    type: str
    """Short stable name: an exception's class name, or a reason such as ``max_iterations``."""
    message: str = ""
    retryable: bool = True
    retry_after_ms: int = 0
    """Least delay before the next attempt that the handler asked for."""
    traceback: str = ""
    """Bounded text for people; code never parses it."""
    place: str = ""
    """File and line of the handler's code where it was raised, as the worker sees them."""

    def __str__(self) -> str:
        """What failed, in words: exceptions without a text are their type alone, and a message
        that begins with its type does not say it twice."""
        if self.message.startswith(f"{self.type} "):
            return self.message
        return f"{self.type}: {self.message}" if self.message.strip() else self.type


class Inline(msgspec.Struct, frozen=True, tag="inline"):
    """The input itself."""

    value: msgspec.Raw


class FromRun(msgspec.Struct, frozen=True, tag="run"):
    """The run's own input, too large to copy: read from the event at this sequence."""

    sequence: int


class MapOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the output of a map is: in the ended registers of so many chunks."""

    chunks: int
    items: int
    with_failures: bool = False
    """Items may fail: the output is an object of results and failures."""


class FromSteps(msgspec.Struct, frozen=True, tag="steps"):
    """Outputs of earlier steps, too large to copy: read from their ended registers."""

    steps: dict[str, str]
    """Step id to task type ('' for one that is not executed: what it hands on is below)."""
    sequences: dict[str, int] = {}
    """Of a step that waited: the events-stream sequence that holds its output; 0 is null."""
    single: bool = False
    """True: the output of the only step; false: an object keyed by step id."""
    values: dict[str, msgspec.Raw] = {}
    """Of a step whose output is stored nowhere else: the output. By leaf of the shape: what a plan
    gives the step."""
    maps: dict[str, MapOutput] = {}
    """Those of the steps that are maps: the registers of their chunks have the output."""
    shape: Any = None
    """How the outputs are put together where it is neither: see ``shape.py``."""


TaskInput = Inline | FromRun | FromSteps
