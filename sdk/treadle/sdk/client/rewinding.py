"""What a loop had when one of its iterations began: its input, what it had spent and saved.

    the events of the run ── the verdict that committed the iteration before ──> the input
    the journal ── records of earlier iterations      the checkpoint ── if none later replaced it

Of several verdicts about one iteration the engine has taken the one with the newest token, and of
those the one that knew the newest checkpoint: others were late, or neither of two was believed.
"""

from __future__ import annotations

import msgspec

from treadle.sdk import spending
from treadle.sdk.client.event import decode_event
from treadle.sdk.client.store import Store
from treadle.sdk.errors import RunConflict
from treadle.sdk.messages import (
    NO_RAW,
    Checkpoint,
    StepCompleted,
    StepContinued,
    StepGiven,
    StepWaiting,
)
from treadle.sdk.run import RunDocument
from treadle.sdk.spending import NOTHING
from treadle.sdk.stored import read

Committed = StepContinued | StepWaiting | StepCompleted

_checkpoints = msgspec.json.Decoder(Checkpoint)


class _Record(msgspec.Struct, frozen=True):
    """Of a journal's record: who wrote it. The rest is the handler's own."""

    iteration: int
    body: msgspec.Raw = NO_RAW


class _Entry(msgspec.Struct, frozen=True):
    kind: str = ""


_entries = msgspec.json.Decoder(list[_Entry])
_records = msgspec.json.Decoder(_Record)


class Beginning(msgspec.Struct, frozen=True):
    """What an iteration began with."""

    given: StepGiven
    records: tuple[msgspec.Raw, ...] = ()

    def with_input(self, raw: msgspec.Raw) -> Beginning:
        """Return the same with another input."""
        return Beginning(msgspec.structs.replace(self.given, input=raw), self.records)


async def beginning_of(
    store: Store, document: RunDocument, step: str, iteration: int, *, is_retry: bool
) -> Beginning:
    """Return what an iteration of a loop began with; raise ``RunConflict`` if it is not known.

    A retry goes on where the last attempt was: with the checkpoint and the records of the
    iteration itself, as another attempt would.
    """
    committed = await _committed(store, document.run, step, iteration)
    missing = [number for number in range(iteration) if number not in committed]
    if missing:
        raise RunConflict(
            document.run,
            f"has no stored verdict of iteration {missing[0]} of step {step!r}, so what iteration "
            f"{iteration} began with is not known: it has not been reached, or is gone",
            f"See it: `treadle run history {document.run}`.",
        )
    spent = NOTHING
    for number in range(iteration):
        spent = spending.plus(spent, committed[number].spent)
    given = StepGiven(step=step, iteration=iteration, spent=spent)
    if iteration:
        given = msgspec.structs.replace(given, input=committed[iteration - 1].output)
    given = await _with_checkpoint(store, document, given, is_retry=is_retry)
    records = await _journal(store, document, step, iteration, is_retry=is_retry)
    return Beginning(given, tuple(records))


async def _committed(store: Store, run: str, step: str, iteration: int) -> dict[int, Committed]:
    """Return the verdicts that committed the iterations before one."""
    found: dict[int, Committed] = {}
    async for stored in store.events(run):
        event = decode_event(stored.data)
        if not isinstance(event, Committed) or event.step != step or event.iteration >= iteration:
            continue
        known = found.get(event.iteration)
        if known is None or (event.token, event.head) > (known.token, known.head):
            found[event.iteration] = event
    return found


async def _with_checkpoint(
    store: Store, document: RunDocument, given: StepGiven, *, is_retry: bool
) -> StepGiven:
    s = store.subjects
    subject = s.checkpoint(document.run, given.step, document.domain)
    stored = await store.js.last(s.steps_stream, subject)
    if stored is None or not (given.iteration or is_retry):
        return given  # A loop begins without one.
    checkpoint = read(_checkpoints, stored)
    if checkpoint.iteration >= given.iteration + is_retry:
        raise RunConflict(
            document.run,
            f"has replaced the checkpoint with which iteration {given.iteration} of step "
            f"{given.step!r} began: the one that stands is of iteration {checkpoint.iteration}",
            f"Fork from iteration 0, or from iteration {checkpoint.iteration + 1} if it was "
            "reached.",
        )
    return msgspec.structs.replace(
        given, checkpoint=checkpoint.state, saved_at=checkpoint.iteration
    )


async def _journal(
    store: Store, document: RunDocument, step: str, iteration: int, *, is_retry: bool
) -> list[msgspec.Raw]:
    """Return the records of the step's journal by then, in order."""
    s = store.subjects
    found: dict[int, msgspec.Raw] = {}
    async for stored in store.js.read(
        s.steps_stream, s.records(document.run, step, document.domain)
    ):
        record = read(_records, stored)
        if record.iteration < iteration or (
            is_retry and record.iteration == iteration and not _is_end(record.body)
        ):
            found[s.parse_record(stored.subject)] = msgspec.Raw(stored.data)
    numbers = sorted(found)
    if numbers != list(range(len(numbers))):
        raise RunConflict(
            document.run,
            f"has lost records of the journal of step {step!r}",
            "Fork from the beginning of the step.",
        )
    return [found[number] for number in numbers]


def _is_end(body: msgspec.Raw) -> bool:
    """True for the record with which an agent stopped: a retry is for it to go on."""
    try:
        entries = _entries.decode(body)
    except msgspec.ValidationError:
        return False
    return any(entry.kind == "stopped" for entry in entries)
