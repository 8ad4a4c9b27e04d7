"""Stored events into spans. Pure.

    StepContinued ──> attempt, then pause (TaskDue or the delay ends it)
    StepWaiting ────> attempt, then wait (a message, a resume or its time ends it)
    StepFailed, TaskLost ──> attempt, then pause if TaskDue follows
    StepCompleted ──> attempt, the last

The events stream holds settles twice, and late ones of workers that were given up: of a step the
tokens only grow, so what does not grow is left out. Timers fire into a stream of their own: a wait
or a pause that no event ends, ends when it was to end. A longer delay before a retry has no event
either, and counts as part of the attempt behind it. A resume of all parked steps is taken to be one
of each step under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from treadle.sdk.client.ending import timeout_text
from treadle.sdk.client.timeline.span import MapCounts, Span, SpanKind, Timeline
from treadle.sdk.client.view import RunView, StepView
from treadle.sdk.messages import (
    NO_RAW,
    Event,
    LaneGranted,
    MessageSent,
    PauseRequested,
    ResumeRequested,
    RunRequested,
    SettleEvent,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    TaskDue,
    TaskLost,
)
from treadle.sdk.run import TERMINAL
from treadle.sdk.subjects import parse_chunk, step_of

_BY_THE_ENGINE: dict[str, SpanKind] = {
    "approval": "approval",
    "choice": "choice",
    "respond": "respond",
}
"""Steps that no worker executes, and what they are in a timeline."""
NO_OUTPUTS: Mapping[str, msgspec.Raw] = {}


class Happened(msgspec.Struct, frozen=True):
    """A stored event of the run."""

    sequence: int
    time_ms: int
    event: Event


def timeline_of(
    view: RunView,
    events: Iterable[Happened],
    delays_ms: Mapping[str, int],
    outputs: Mapping[str, msgspec.Raw] = NO_OUTPUTS,
) -> Timeline:
    """Return the timeline of a run; ``delays_ms`` are the loop delays of its steps, ``outputs``
    those of the steps that no worker executes."""
    fold = _Fold(view, delays_ms, outputs)
    for happened in events:
        fold.add(happened)
    return Timeline(
        run=view.id,
        workflow=view.workflow,
        status=view.status,
        requested_ms=view.requested_ms,
        ended_ms=view.ended_ms,
        steps=tuple(step.id for step in view.steps),
        loops=tuple(step.id for step in view.steps if step.kind == "agent_loop"),
        version=view.definition,
        input=fold.input or NO_RAW,
        failure=_failure(view),
        made_of=view.forked_from,
        kept={step.id: step.status for step in view.steps if step.is_kept},
        spans=fold.finished(),
    )


def _failure(view: RunView) -> str:
    if view.failure is None:
        return ""
    return f"{view.failed_step}: {view.failure}" if view.failed_step else str(view.failure)


class _Track:
    """How far one step has come."""

    __slots__ = ("begin_ms", "due_ms", "iteration", "kind", "seen", "token")

    def __init__(self, begin_ms: int) -> None:
        self.begin_ms = begin_ms
        self.kind: SpanKind | None = "attempt"
        """What it is at; None when it has ended."""
        self.iteration = 0
        self.due_ms = 0
        """When the pause or the wait ends that it is at; 0 is not known."""
        self.token = 0
        self.seen = 0
        """The newest message to it."""


class _Fold:
    def __init__(
        self, view: RunView, delays_ms: Mapping[str, int], outputs: Mapping[str, msgspec.Raw]
    ) -> None:
        self._view = view
        self._delays_ms = delays_ms
        self._outputs = outputs
        self._paused: Span | None = None
        """The pause of the run that lasts."""
        self.input: msgspec.Raw | None = None
        """That of the run's request."""
        self._begin_ms = view.requested_ms
        self._spans: list[Span] = []
        self._tracks: dict[str, _Track] = {}
        if view.starts_ms:
            self._begin_ms = max(view.requested_ms, view.starts_ms)
            is_over = view.status != "scheduled"
            end_ms = min(self._begin_ms, view.ended_ms or self._begin_ms) if is_over else 0
            self._spans.append(Span(kind="scheduled", begin_ms=view.requested_ms, end_ms=end_ms))
        self._started_ms = {step.id: step.started_ms for step in view.steps if step.started_ms}

    def add(self, happened: Happened) -> None:
        event, at_ms = happened.event, happened.time_ms
        match event:
            case RunRequested():
                self.input = self.input or event.input  # A second request changes nothing.
            case LaneGranted():
                self._spans.append(
                    Span(kind="lane", begin_ms=self._begin_ms, end_ms=at_ms, detail=event.lane)
                )
                self._begin_ms = at_ms
            case StepContinued() | StepWaiting() | StepCompleted() | StepFailed():
                self._settle(event, at_ms)
            case TaskLost():
                self._attempt(event, at_ms, "lost", detail=event.reason)
            case TaskDue():
                track = self._track(event.step)
                if track.kind in ("pause", "attempt") and event.token > track.token:
                    self._between(event.step, "pause", at_ms, "")
                    track.token = event.token
            case MessageSent():
                track = self._track(event.step)
                track.seen = happened.sequence
                if track.kind == "wait":
                    self._between(event.step, "wait", at_ms, f"{event.kind} {event.id}")
            case PauseRequested():
                if self._paused is None:  # A run that is paused already stays as it is.
                    self._paused = Span(kind="paused", begin_ms=at_ms, detail=event.reason)
            case ResumeRequested():
                if not event.step:
                    self._unpause(at_ms, "resumed")
                for step in [event.step] if event.step else list(self._tracks):
                    self._resume(step, at_ms)
            case _:
                pass

    def finished(self) -> tuple[Span, ...]:
        """Return the spans in order, with what lasts and the steps that wait for signals."""
        if self._view.status == "queued":
            queued = Span(kind="lane", begin_ms=self._begin_ms, detail=self._view.lane)
            self._spans.append(queued)
        self._unpause(self._view.ended_ms, self._view.status if self._view.ended_ms else "")
        for step in self._view.steps:
            self._finish(step)
        return tuple(sorted(self._spans, key=lambda span: (span.begin_ms, span.end_ms or 2**62)))

    # ------------------------------------------------------------ steps

    def _settle(self, event: SettleEvent, at_ms: int) -> None:
        match event:
            case StepContinued():
                track = self._attempt(event, at_ms, "continued", output=event.output)
                if track is not None:
                    delay_ms = event.delay_ms
                    if delay_ms < 0:
                        delay_ms = self._delays_ms.get(event.step, 0)
                    track.iteration += 1
                    if delay_ms:
                        track.kind, track.due_ms = "pause", at_ms + delay_ms
            case StepWaiting():
                track = self._attempt(
                    event, at_ms, "waiting", detail=event.reason, output=event.output
                )
                if track is not None:
                    track.iteration += 1
                    if track.seen <= event.seen:  # Else a message is there, and it goes on at once.
                        track.kind, track.due_ms = "wait", event.due_ms
            case StepCompleted():
                track = self._attempt(event, at_ms, "completed", output=event.output)
                if track is not None:
                    track.kind = None
            case StepFailed():
                self._attempt(event, at_ms, "failed", failure=event.failure)

    def _attempt(
        self, event: SettleEvent | TaskLost, at_ms: int, outcome: str, **more: object
    ) -> _Track | None:
        """Add the attempt that a verdict ends; return None for one that is late or repeated."""
        is_new = event.step not in self._tracks
        track = self._track(event.step)
        if is_new and event.queued_us and parse_chunk(event.step):
            track.begin_ms = event.queued_us // 1_000  # Chunks begin one after the other.
        if event.token <= track.token or track.kind is None:
            return None
        if track.kind != "attempt":
            # No event has ended the pause or the wait: its timer did.
            end_ms = min(track.due_ms or at_ms, at_ms)
            self._between(event.step, track.kind, end_ms, "its time")
        spent = {} if isinstance(event, TaskLost) else {"spent": event.spent}
        span = Span(
            kind="attempt",
            step=event.step,
            iteration=event.iteration,
            attempt=event.attempt,
            begin_ms=track.begin_ms,
            end_ms=at_ms,
            outcome=outcome,
            worker=event.worker,
        )
        self._spans.append(msgspec.structs.replace(span, **spent, **more))
        track.token, track.begin_ms, track.iteration = event.token, at_ms, event.iteration
        return track

    def _between(self, step: str, kind: SpanKind, end_ms: int, outcome: str) -> None:
        track = self._track(step)
        self._spans.append(
            Span(
                kind=kind,
                step=step,
                iteration=track.iteration,
                begin_ms=track.begin_ms,
                end_ms=end_ms,
                outcome=outcome,
            )
        )
        track.kind, track.begin_ms, track.due_ms = "attempt", end_ms, 0

    def _resume(self, step: str, at_ms: int) -> None:
        track = self._tracks.get(step)
        if track is None or track.kind is None or not track.token:
            return
        kind: SpanKind = "wait" if track.kind == "wait" else "parked"
        self._between(step, kind, at_ms, "resumed")

    def _unpause(self, at_ms: int, outcome: str) -> None:
        paused, self._paused = self._paused, None
        if paused is not None and (not at_ms or paused.begin_ms < at_ms):
            ended = msgspec.structs.replace(paused, end_ms=at_ms, outcome=outcome)
            self._spans.append(ended)

    def _track(self, step: str) -> _Track:
        track = self._tracks.get(step)
        if track is None:
            track = _Track(self._started_ms.get(step_of(step), self._begin_ms))
            self._tracks[step] = track
        return track

    # ------------------------------------------------------------ what lasts

    def _finish(self, step: StepView) -> None:
        if step.is_kept:
            return  # Its time was in another run.
        if step.kind == "signal":
            if step.started_ms:
                self._last(step, "signal", step.started_ms, step.signal)
            return
        if step.kind == "event":
            if step.started_ms and step.status != "skipped":
                self._last(step, "event", step.started_ms, step.event)
            return
        if step.kind == "sub_workflow":
            if step.child:
                self._last(step, "child", step.started_ms, step.child)
            return
        if step.kind in _BY_THE_ENGINE:
            if step.started_ms and step.status != "skipped":
                self._last(step, _BY_THE_ENGINE[step.kind], step.started_ms, step.why)
            return
        if step.kind == "map":
            if step.started_ms and step.status != "skipped":
                counts = self._counts(step)
                self._last(step, "map", step.started_ms, str(counts) if counts else "", counts)
            return
        if step.kind == "sleep":
            if step.started_ms and step.status != "skipped":
                self._last(step, "pause", step.started_ms, "sleep")
            return
        is_live = step.status in ("active", "parked") or step.status == "cancelled"
        if not is_live or (not step.started_ms and step.id not in self._tracks):
            return
        track = self._track(step.id)
        if track.kind is not None:
            kind = "parked" if step.doing in ("parked", "paused") else track.kind
            self._last(step, kind, track.begin_ms, "")

    def _counts(self, step: StepView) -> MapCounts | None:
        if not step.chunks:
            return None  # An empty list, or none.
        names = (span.step for span in self._spans if step_of(span.step) == step.id)
        attempts = Counter(name for name in names if parse_chunk(name))
        return MapCounts(
            items=step.items,
            done=step.items_done,
            failed=step.items_failed,
            chunks=step.chunks,
            retried=sum(count > 1 for count in attempts.values()),
        )

    def _last(
        self,
        step: StepView,
        kind: SpanKind,
        begin_ms: int,
        detail: str,
        counts: MapCounts | None = None,
    ) -> None:
        has_ended = step.status in TERMINAL
        track = self._tracks.get(step.id)
        if step.timed_out:
            detail = "; ".join(filter(None, (detail, timeout_text(step.timed_out))))
        self._spans.append(
            Span(
                kind=kind,
                step=step.id,
                iteration=track.iteration if track else 0,
                attempt=step.attempt if kind == "attempt" else 0,
                begin_ms=begin_ms,
                end_ms=(step.ended_ms or self._view.ended_ms) if has_ended else 0,
                outcome=("timed out" if step.timed_out else step.status) if has_ended else "",
                detail=detail,
                failure=step.failure if step.status == "failed" else None,
                output=self._outputs.get(step.id, NO_RAW),
                counts=counts,
            )
        )
