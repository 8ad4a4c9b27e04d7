"""What a step's register holds, and the checkpoint beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from treadle.sdk.asks import Ask
from treadle.sdk.messages.common import NO_RAW, Failure, MetadataValue, TaskInput
from treadle.sdk.messages.flow import Flow
from treadle.sdk.messages.maps import ChunkDone, MapChunk
from treadle.sdk.spending import NOTHING, UNLIMITED, SharedBudget, SpendingLimits, Spent


class Task(
    msgspec.Struct, frozen=True, omit_defaults=True, tag="task", tag_field="kind", kw_only=True
):
    """One dispatch of a step to a worker, and the state of the step: they are the same value."""

    parent: str
    """Id of the event that made this value (stream letter and sequence)."""
    workflow: str
    definition: str
    loop: bool = False
    """True for a step of kind agent loop: the handler may continue."""
    iteration: int = 0
    """Counts from 0."""
    attempt: int = 1
    """Executions of this iteration so far, this one included."""
    failures: int = 0
    """Attempts of this iteration that ended in a failure; counts against the retry policy."""
    losses: int = 0
    """Attempts of this iteration whose worker vanished."""
    input: TaskInput
    checkpoint: int = 0
    """Sequence of the checkpoint that stands; 0 is none, -1 is unknown: read it."""
    started_ms: int = 0
    """First dispatch of the step."""
    deadline_ms: int = 0
    """End of the loop's ``max_duration``; 0 is none."""
    parked_ms: int = 0
    """Time spent parked so far; ``deadline_ms`` has moved by as much."""
    timeout_ms: int = 0
    """Longest execution of this attempt; 0 is unlimited."""
    uncounted: int = 0
    """Of the committed iterations: those that did nothing but wait, and do not count."""
    max_iterations: int = 1
    budget_warn_at: int = 0
    budget_force_at: int = 0
    wrap_up: str = ""
    """Name of the bound that was reached, when this is the last, wrapping-up iteration."""
    last_failure: Failure | None = None
    """Why the previous attempt of this iteration failed."""
    seen: int = 0
    """Newest message to the step that committed iterations took note of."""
    limits: SpendingLimits = UNLIMITED
    budgets: tuple[SharedBudget, ...] = ()
    """Of the run and of those above it, nearest first, as they stood at the last boundary."""
    spent: Spent = NOTHING
    """What the committed iterations have used."""
    spent_now: Spent = NOTHING
    """What the attempts of this iteration have used, as far as they told."""
    asked: int = 0
    """Sequence of the ``step.waiting`` whose asks this iteration looks at again; 0 is none."""
    trace: str = ""
    """The run's trace; empty is none."""
    follows: bool = False
    """Of a loop: each iteration begins under the newest version of the workflow. ``definition`` is
    the one that this iteration is under."""
    chunk: MapChunk | None = None
    """The task works through a part of a map's list, and ``timeout_ms`` is an item's."""
    flow: Flow | None = None
    """The limits under which it is given out."""
    claim: int = 0
    """Sequence of the queued register that took the slots of this dispatch; 0 is none."""
    reserved_ms: int = 0
    """The time that its rate limits gave this dispatch; 0 is none."""
    queued_ms: int = 0
    """For how long this dispatch waited for its limits."""
    metadata: Mapping[str, MetadataValue] = {}
    """The run's."""
    step_metadata: Mapping[str, str] = {}

    @property
    def counted(self) -> int:
        """How many iterations are committed that were more than a wait."""
        return self.iteration - self.uncounted

    @property
    def counted_max(self) -> int:
        """How many iterations may be that are more than a wait."""
        return self.max_iterations - self.uncounted


class Queued(
    msgspec.Struct, frozen=True, omit_defaults=True, tag="queued", tag_field="kind", kw_only=True
):
    """A task that waits for its limits; no worker touches it."""

    parent: str
    task: Task
    since_ms: int


class Delayed(msgspec.Struct, frozen=True, tag="delayed", tag_field="kind", kw_only=True):
    """A task whose due time has not come; the worker that receives it hands it back until then.

    Never executed: when due, the receiver publishes ``task.due`` and the engine publishes the
    task itself.
    """

    parent: str
    task: Task
    due_ms: int


class Sleeping(msgspec.Struct, frozen=True, tag="sleeping", tag_field="kind", kw_only=True):
    """A task that waits for a timer of the timers stream; no worker touches it."""

    parent: str
    task: Task
    due_ms: int


class Parked(
    msgspec.Struct, frozen=True, omit_defaults=True, tag="parked", tag_field="kind", kw_only=True
):
    """A step that reached a bound and waits to be resumed; or that waits because it said so.

    No worker is held, however long. ``task`` is what is dispatched when it goes on.
    """

    parent: str
    task: Task
    reason: str
    """The bound; of a step that waits, what it waits for, in its own words."""
    parked_ms: int
    waits: bool = False
    """Its handler asked to wait: a message to the step, or ``due_ms``, sends it on too."""
    due_ms: int = 0
    """When it goes on in any case; 0 is never."""
    seen: int = 0
    """Messages up to this sequence do not send it on."""
    asks: tuple[Ask, ...] = ()
    """What people are asked, as long as it waits."""
    failure: Failure | None = None
    """The last failure of a step whose attempts are used up."""
    paused: bool = False
    """It reached no bound and waits for nothing: the run is paused."""
    line: str = ""
    """Key of the provider's budget in whose line it waits: its turn sends it on too."""


Outcome = Literal["completed", "failed", "cancelled"]


class Ended(
    msgspec.Struct, frozen=True, omit_defaults=True, tag="ended", tag_field="kind", kw_only=True
):
    """The end of a step. A register that holds it never moves again."""

    parent: str
    outcome: Outcome
    iterations: int
    """Iterations that were committed."""
    attempt: int = 1
    output: msgspec.Raw = NO_RAW
    failure: Failure | None = None
    started_ms: int = 0
    ended_ms: int = 0
    spent: Spent = NOTHING
    """What the step has used in all."""
    chunk: ChunkDone | None = None
    """Of a chunk of a map that is over, with or without failed items."""
    slots: tuple[str, ...] = ()
    """Keys of the limits in which it may have left a slot."""


Register = Task | Queued | Delayed | Sleeping | Parked | Ended
LiveRegister = Task | Queued | Delayed | Sleeping | Parked


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A handler's saved state, and which execution wrote it."""

    iteration: int
    attempt: int
    token: int
    nonce: str
    """Fresh per write: recognises a write whose acknowledgement was lost."""
    state: msgspec.Raw
