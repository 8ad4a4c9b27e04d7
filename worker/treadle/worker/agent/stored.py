"""A durable agent's journal on the server, read by those who do not serve it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import UserError
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import MAIN_DOMAIN, Subjects
from treadle.worker.agent.core.checkpoints import AgentCheckpoint, checkpoint
from treadle.worker.agent.core.entries import Entry
from treadle.worker.agent.core.state import State
from treadle.worker.execution import Record

_decode_record = msgspec.json.Decoder(Record).decode
_decode_entries = msgspec.json.Decoder(list[Entry]).decode


class StoredRecord(NamedTuple):
    """One record of the journal."""

    iteration: int
    size_bytes: int
    entries: list[Entry]


async def read_journal(
    run: str, step: str, settings: Settings | None = None, *, domain: str = MAIN_DOMAIN
) -> list[StoredRecord]:
    """Return the agent's journal of a step, as far as it has come; only reads.

    Raises ``UserError`` if the step has none: it is no agent's, or has not begun.
    """
    settings = settings or Settings.from_env()
    subjects = Subjects(settings.namespace)
    connection = await Connection.open(settings, name="treadle-journal")
    try:
        js = JetStream(connection)
        found = {
            subjects.parse_record(stored.subject): _decode_record(stored.data)
            async for stored in js.read(subjects.steps_stream, subjects.records(run, step, domain))
        }
    finally:
        await connection.close()
    if not found:
        raise UserError(
            f"step {step!r} of run {run!r} has no journal: it is no agent's step, or has not "
            f"begun. See the run's steps: `treadle run show {run}`."
        )
    # A replica may lag behind by the newest: what is there without a gap is a run as well.
    numbers = [number for index, number in enumerate(sorted(found)) if number == index]
    return [
        StoredRecord(record.iteration, len(record.body), _decode_entries(record.body))
        for record in (found[number] for number in numbers)
    ]


async def checkpoints(
    run: str, step: str, settings: Settings | None = None, *, domain: str = MAIN_DOMAIN
) -> list[AgentCheckpoint]:
    """Return the records of an agent's journal by kind, in order; errors as ``read_journal``."""
    state, made = State(), list[AgentCheckpoint]()
    for number, record in enumerate(await read_journal(run, step, settings, domain=domain)):
        each, state = checkpoint(number, record.iteration, record.size_bytes, record.entries, state)
        made.append(each)
    return made
