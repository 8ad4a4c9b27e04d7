"""Does what was stored keep the promises? Pure: evidence in, violations out.

The walk goes back from the ended register, link by link through the stored events, to the seed:
what the engine says about itself is compared with it, never believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import msgspec
from tests.crash.chain import Baton, link, seed
from tests.crash.evidence import Evidence, Kept
from tests.crash.namespace import task_of

from treadle.sdk.messages import (
    Ended,
    MessageSent,
    SignalReceived,
    StepCompleted,
    StepContinued,
    StepWaiting,
)
from treadle.sdk.run import NOT_BEGUN, RunDocument

SIGNAL_MARGIN_MS = 5_000
"""Longer than any redelivery of an event in these tests takes."""

_baton = msgspec.json.Decoder(Baton)


@dataclass(frozen=True)
class Expected:
    """What one run has to come to."""

    run: str
    iterations: int
    steps: tuple[str, ...] = ("loop",)
    """Loops, each after the one before it."""
    statuses: frozenset[str] = frozenset({"completed"})
    """Terminal statuses that are right; a cancel may come too late."""


def violations(evidence: Evidence, expected: list[Expected]) -> list[str]:
    """Return every broken promise, as a sentence."""
    found: list[str] = []
    runs = {each.run: each for each in expected}
    for each in expected:
        found += [f"run {each.run}: {text}" for text in _of_run(evidence, each)]
    for (run, step), kept in evidence.registers.items():
        if run in runs:
            broken = _of_register(evidence, run, kept)
            found += [f"run {run}, step {step}: {text}" for text in broken]
    return [*found, *_lanes(evidence.history)]


def committed(evidence: Evidence) -> int:
    """Return how many iterations were committed."""
    return sum(
        task_of(after.register).iteration > task_of(before.register).iteration
        if not isinstance(after.register, Ended)
        else after.register.outcome == "completed"
        for kept in evidence.registers.values()
        for before, after in pairwise(kept)
        if not isinstance(before.register, Ended)
    )


def _lanes(history: list[RunDocument]) -> Iterator[str]:
    """In a lane no more runs are active than may be, and none has overtaken another.

    Of those that may be active at once, any may be the first that an engine writes.
    """
    active: dict[str, set[str]] = {}
    queued: dict[str, dict[str, int]] = {}
    begun: dict[str, int] = {}
    for document in history:
        held = active.setdefault(document.lane, set())
        waiting = queued.setdefault(document.lane, {})
        if document.is_terminal or not document.lane:
            held.discard(document.run)
            waiting.pop(document.run, None)
        elif document.status == "queued" and document.place:
            waiting[document.run] = document.place
        elif document.status not in NOT_BEGUN and document.run not in held:
            held.add(document.run)
            waiting.pop(document.run, None)
            if len(held) > document.places:
                yield f"lane {document.lane}: {held} are active at once"
            before = [run for run, at in waiting.items() if at < document.place]
            if len(held) + len(before) > document.places:
                yield f"lane {document.lane}: {document.run} has overtaken {before}"
            is_single = document.places == 1
            if is_single and document.place < begun.get(document.lane, 0):
                yield f"lane {document.lane}: {document.run} was overtaken"
            begun[document.lane] = document.place


# ---------------------------------------------------------------- a run


def _of_run(evidence: Evidence, expected: Expected) -> Iterator[str]:
    documents = evidence.documents.get(expected.run, [])
    if not documents:
        yield "has no document"
        return
    last = documents[-1]
    if not last.is_terminal:
        yield f"has not ended: {last.status}, steps {last.steps}"
        return
    if sum(document.is_terminal for document in documents) > 1:
        yield f"was written after its end: {[document.status for document in documents]}"
    if last.status not in expected.statuses:
        yield f"ended as {last.status} ({last.failure}), not {set(expected.statuses)}"
    letters = evidence.letters.get(expected.run, [])
    # An end that lost against another one may have left the letter it wrote beforehand.
    if len(letters) > 1 or (last.status == "failed" and not letters):
        yield f"is {last.status} and has {len(letters)} dead letters: {letters}"
    if last.status == "completed":
        yield from _signals(evidence, last)
        yield from _chain(evidence, expected)


def _signals(evidence: Evidence, run: RunDocument) -> Iterator[str]:
    """A run counts no signal twice, and every one that came in time before its end.

    Events of one run may be in the hands of several engines, or of one that has died: a signal
    that was stored a moment before the run's last event may meet a run that is over.
    """
    in_time_ms = run.ended_ms - SIGNAL_MARGIN_MS
    nonce = run.fork.nonce if run.fork else ""
    signals = {
        event.id: evidence.times_ms[at]
        for at, event in evidence.events[run.run].items()
        if isinstance(event, SignalReceived) and event.fork in ("", nonce)
    }
    due = sum(at_ms < in_time_ms for at_ms in signals.values())
    if not due <= run.signals_received <= len(signals):
        yield f"counted {run.signals_received} signals of {len(signals)}; {due} came in time"


def _chain(evidence: Evidence, expected: Expected) -> Iterator[str]:
    start = seed(expected.run)
    for step in expected.steps:
        head = evidence.head(expected.run, step)
        if not isinstance(head, Ended) or head.outcome != "completed":
            yield f"is completed, but step {step} holds {head}"
            return
        if head.iterations != expected.iterations:
            yield f"step {step} took {head.iterations} iterations, not {expected.iterations}"
        if head.spent.tool_calls != head.iterations:
            yield f"step {step} counts {head.spent} in {head.iterations} iterations"
        yield from _messages(evidence, expected.run, step, head)
        end = _baton.decode(head.output)
        yield from _walk(evidence, expected.run, step, head.iterations, end.state, start)
        start = end.state


def _messages(evidence: Evidence, run: str, step: str, ended: Ended) -> Iterator[str]:
    """No step that takes messages ended over one that was stored before its last verdict."""
    at = int(ended.parent[1:])
    last = evidence.events[run][at]
    if not isinstance(last, StepCompleted) or not last.takes_messages:
        return
    for sequence, event in evidence.events[run].items():
        is_due = isinstance(event, MessageSent) and event.step == step and sequence < at
        if is_due and sequence > last.seen:
            yield f"step {step} ended over the message at {sequence}, having seen {last.seen}"


def _walk(
    evidence: Evidence, run: str, step: str, iterations: int, state: str, start: str
) -> Iterator[str]:
    """Walk from the last state back to the first."""
    made: dict[str, list[Baton]] = {}
    for event in evidence.events[run].values():
        if isinstance(event, StepContinued | StepWaiting | StepCompleted) and event.step == step:
            baton = _baton.decode(event.output)
            made.setdefault(baton.state, []).append(baton)
    for iteration in reversed(range(iterations)):
        if state not in made:
            yield f"step {step}: no event made the state after iteration {iteration}"
            return
        baton = made[state][0]
        if baton.iteration != iteration:
            yield f"step {step}: iteration {iteration} was committed with one of {baton.iteration}"
        if link(baton.previous, run, step, iteration, baton.salt) != state:
            yield f"step {step}: the hash of iteration {iteration} is wrong"
        if baton.is_alien:
            yield f"step {step}: iteration {iteration} was built on a checkpoint of another past"
        state = baton.previous
    if state != start:
        yield f"step {step}: the chain does not begin with what the step was given"


# ---------------------------------------------------------------- a register


def _of_register(evidence: Evidence, run: str, kept: list[Kept]) -> Iterator[str]:
    parents = Counter(value.register.parent for value in kept)
    twice = [parent for parent, count in parents.items() if count > 1]
    if twice:
        yield f"moved twice by events {twice}"
    documents = evidence.documents.get(run, [])
    if documents and documents[-1].is_terminal and not isinstance(kept[-1].register, Ended):
        yield f"the run has ended and its register lives: {kept[-1].register}"
    for before, after in pairwise(kept):
        yield from _move(evidence, run, before, after)


def _move(evidence: Evidence, run: str, before: Kept, after: Kept) -> Iterator[str]:
    if isinstance(before.register, Ended):
        yield f"moved after its end, to {after.register}"
        return
    if after.replaced != before.sequence:
        return
    if isinstance(after.register, Ended):
        if after.register.outcome != "completed":
            return
        made = task_of(before.register).iteration + 1
        if after.register.iterations != made:
            yield f"ended with {after.register.iterations} iterations in its {made}th"
    else:
        old, new = task_of(before.register), task_of(after.register)
        if new.iteration not in (old.iteration, old.iteration + 1):
            yield f"went from iteration {old.iteration} to {new.iteration}"
        if new.iteration == old.iteration:
            if new.attempt < old.attempt:
                yield f"went from attempt {old.attempt} to {new.attempt}"
            return
    parent = after.register.parent
    event = evidence.events[run].get(int(parent[1:])) if parent[0] == "e" else None
    if not isinstance(event, StepContinued | StepWaiting | StepCompleted):
        yield f"an iteration was committed by {parent}, which is {event}"
    elif event.token != before.sequence:
        yield f"an iteration was committed by an event with token {event.token}, not {before}"
