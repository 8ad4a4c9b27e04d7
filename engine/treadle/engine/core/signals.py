"""Signals of a run: each counted once, kept until a step consumes it."""

from __future__ import annotations

import msgspec

from treadle.engine.core.moment import Moment
from treadle.sdk.definition import SignalStep
from treadle.sdk.messages import SignalReceived
from treadle.sdk.run import RunDocument, StepEntry

SIGNAL_IDS_MAX = 64
"""Newest ids kept to recognise a repeated signal: more than a sender retries at once."""

APPLIED_SOFT_MAX = 256
"""Applied events kept before the shell asks for the consumer's ack floor to trim them."""

SIGNALS_WAITING_MAX = 1024
"""Unconsumed signals a run keeps, of all names; the oldest is dropped beyond it, so that a
sender in a loop cannot grow the document past the largest message."""


def is_applied(run: RunDocument, moment: Moment) -> bool:
    """True if the run has counted this event, of those that must count once."""
    return moment.sequence < run.applied_below or moment.id in run.applied


def receive(run: RunDocument, event: SignalReceived, moment: Moment) -> RunDocument:
    """Count a signal and keep it; the same object if this event or this id was counted."""
    if is_applied(run, moment):
        return run
    if event.fork and (run.fork is None or run.fork.nonce != event.fork):
        return run  # Left by a fork whose client died, or that came second under this id.
    if event.id in run.signal_ids:
        return run
    waiting = {**run.signals, event.name: (*run.signals.get(event.name, ()), moment.sequence)}
    ids = (*run.signal_ids, event.id)[-SIGNAL_IDS_MAX:] if event.id else run.signal_ids
    return msgspec.structs.replace(
        run,
        signals=_bounded(waiting),
        signals_received=run.signals_received + 1,
        signal_ids=ids,
        applied=(*run.applied, moment.id),
    )


def consume(run: RunDocument, step: SignalStep, moment: Moment) -> RunDocument:
    """Complete an active signal step with the oldest waiting signal of its name."""
    sequence = run.signals[step.signal][0]
    signals = _without_oldest(run.signals, step.signal)
    entry = StepEntry(
        status="completed",
        started_ms=run.steps[step.id].started_ms,
        ended_ms=moment.ms,
        event=f"e{sequence}",
    )
    return msgspec.structs.replace(run, signals=signals, steps={**run.steps, step.id: entry})


def _bounded(signals: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    if sum(map(len, signals.values())) <= SIGNALS_WAITING_MAX:
        return signals
    return _without_oldest(signals, min(signals, key=lambda name: signals[name][0]))


def _without_oldest(signals: dict[str, tuple[int, ...]], name: str) -> dict[str, tuple[int, ...]]:
    kept = {**signals, name: signals[name][1:]}
    if not kept[name]:
        del kept[name]
    return kept
