"""The wire: every message that engine, worker and client exchange.

    client  --RunRequested, SignalReceived, MessageSent, CancelRequested,
            PauseRequested, ResumeRequested------------------------------->  events
    worker  --StepContinued, StepWaiting, StepCompleted, StepFailed, TaskLost, TaskDue---->  events
    timers  --TimerFired---------------------------------------------------->  fire subject
    engine  --LaneEntered, LaneGranted, EventMatched, ChildEnded, ParentEnded------------->  events
    engine  --Task, Queued, Delayed, Sleeping, Parked, Ended (registers)---->  steps bucket
    worker  --Checkpoint---------------------------------------------------->  steps bucket
    engine  --RunDocument (``document.py`` of the engine's core)------------->  runs bucket

Tags are short stable strings. A type changes by adding optional fields; a changed meaning is a
new tag. The run a message belongs to is named by its subject, never by its body.

Messages that clients write forbid unknown fields; those between engine and worker ignore
them, so that two versions can run side by side. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from treadle.sdk.messages.common import (
    NO_RAW,
    Failure,
    FromRun,
    FromSteps,
    Inline,
    MapOutput,
    MetadataValue,
    TaskInput,
)
from treadle.sdk.messages.dead_letter import DeadLetter, LetterMark, LetterState
from treadle.sdk.messages.flow import (
    Flow,
    Holder,
    Line,
    RateClaim,
    RateRecord,
    SlotClaim,
    SlotRecord,
    SlotWaiter,
)
from treadle.sdk.messages.forks import Fork, OutcomeKept, RecordKept, StepGiven
from treadle.sdk.messages.internal import (
    ChildEnded,
    EventMatched,
    LaneEntered,
    LaneGranted,
    ParentEnded,
    RunSuperseded,
    TimerFired,
    TimerKind,
)
from treadle.sdk.messages.maps import ChunkDone, ItemFailure, MapChunk, Results
from treadle.sdk.messages.presence import Beat, CancelNotice, Held, WorkerPresence
from treadle.sdk.messages.providers import (
    ProviderLine,
    ProviderRecord,
    ProviderSaid,
    ProviderWaiter,
)
from treadle.sdk.messages.registers import (
    Checkpoint,
    Delayed,
    Ended,
    LiveRegister,
    Outcome,
    Parked,
    Queued,
    Register,
    Sleeping,
    Task,
)
from treadle.sdk.messages.requests import (
    CancelRequested,
    MessageKind,
    MessageSent,
    PauseRequested,
    ResumeRequested,
    RunRequested,
    SignalReceived,
)
from treadle.sdk.messages.verdicts import (
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    TaskDue,
    TaskLost,
)

SettleEvent = StepContinued | StepWaiting | StepCompleted | StepFailed
Settled = StepContinued | StepWaiting | StepCompleted | StepFailed | TaskLost
"""What an execution ends with: its own verdict, or that there will be none."""
TaskEvent = Settled | TaskDue
ClientEvent = (
    RunRequested | SignalReceived | MessageSent | CancelRequested | PauseRequested | ResumeRequested
)
Kept = OutcomeKept | StepGiven | RecordKept
"""What a run that was forked has of the other run. Nothing happens by it: its request names it."""
Event = (
    TaskEvent
    | Kept
    | ClientEvent
    | TimerFired
    | LaneEntered
    | LaneGranted
    | RunSuperseded
    | EventMatched
    | ChildEnded
    | ParentEnded
)

__all__ = [
    "NO_RAW",
    "Beat",
    "CancelNotice",
    "CancelRequested",
    "Checkpoint",
    "ChildEnded",
    "ChunkDone",
    "ClientEvent",
    "DeadLetter",
    "Delayed",
    "Ended",
    "Event",
    "EventMatched",
    "Failure",
    "Flow",
    "Fork",
    "FromRun",
    "FromSteps",
    "Held",
    "Holder",
    "Inline",
    "ItemFailure",
    "Kept",
    "LaneEntered",
    "LaneGranted",
    "LetterMark",
    "LetterState",
    "Line",
    "LiveRegister",
    "MapChunk",
    "MapOutput",
    "MessageKind",
    "MessageSent",
    "MetadataValue",
    "Outcome",
    "OutcomeKept",
    "ParentEnded",
    "Parked",
    "PauseRequested",
    "ProviderLine",
    "ProviderRecord",
    "ProviderSaid",
    "ProviderWaiter",
    "Queued",
    "RateClaim",
    "RateRecord",
    "RecordKept",
    "Register",
    "Results",
    "ResumeRequested",
    "RunRequested",
    "RunSuperseded",
    "SettleEvent",
    "Settled",
    "SignalReceived",
    "Sleeping",
    "SlotClaim",
    "SlotRecord",
    "SlotWaiter",
    "StepCompleted",
    "StepContinued",
    "StepFailed",
    "StepGiven",
    "StepWaiting",
    "Task",
    "TaskDue",
    "TaskEvent",
    "TaskInput",
    "TaskLost",
    "TimerFired",
    "TimerKind",
    "WorkerPresence",
]
