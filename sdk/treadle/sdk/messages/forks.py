"""A run made of another one: what it takes over, all of it in its own log.

    client ── OutcomeKept, RecordKept, StepGiven, signals, then RunRequested(fork) ──> events

The copies come first, so a request that is stored is whole, and nothing of the other run is asked
for any more: its retention cannot take anything away. The request names the copies by their
sequences, and the signals name it by its nonce: what another request of the id has left, because
its client died or it came second, is not the run's.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.messages.common import NO_RAW, Failure, FromClient
from treadle.sdk.spending import NOTHING, Spent


class Fork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """From where a run was forked, and what it takes over."""

    run: str
    """The run it was forked from."""
    step: str = ""
    """The step from which on it starts again; empty for a retry, or for all of them."""
    iteration: int = -1
    """Of that step, the iteration; -1 is its beginning."""
    trace: str = ""
    """The trace of the other run, as ``tracing.ids`` writes a reference; empty is none."""
    kept: dict[str, int] = {}
    """By step that is taken over: sequence of its ``OutcomeKept``."""
    given: dict[str, int] = {}
    """By step that begins otherwise than from its input: sequence of its ``StepGiven``."""
    is_retry: bool = False
    """True if it starts again where the other run has failed."""
    has_input: bool = False
    """True if the step, or the run, is given another input."""
    nonce: str = ""
    """Chosen for each call: of signals that name a fork, those with it are this one's. Empty is a
    request of before, which does not say whether it is a retry, or has an input."""
    since_ms: int = 0
    """From when on published events count, in ms since the epoch: those that counted for the other
    run, which may be what a step waits for. 0 is the request's own time."""
    cancelled_by: tuple[int, ...] = ()
    """Published events that have cancelled the other run: they do not cancel this one."""


class OutcomeKept(FromClient, frozen=True, tag="run.outcome_kept", tag_field="event", kw_only=True):
    """How a step of the other run ended: it is not executed again."""

    step: str
    outcome: Literal["completed", "skipped", "failed"]
    type: str = ""
    """Task type of a step whose output is in its register; empty for any other."""
    output: msgspec.Raw = NO_RAW
    failure: Failure | None = None
    iterations: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    published: int = 0
    """Of a step that waited for an event: which it got."""


class StepGiven(FromClient, frozen=True, tag="run.step_given", tag_field="event", kw_only=True):
    """What a step begins with, instead of the outputs it waited for."""

    step: str
    input: msgspec.Raw = NO_RAW
    iteration: int = 0
    """The first iteration of a loop, as the other run has counted."""
    spent: Spent = NOTHING
    """What the iterations before it have used."""
    checkpoint: msgspec.Raw = NO_RAW
    """The state that a handler had saved by then; null is none."""
    saved_at: int = 0
    """The iteration that saved it."""
    records: tuple[int, ...] = ()
    """Its journal by then: sequences of ``RecordKept``, in order."""


class RecordKept(FromClient, frozen=True, tag="run.record_kept", tag_field="event", kw_only=True):
    """A record of the journal of such a step."""

    step: str
    record: msgspec.Raw
