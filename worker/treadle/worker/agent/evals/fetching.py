"""A durable run's journal from the server, as a cassette."""

from __future__ import annotations

import msgspec

from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import UserError
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import MAIN_DOMAIN, Subjects
from treadle.worker.agent.core.entries import Entry
from treadle.worker.agent.evals.cassette import Cassette, record
from treadle.worker.execution import Record

_decode_record = msgspec.json.Decoder(Record).decode
_decode_entries = msgspec.json.Decoder(list[Entry]).decode


async def fetch(
    run: str, step: str, settings: Settings | None = None, *, domain: str = MAIN_DOMAIN
) -> Cassette:
    """Return the agent's journal of a step, as far as it has come; only reads.

    Raises ``UserError`` if the step has none: it is no agent's, or has not begun.
    """
    settings = settings or Settings.from_env()
    subjects = Subjects(settings.namespace)
    connection = await Connection.open(settings, name="treadle-eval")
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
    return record(
        (entry for number in numbers for entry in _decode_entries(found[number].body)), agent=step
    )
