"""The wire: every message that engine, worker and client exchange.

    client  --RunRequested, SignalReceived, MessageSent, CancelRequested, ResumeRequested-->  events
    worker  --StepContinued, StepWaiting, StepCompleted, StepFailed, TaskLost, TaskDue---->  events
    timers  --TimerFired---------------------------------------------------->  fire subject
    engine  --LaneGranted--------------------------------------------------->  events
    engine  --Task, Delayed, Sleeping, Parked, Ended (registers)------------>  steps bucket
    worker  --Checkpoint---------------------------------------------------->  steps bucket
    engine  --RunDocument (``document.py`` of the engine's core)------------->  runs bucket

Tags are short stable strings. A type changes by adding optional fields; a changed meaning is a
new tag. The run a message belongs to is named by its subject, never by its body.

Messages that clients write forbid unknown fields; those between engine and worker ignore
them, so that two versions can run side by side. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.asks import Ask
from treadle.sdk.spending import NOTHING, UNLIMITED, SpendingLimits, Spent
from treadle.sdk.tracing.span import SpanPart

NO_RAW = msgspec.Raw(b"null")


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
        """What failed, in words: exceptions without a text are their type alone."""
        return f"{self.type}: {self.message}" if self.message.strip() else self.type


# ------------------------------------------------------------------ inputs of a task


class Inline(msgspec.Struct, frozen=True, tag="inline"):
    """The input itself."""

    value: msgspec.Raw


class FromRun(msgspec.Struct, frozen=True, tag="run"):
    """The run's own input, too large to copy: read from the event at this sequence."""

    sequence: int


class FromSteps(msgspec.Struct, frozen=True, tag="steps"):
    """Outputs of earlier steps, too large to copy: read from their ended registers."""

    steps: dict[str, str]
    """Step id to task type ('' for a signal step, whose output is the event ``sequence``)."""
    sequences: dict[str, int] = {}
    """Step id to the events-stream sequence that holds the output of a signal step."""
    single: bool = False
    """True: the output of the only step; false: an object keyed by step id."""


TaskInput = Inline | FromRun | FromSteps


# ------------------------------------------------------------------ client -> engine


class _FromClient(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    pass


class RunRequested(_FromClient, frozen=True, tag="run.requested", tag_field="event", kw_only=True):
    workflow: str
    definition: str
    """Content hash of the definition the run is pinned to."""
    input: msgspec.Raw = NO_RAW
    metadata: dict[str, str] = {}
    lane: str = ""
    """The run waits until every earlier request of this lane is over; empty is no lane."""
    trace: str = ""
    """The run's trace as ``tracing.ids`` writes a reference; empty is none."""
    caller: str = ""
    """W3C traceparent of the span in which the run was requested."""
    trace_state: str = ""
    """W3C tracestate of that span."""


class SignalReceived(
    _FromClient, frozen=True, tag="run.signal_received", tag_field="event", kw_only=True
):
    name: str
    payload: msgspec.Raw = NO_RAW
    id: str = ""
    """Chosen by the sender: two signals with one id are one signal."""


MessageKind = Literal["steer", "follow_up", "reply"]


class MessageSent(_FromClient, frozen=True, tag="run.message", tag_field="event", kw_only=True):
    """A message to a loop, stored on a subject of the step's own, where its worker reads it.

    It is appended by compare-and-set, so that one step has one message of an id, for ever.
    """

    step: str
    kind: MessageKind = "steer"
    """A label for the handler: ``steer`` what it is doing, ``follow_up`` what it has done,
    ``reply`` to what it asked."""
    id: str
    """Chosen by the sender: two messages to one step with one id are one message."""
    payload: msgspec.Raw = NO_RAW


class CancelRequested(
    _FromClient, frozen=True, tag="run.cancel_requested", tag_field="event", kw_only=True
):
    reason: str = ""


class ResumeRequested(
    _FromClient, frozen=True, tag="run.resume_requested", tag_field="event", kw_only=True
):
    """Move parked steps on, with raised bounds. ``add_*`` raise by, ``max_*`` raise to."""

    step: str = ""
    """Only this step; empty is every parked step."""
    max_iterations: int = 0
    add_iterations: int = 0
    max_duration_ms: int = 0
    add_duration_ms: int = 0
    max_spending: SpendingLimits = UNLIMITED
    add_spending: SpendingLimits = UNLIMITED
    """What is unlimited stays so, whatever is named here."""


# ------------------------------------------------------------------ worker -> engine


class _Settle(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    step: str
    type: str
    token: int
    """Sequence of the register message the execution holds: the fencing token."""
    iteration: int = 0
    attempt: int = 1
    worker: str = ""
    queued_us: int = 0
    """When the task was stored, by the server's clock; microseconds, like ``taken_us``. Both are 0
    in a run without a trace."""
    taken_us: int = 0
    """When its execution began, by the worker's clock; 0 if it is not known."""


class _Verdict(_Settle, frozen=True, kw_only=True):
    head: int
    """Newest sequence of the register and checkpoint pair the execution knows."""
    spent: Spent = NOTHING
    """What this iteration has used so far, all its attempts together: a count that is repeated
    counts once."""
    seen: int = 0
    """Sequence of the newest message to the step that the execution took note of; 0 is none."""
    takes_messages: bool = False
    """The handler asks for messages: the step does not end while there is one it has not seen."""
    parts: tuple[SpanPart, ...] = ()
    """What the iteration did, for its trace: see ``tracing.span``."""
    content: dict[int, dict[str, str]] = {}
    """By part: attributes with content that nothing else that is stored holds. Only if the worker
    is asked for content, bounded, and left out before the verdict is too large."""


class StepContinued(_Verdict, frozen=True, tag="step.continued", tag_field="event", kw_only=True):
    output: msgspec.Raw = NO_RAW
    """The next iteration's input."""
    delay_ms: int = -1
    """Pause before the next iteration; -1 is the loop's own ``loop_delay_s``."""


class StepWaiting(_Verdict, frozen=True, tag="step.waiting", tag_field="event", kw_only=True):
    """The iteration is done, and the next one begins when a message comes or the time has."""

    reason: str = ""
    """What it waits for, in words."""
    due_ms: int = 0
    """When it goes on in any case; 0 is never."""
    output: msgspec.Raw = NO_RAW
    """The next iteration's input."""
    asks: tuple[Ask, ...] = ()
    """What people are asked."""


class StepCompleted(_Verdict, frozen=True, tag="step.completed", tag_field="event", kw_only=True):
    output: msgspec.Raw = NO_RAW


class StepFailed(_Verdict, frozen=True, tag="step.failed", tag_field="event", kw_only=True):
    failure: Failure


class TaskLost(_Settle, frozen=True, tag="task.lost", tag_field="event", kw_only=True):
    """The execution that held ``token`` will not settle; dispatch the task again."""

    reason: str = ""


class TaskDue(_Settle, frozen=True, tag="task.due", tag_field="event", kw_only=True):
    """The delay of the register at ``token`` is over."""


# ------------------------------------------------------------------ timers -> engine

TimerKind = Literal["step_deadline", "run_deadline", "wake"]


class TimerFired(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag="timer.fired",
    tag_field="event",
    kw_only=True,
):
    """A schedule fired. It is a hint: the decision is always a compare-and-set."""

    kind: TimerKind
    step: str = ""
    type: str = ""
    token: int = 0
    due_ms: int = 0


# ------------------------------------------------------------------ engine -> engine


class LaneGranted(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag="run.lane_granted",
    tag_field="event",
    kw_only=True,
):
    """Every earlier request of the run's lane is over: a queued run begins. Twice is once."""

    lane: str
    request: int
    """Sequence of the request it is for: an id may be used again after its run has gone."""


SettleEvent = StepContinued | StepWaiting | StepCompleted | StepFailed
Settled = StepContinued | StepWaiting | StepCompleted | StepFailed | TaskLost
"""What an execution ends with: its own verdict, or that there will be none."""
TaskEvent = Settled | TaskDue
ClientEvent = RunRequested | SignalReceived | MessageSent | CancelRequested | ResumeRequested
Event = TaskEvent | ClientEvent | TimerFired | LaneGranted


# ------------------------------------------------------------------ registers


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
    spent: Spent = NOTHING
    """What the committed iterations have used."""
    spent_now: Spent = NOTHING
    """What the attempts of this iteration have used, as far as they told."""
    asked: int = 0
    """Sequence of the ``step.waiting`` whose asks this iteration looks at again; 0 is none."""
    trace: str = ""
    """The run's trace; empty is none."""


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


Register = Task | Delayed | Sleeping | Parked | Ended
LiveRegister = Task | Delayed | Sleeping | Parked


class Checkpoint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A handler's saved state, and which execution wrote it."""

    iteration: int
    attempt: int
    token: int
    nonce: str
    """Fresh per write: recognises a write whose acknowledgement was lost."""
    state: msgspec.Raw


# ------------------------------------------------------------------ presence


class WorkerPresence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A worker or engine process, refreshed in the workers bucket while it lives."""

    incarnation: str
    role: Literal["worker", "engine"] = "worker"
    name: str = ""
    host: str = ""
    """Identifies the machine boot and pid namespace: two processes with one value can see
    each other's pids."""
    pid: int = 0
    types: tuple[str, ...] = ()
    concurrency: int = 0
    domain: str = "main"
    started_ms: int = 0
    version: str = ""
    projects: bool = False
    """An engine that can write the traces of runs; the oldest one does."""
    measures: bool = False
    """An engine that can count what happens in the namespace; the oldest one does."""
    blocked_ms: int = 0
    """For how long its event loop has stood still; 0 while it goes round."""
    blocked_at: str = ""
    """The line that holds the loop, as ``file:line``."""
    blocked_type: str = ""
    """Task type of the handler on that line; empty when it is not known which."""
    blocked_run: str = ""
    """The run whose task that handler executes."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A task that a worker holds."""

    run: str
    step: str
    type: str
    token: int
    executing_ms: int = -1
    """For how long its handler has been running; 0 while the task waits for a slot of its worker,
    -1 is not told."""


class Beat(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A worker's sign of life, on core NATS, several times a second."""

    presence: WorkerPresence
    held: tuple[Held, ...] = ()
    """Every task it holds."""
    leaving: bool = False
    """The process has drained and ends; what it still holds is lost."""


class CancelNotice(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Engine to workers on core NATS: stop executing this run's (or step's) tasks."""

    run: str
    step: str = ""
    reason: str = ""


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What could not be processed, or a run that failed, with all that is needed to replay it."""

    reason: str
    """``run_failed``, ``corrupt_event``, ``poison_event``, ``unknown_run``."""
    run: str
    workflow: str = ""
    step: str = ""
    failure: Failure | None = None
    subject: str = ""
    event: str = ""
    """Event id of the message, if one caused this."""
    body_base64: str = ""
    """The original message, byte for byte; its beginning if ``body_bytes`` is set."""
    body_bytes: int = 0
    """Size of a message too large for a letter that holds all of it; 0 if this one does."""
    whole_body_at: str = ""
    """Where such a message is stored whole, until the run's retention has passed."""
    at_ms: int = 0
