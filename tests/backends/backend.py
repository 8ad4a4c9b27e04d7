"""What a tracing backend is to these tests: where to send, and what it then shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

Kind = Literal["AGENT", "CHAIN", "LLM", "TOOL"]


@dataclass(frozen=True)
class Shown:
    """A span as a backend gives it back."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    start_us: int
    end_us: int
    is_error: bool
    links: frozenset[tuple[str, str]] | None
    """Trace and span of each; None where the backend keeps none."""
    content: tuple[str, str] = field(default=("", ""), compare=False)
    """What it was given and what came of it, as JSON; empty is not shown."""


@dataclass(frozen=True)
class Total:
    """What a backend makes of a whole trace."""

    input_tokens: int
    output_tokens: int
    session: str
    """What groups traces; empty if the trace is in no group."""


class Backend(Protocol):
    """One that runs."""

    name: str

    def variables(self) -> dict[str, str]:
        """What an engine's environment has to hold for its spans to come here."""
        ...

    def spans(self, trace_id: str) -> list[Shown]:
        """Return all that has come of a trace."""
        ...

    def total(self, trace_id: str) -> Total:
        """Return the backend's own sums of a trace that has its root."""
        ...

    def page(self, span: Shown) -> str:
        """Return the address of the page that shows a span in its trace."""
        ...

    def stop(self) -> None:
        """End it."""
        ...
