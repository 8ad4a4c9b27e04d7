"""A timeline: what a run did, piece by piece."""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.client.view import no_step
from treadle.sdk.messages import NO_RAW, Failure
from treadle.sdk.spending import NOTHING, Spent
from treadle.sdk.subjects import step_of

SpanKind = Literal[
    "scheduled",
    "lane",
    "attempt",
    "pause",
    "wait",
    "parked",
    "signal",
    "event",
    "approval",
    "choice",
    "respond",
    "child",
]
"""``scheduled``: not to begin yet; ``lane``: queued; ``attempt``: one execution of one iteration,
from its dispatch to its verdict; ``pause``: a delay; ``wait``: for a message or a time; ``parked``:
at a bound; ``signal``, ``event``, ``approval``: a step that waits for one; ``choice``: a branch
that was taken; ``child``: a step that waits for the run it has started."""


class Span(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One piece of a run's time."""

    kind: SpanKind
    begin_ms: int
    end_ms: int = 0
    """0 while it lasts."""
    step: str = ""
    iteration: int = 0
    attempt: int = 0
    outcome: str = ""
    """Of an attempt: continued, waiting, completed, failed, lost or cancelled. Of a wait: what
    ended it; of a step that waits, its end, or ``timed out``."""
    detail: str = ""
    worker: str = ""
    failure: Failure | None = None
    output: msgspec.Raw = NO_RAW
    spent: Spent = NOTHING
    """What the iteration had used by then, its earlier attempts included."""

    def took_ms(self, now_ms: int) -> int:
        """Return how long it took, or takes so far."""
        return max(0, (self.end_ms or now_ms) - self.begin_ms)


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did, in the order in which it began."""

    run: str
    workflow: str
    status: str
    requested_ms: int
    ended_ms: int = 0
    """0 while it lives."""
    steps: tuple[str, ...] = ()
    """All steps of the workflow."""
    loops: tuple[str, ...] = ()
    """Steps that iterate."""
    spans: tuple[Span, ...] = ()

    def of_step(self, step: str) -> Timeline:
        """Return what one step did; raise ``UserError`` if the workflow has none of that id."""
        if self.steps and step not in self.steps:
            raise no_step(self.run, self.workflow, self.steps, step)
        spans = tuple(span for span in self.spans if step_of(span.step) == step)
        return msgspec.structs.replace(self, spans=spans)
