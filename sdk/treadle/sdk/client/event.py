"""What happened in a run, for readers: stored events decoded, and changes read off its document.

``run.requested``, ``step.continued``, ``task.lost`` and the other names of ``messages.py`` are
stored events, with a sequence. ``run.scheduled``, ``run.queued``, ``step.started``,
``step.ended``, ``run.parked``, ``run.resumed`` and ``run.ended`` have none: the engine decides
them, and they are seen in the run's document.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from treadle.sdk.cancel_on import is_cancel_id
from treadle.sdk.messages import (
    NO_RAW,
    CancelRequested,
    ChildEnded,
    Event,
    EventMatched,
    Failure,
    LaneEntered,
    LaneGranted,
    MessageSent,
    OutcomeKept,
    ParentEnded,
    PauseRequested,
    RecordKept,
    ResumeRequested,
    RunRequested,
    RunSuperseded,
    SignalReceived,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepGiven,
    StepWaiting,
    TaskDue,
    TaskEvent,
    TaskLost,
    TimerFired,
)
from treadle.sdk.spending import MICRO, SpendingLimits

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
CORRUPT = "corrupt"
VALUE_CHARS_MAX = 80
"""Longest value in the one-line form: a line of a terminal."""


class RunEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One thing that happened in a run."""

    kind: str
    run: str
    time_ms: int
    """The server's time, milliseconds since the epoch."""
    sequence: int = 0
    """Sequence in the events stream; 0 for what was read off the run's document."""
    step: str = ""
    iteration: int | None = None
    attempt: int | None = None
    status: str = ""
    """Of ``step.ended``, ``run.ended`` and ``run.child_ended``: completed, failed or cancelled."""
    iterations: int | None = None
    """Of ``step.ended``: how many were committed."""
    name: str = ""
    """Of a signal: its name. Of an event: its name and id. Of a message: its kind and id. Of
    ``run.requested``: the workflow. Of ``run.queued`` and ``run.lane_granted``: the lane. Of
    ``run.child_ended``: the child."""
    worker: str = ""
    detail: str = ""
    failure: Failure | None = None
    value: msgspec.Raw = NO_RAW
    """The JSON of the input, output or payload, if the event carries one."""

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.time_ms / 1000, UTC).astimezone()
        parts = [f"{at:%H:%M:%S}.{self.time_ms % 1000:03d}", self.kind, *self._place()]
        if self.failure is not None:
            place = f" (at {self.failure.place})" if self.failure.place else ""
            parts.append(f"{self.failure}{place}")
        if self.detail:
            parts.append(self.detail)
        if bytes(self.value) != b"null":
            parts.append(_shorten(bytes(self.value).decode(errors="replace")))
        return "  ".join(parts)

    def _place(self) -> list[str]:
        place = [self.step] if self.step else []
        if self.name:
            place.append(self.name)
        if self.iteration is not None:
            place.append(f"iteration {self.iteration}")
        if self.attempt is not None and self.attempt > 1:
            place.append(f"attempt {self.attempt}")
        if self.status:
            place.append(self.status)
        if self.iterations is not None and self.iterations > 1:
            place.append(f"{self.iterations} iterations")
        return place


def decode_event(raw: bytes) -> Event | None:
    """Return the stored event, or None when the bytes are none."""
    try:
        return _decoder.decode(raw)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors.
        return None


def of_stored(run: str, sequence: int, time_ms: int, raw: bytes) -> RunEvent:
    """Return the reader's form of a stored event."""
    event = decode_event(raw)
    kind = CORRUPT if event is None else str(event.__struct_config__.tag)
    base = RunEvent(kind=kind, run=run, time_ms=time_ms, sequence=sequence)
    match event:
        case None:
            return _with(base, detail=f"{len(raw)} bytes that are not an event")
        case RunRequested():
            return _with(base, name=event.workflow, value=event.input)
        case SignalReceived():
            return _with(base, name=event.name, value=event.payload)
        case MessageSent():
            name = f"{event.kind} {event.id}"
            return _with(base, step=event.step, name=name, value=event.payload)
        case RunSuperseded():
            return _with(base, detail=event.by)
        case CancelRequested(now=True):
            return _with(base, detail=": ".join(filter(None, ("at once", event.reason))))
        case CancelRequested() | PauseRequested():
            return _with(base, detail=event.reason)
        case ResumeRequested():
            return _with(base, step=event.step, detail=_raised(event))
        case StepContinued() | StepCompleted():
            return _with(_placed(base, event), value=event.output)
        case StepWaiting():
            return _with(_placed(base, event), detail=event.reason, value=event.output)
        case StepFailed():
            return _with(_placed(base, event), failure=event.failure)
        case TaskLost():
            return _with(_placed(base, event), detail=event.reason)
        case TaskDue():
            return _placed(base, event)
        case TimerFired():
            return _with(base, step=event.step, detail=event.kind)
        case EventMatched():
            name = f"{event.name} {event.id}".rstrip()
            step = "" if is_cancel_id(event.step) else event.step
            told = _with(base, step=step, name=name, value=event.payload)
            return _with(told, failure=event.failure)
        case LaneEntered() | LaneGranted():
            return _with(base, name=event.lane)
        case ChildEnded():
            return _with(
                base,
                step=event.step,
                name=event.child,
                attempt=event.attempt,
                status=event.outcome,
                failure=event.failure,
                value=event.output,
            )
        case ParentEnded():
            return _with(base, detail=event.reason)
        case OutcomeKept():
            return _with(base, step=event.step, status=event.outcome, value=event.output)
        case StepGiven():
            return _with(base, step=event.step, iteration=event.iteration, value=event.input)
        case RecordKept():
            return _with(base, step=event.step)


def _with(event: RunEvent, **changes: object) -> RunEvent:
    return msgspec.structs.replace(event, **changes)


def _placed(base: RunEvent, event: TaskEvent) -> RunEvent:
    return _with(
        base,
        step=event.step,
        iteration=event.iteration,
        attempt=event.attempt,
        worker=event.worker,
    )


def _raised(event: ResumeRequested) -> str:
    changes = [
        f"max_iterations {event.max_iterations}" if event.max_iterations else "",
        f"max_iterations +{event.add_iterations}" if event.add_iterations else "",
        f"max_duration {event.max_duration_ms / 1000:g} s" if event.max_duration_ms else "",
        f"max_duration +{event.add_duration_ms / 1000:g} s" if event.add_duration_ms else "",
        *_spending("", event.max_spending),
        *_spending("+", event.add_spending),
    ]
    return ", ".join(filter(None, changes))


def _spending(sign: str, limits: SpendingLimits) -> list[str]:
    numbers = msgspec.structs.asdict(limits)
    cost = numbers.pop("cost_micro_usd") / MICRO
    changes = [f"max_{name} {sign}{number}" for name, number in numbers.items() if number]
    return [*changes, f"max_cost {sign}{cost:g} USD"] if cost else changes


def _shorten(text: str) -> str:
    return text if len(text) <= VALUE_CHARS_MAX else text[: VALUE_CHARS_MAX - 1] + "…"
