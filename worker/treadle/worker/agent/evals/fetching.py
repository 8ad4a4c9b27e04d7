"""A durable run's journal from the server, as a cassette."""

from __future__ import annotations

from treadle.sdk.settings import Settings
from treadle.sdk.subjects import MAIN_DOMAIN
from treadle.worker.agent.evals.cassette import Cassette, record
from treadle.worker.agent.stored import read_journal


async def fetch(
    run: str, step: str, settings: Settings | None = None, *, domain: str = MAIN_DOMAIN
) -> Cassette:
    """Return the agent's journal of a step, as far as it has come; only reads.

    Raises ``UserError`` if the step has none: it is no agent's, or has not begun.
    """
    records = await read_journal(run, step, settings, domain=domain)
    return record((entry for each in records for entry in each.entries), agent=step)
