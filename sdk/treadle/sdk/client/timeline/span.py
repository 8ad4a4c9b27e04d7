"""A timeline: what a run did, piece by piece."""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.client.origin import ForkedFrom
from treadle.sdk.client.view import no_step
from treadle.sdk.messages import NO_RAW, Failure
from treadle.sdk.spending import NOTHING, Spent
from treadle.sdk.subjects import parse_chunk, step_of
from treadle.sdk.wording import items_text

SpanKind = Literal[
    "scheduled",
    "lane",
    "attempt",
    "pause",
    "wait",
    "parked",
    "paused",
    "signal",
    "event",
    "approval",
    "choice",
    "respond",
    "child",
    "map",
]
"""``scheduled``: not to begin yet; ``lane``: queued; ``attempt``: one execution of one iteration,
from its dispatch to its verdict; ``pause``: a delay; ``wait``: for a message or a time; ``parked``:
at a bound; ``paused``: the whole run, by a person; ``signal``, ``event``, ``approval``: a step that
waits for one; ``choice``: a branch that was taken; ``child``: a step that waits for the run it has
started; ``map``: a whole map, whose chunks have attempts of their own."""


class MapCounts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far a map has come."""

    items: int
    done: int
    """Items of the chunks that are over, the failed ones included."""
    failed: int = 0
    """Items that failed for good."""
    chunks: int = 0
    """Tasks into which its list is cut."""
    retried: int = 0
    """Chunks that were given out more than once: items of them failed, or their worker was lost."""

    def __str__(self) -> str:
        """Return them in words."""
        again = f", {self.retried} tried again" if self.retried else ""
        return f"{items_text(self.done, self.items, self.failed)}; {self.chunks} chunks{again}"


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
    counts: MapCounts | None = None
    """Of a map."""

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
    read_ms: int = 0
    """When it was read: so long has lasted by then what lasts."""
    steps: tuple[str, ...] = ()
    """All steps of the workflow."""
    loops: tuple[str, ...] = ()
    """Steps that iterate."""
    version: str = ""
    """Of the workflow, the one that the run began with."""
    input: msgspec.Raw = NO_RAW
    failure: str = ""
    """Why the run has failed or was cancelled, with the step."""
    made_of: ForkedFrom | None = None
    """The run that it is a retry or a fork of."""
    kept: dict[str, str] = {}
    """By step that it has taken over of that run, and has no span of: how it ended."""
    spans: tuple[Span, ...] = ()

    def of_step(self, step: str) -> Timeline:
        """Return what one step did; raise ``UserError`` if the workflow has none of that id."""
        if self.steps and step not in self.steps:
            raise no_step(self.run, self.workflow, self.steps, step)
        spans = tuple(span for span in self.spans if step_of(span.step) == step)
        kept = {name: ended for name, ended in self.kept.items() if name == step}
        return msgspec.structs.replace(self, spans=spans, kept=kept)

    def without_chunks(self) -> Timeline:
        """Return it with one span for each map, and none for its chunks."""
        spans = tuple(span for span in self.spans if parse_chunk(span.step) is None)
        return msgspec.structs.replace(self, spans=spans)
