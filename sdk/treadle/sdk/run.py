"""The run document: where a run stands, small, without payloads.

Written by the engine only, by compare-and-set; read by anyone. Outputs are in the ended
registers of the steps, inputs in the events: the document only refers to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from treadle.sdk.children import ParentRun, child_id
from treadle.sdk.definition import (
    ChoiceStep,
    MapStep,
    RespondStep,
    Singleton,
    SleepStep,
    Step,
    SubWorkflowStep,
    VersionPolicy,
    WaitStep,
)
from treadle.sdk.messages import Failure, Fork, MetadataValue
from treadle.sdk.spending import NOTHING, UNLIMITED, SpendingLimits, Spent

RunStatus = Literal[
    "scheduled", "queued", "running", "paused", "parked", "completed", "failed", "cancelled"
]
NOT_BEGUN: frozenset[str] = frozenset({"scheduled", "queued"})
StepStatus = Literal[
    "waiting", "deciding", "active", "parked", "completed", "skipped", "failed", "cancelled"
]
"""``deciding``: it is the step's turn, and its condition is asked. ``failed`` in a run that goes
on: the failure is handled."""

OVER: frozenset[str] = frozenset({"completed", "skipped", "failed"})
"""A step that nothing moves any more, in a run that goes on."""

UNDER_WAY: frozenset[str] = frozenset({"deciding", "active", "parked"})

WAITING = "waiting"
"""Failure type of a parked step whose handler asked to wait; its message says for what. Any other
type is the bound at which the step parked."""

SINGLETON = "singleton"
"""Failure type of a run that was cancelled for another one of its singleton."""

MAX_ATTEMPTS = "max_attempts"
"""Failure type of a parked step whose attempts are used up; its message has the last failure."""

PROVIDER_BUSY = "the model's provider is busy"
"""How the message of a step begins that waits because the provider of its model asked for it."""

TERMINAL: frozenset[str] = frozenset({"completed", "failed", "cancelled"})


class StepEntry(msgspec.Struct, frozen=True, array_like=True):
    """Where one step stands. Steps that still wait have no entry."""

    status: StepStatus
    iterations: int = 0
    """Committed iterations, known when the step has ended or parked."""
    started_ms: int = 0
    ended_ms: int = 0
    event: str = ""
    """Id of the event that brought it here; of a step that waited, the one with its output."""
    failure: Failure | None = None
    position: int = 0
    """Sequence of the register's value that the entry tells of: a fact about an older value
    comes late and changes nothing."""
    spent: Spent = NOTHING
    """What the step has used, known when it has ended or parked."""
    attempt: int = 0
    """Of a step that starts runs: which of them it is at, counted from 1."""
    due_ms: int = 0
    """When such a step starts its next run, after a failure; 0 once it may. Of a sleep by an
    expression or by cron: when it is over."""


class Pause(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The newest pause of a run and the newest resume: the one that was stored later counts."""

    event: str = ""
    """Id of the event that paused the run; empty is none."""
    reason: str = ""
    since_ms: int = 0
    resumed: str = ""
    """Id of the event that resumed it; empty is none."""
    resumed_ms: int = 0

    @property
    def holds(self) -> bool:
        """True while nothing may start."""
        return sequence_of(self.event) > sequence_of(self.resumed)


def sequence_of(event: str) -> int:
    """Return the sequence in an event's id; 0 for no event."""
    return int(event[1:]) if event else 0


class MapState(msgspec.Struct, frozen=True, array_like=True):
    """How far a map is, and how its list is cut: as large as what is under way, whatever the list.

    Where a chunk begins follows from the list and two numbers, which stay what they were.
    """

    items: int
    chunks: int
    chunk_items: int
    """Most items of one chunk."""
    chunk_bytes: int
    """Most bytes of one chunk, unless one item alone has more."""
    next: int = 0
    """The first chunk that has not begun."""
    under_way: tuple[tuple[int, int], ...] = ()
    """Chunks that have begun and not ended, as ranges with both their ends, in order. Of a step
    that failed or was cancelled: those that had to be stopped."""
    done: int = 0
    """Items of the chunks that are over."""
    failed: int = 0
    """Items that failed for good."""
    size_bytes: int = 0
    """Of the results of the chunks that are over."""


class RunDocument(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """State of one run. ``status`` never leaves a terminal value."""

    run: str
    workflow: str
    definition: str
    """Content hash of the definition the run is pinned to: which steps it has."""
    version_policy: VersionPolicy = "pin"
    """Whether its loops take newer versions."""
    domain: str = "main"
    status: RunStatus = "running"
    failure: Failure | None = None
    """Why the run failed, was cancelled or is parked, with the step in ``failed_step``."""
    failed_step: str = ""
    undoing: Literal["", "failed", "cancelled"] = ""
    """How the run ends once its compensations are over; empty while nothing is undone."""
    requested: int = 0
    """Sequence of the RunRequested event in the events stream: the input is there."""
    requested_ms: int = 0
    deadline_ms: int = 0
    """End of the run's ``timeout_s``, which begins with its first step; 0 is none."""
    ended_ms: int = 0
    starts_ms: int = 0
    """When a scheduled run begins, or was to begin; 0 is at once."""
    placed: int = 0
    """Sequence of the event with which a scheduled run has entered its lane; 0 is none."""
    lane: str = ""
    """The run is queued while ``places`` earlier requests of this lane are not over; empty is
    no lane."""
    places: int = 1
    """Runs of its lane that may be active with it, itself included."""
    fork: Fork | None = None
    """From where the run was forked; None if it was not."""
    pause: Pause | None = None
    """Whether nothing may start; None if nobody has ever paused or resumed the run."""
    singleton: Singleton = "none"
    """What the run does about the runs before it in its lane: ``cancel_older`` ends them."""
    steps: dict[str, StepEntry] = {}
    maps: dict[str, MapState] = {}
    """Of the maps that have begun."""
    signals: dict[str, tuple[int, ...]] = {}
    """Signals that no step has consumed: name to event sequences, oldest first."""
    signals_received: int = 0
    """Signals counted so far, each once."""
    signal_ids: tuple[str, ...] = ()
    """Newest ids chosen by senders, to recognise a repeated signal."""
    applied: tuple[str, ...] = ()
    """Ids of events that are not idempotent by nature and were applied."""
    applied_below: int = 0
    """Every such event below this sequence was applied too, and its id forgotten."""
    chosen: dict[str, str] = {}
    """By choice that has completed: the branch it took."""
    used: dict[str, tuple[int, ...]] = {}
    """By step that waits for an event: the published ones that steps before it had got when it
    began, if there are any."""
    responded: str = ""
    """The respond step that has answered the run's request: the first one that has completed."""
    limits: SpendingLimits = UNLIMITED
    """What all loops of the run and of its children may use, as it was raised since."""
    parent: ParentRun | None = None
    """The step of another run that started it."""
    metadata: Mapping[str, MetadataValue] = {}
    priority: int = 0
    """Given at its start; 0 is none, and the steps' own counts."""
    trace: str = ""
    """The run's trace as ``tracing.ids`` writes a reference; empty is none."""
    write: str = ""
    """Nonce of the write: recognises a compare-and-set whose acknowledgement was lost."""

    @property
    def events_since_ms(self) -> int:
        """From when on published events count for the run: of one that was forked, since the
        first of them was requested."""
        return (self.fork and self.fork.since_ms) or self.requested_ms

    @property
    def cancelled_before_by(self) -> tuple[int, ...]:
        """Published events that have cancelled a run it was forked from, which they do once."""
        return self.fork.cancelled_by if self.fork else ()

    @property
    def place(self) -> int:
        """Sequence of the event that is the run's place in its lane; 0 while it has none."""
        return self.placed if self.starts_ms else self.requested

    @property
    def is_terminal(self) -> bool:
        """True when the status can change no more."""
        return self.status in TERMINAL

    @property
    def is_paused(self) -> bool:
        """True while nothing of the run may start."""
        return self.pause is not None and self.pause.holds


def child_of(run: RunDocument, step_id: str, attempt: int = 0) -> str:
    """Return the id of the run that a step has started last, or with an attempt."""
    return child_id(run.run, run.requested, step_id, attempt or run.steps[step_id].attempt)


def detached_output(run: RunDocument, step_id: str) -> bytes:
    """Return the output of a step that does not wait for the run it has started: JSON."""
    return b'{"run_id":"%b"}' % child_of(run, step_id).encode()


def kept_output(run: RunDocument, step: Step) -> bytes | None:
    """Return the output that the document itself holds of a step that is over, as JSON.

    That of a step which hands nothing on is ``null``; None says that it is stored elsewhere.
    """
    if not has_output(run, step):
        return b"null"
    if isinstance(step, ChoiceStep):
        return msgspec.json.encode(run.chosen[step.id])
    if isinstance(step, SubWorkflowStep) and step.detached and not is_copied(run, step):
        return detached_output(run, step.id)
    return None


def has_output(run: RunDocument, step: Step) -> bool:
    """True when a step has completed with something to hand on; null stands for it otherwise."""
    entry = run.steps.get(step.id)
    if entry is None or entry.status != "completed" or isinstance(step, SleepStep | RespondStep):
        return False
    # What waits completes with the event it waited for, or with that of its timer.
    return not isinstance(step, WaitStep) or entry.event.startswith("e")


def is_kept(run: RunDocument, step_id: str) -> bool:
    """True for a step that was taken over of another run: it was never executed in this one."""
    return run.fork is not None and step_id in run.fork.kept


def is_copied(run: RunDocument, step: Step) -> bool:
    """True for a step whose output is in the event that took it over of another run.

    Of a step that a worker executes it is in a register, as everywhere.
    """
    return is_kept(run, step.id) and isinstance(step, MapStep | SubWorkflowStep)
