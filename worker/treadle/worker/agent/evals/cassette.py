"""Cassettes: a run that has happened, kept as a test. Playing one needs no tokens and no world.

    cassette = record(journal.entries)           # or the entries of a production run
    replayed = await replay(agent, cassette)     # the agent as it is now, over the same answers
    for each in diff(cassette, replayed): print(each)

Recorded are the model's answers, the tools' results, what people said, the times, and bounds that
were set from outside. All that software decides is decided anew: schemas, policy, approvals,
detectors, evidence, budgets, hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from treadle.sdk.errors import UserError, clause
from treadle.worker.agent.agent import Agent
from treadle.worker.agent.core.entries import Answered, Entry, Kept, Opened
from treadle.worker.agent.driving import Driver
from treadle.worker.agent.evals.mocks import RecordedWorld, mocked_agent
from treadle.worker.agent.evals.scripts import RecordedModel
from treadle.worker.agent.evals.stage import (
    Ending,
    Quiet,
    Stage,
    clock_of,
    drive,
    limits_in,
    said_in,
)
from treadle.worker.agent.evals.trajectory import trajectory
from treadle.worker.agent.events import OnEvent
from treadle.worker.agent.models.retrying import RetryPolicy

FORMAT = 1


class Cassette(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded run."""

    cassette: int = FORMAT
    """Version of the format."""
    agent: str = ""
    entries: list[Entry]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the cassette as JSON, one line an entry, so that changes can be read."""
        head = msgspec.json.encode({"cassette": self.cassette, "agent": self.agent})
        lines = b",\n".join(msgspec.json.encode(entry) for entry in self.entries)
        Path(path).write_bytes(head[:-1] + b',"entries":[\n' + lines + b"\n]}\n")

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Cassette:
        """Read a cassette; raise ``UserError`` if the file is none."""
        try:
            found = msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except OSError as exc:
            raise UserError(
                f"{path} cannot be read: {exc.strerror or exc}. Name an existing cassette."
            ) from exc
        except msgspec.DecodeError as exc:
            raise UserError(
                f"{path} is no cassette: {clause(exc)}. "
                "Make one of a run's journal with record(entries), "
                "and write it with save(path)."
            ) from exc
        if found.cassette != FORMAT:
            raise UserError(
                f"{path} is a cassette of format {found.cassette}, and this version reads format "
                f"{FORMAT}. Record the run again."
            )
        _check(found.entries)
        return found


def record(entries: Iterable[Entry], *, agent: str = "") -> Cassette:
    """Return the run as a cassette; raise ``UserError`` if the entries are no whole run."""
    kept = list(entries)
    _check(kept)
    return Cassette(agent=agent, entries=kept)


async def replay(
    agent: Agent[Any],
    cassette: Cassette,
    *,
    deps: Any = None,
    on_event: OnEvent | None = None,
) -> list[Entry]:
    """Run the agent over what was recorded; return the journal of this run.

    Only hooks and evidence predicates are the agent's own code that runs, with ``deps``.
    """
    entries = cassette.entries
    opened = _check(entries)
    stage = Stage(said=said_in(entries))
    equipment = agent.equipment(deps=deps, run="replay", step=agent.name)
    equipment = agent.equipment(
        deps=deps,
        run="replay",
        step=agent.name,
        **mocked_agent(agent, RecordedWorld(entries)),
        model=RecordedModel(entries, equipment.model),
        models={},
        summary_model=None,
        model_retry=RetryPolicy(retries=0, malformed_retries=0),
        stream=False,
    )
    clock = clock_of(entries, stage)

    async def begin(driver: Driver) -> None:
        await driver.open(agent.opened(opened.goal, opened.at_ms, opened.trace_id))
        # The results are the recorded ones, cut as they were: what was cut away comes with them.
        for entry in entries:
            if isinstance(entry, Kept):
                await driver.append(entry)

    await drive(
        equipment,
        stage,
        Quiet(on_event, clock),
        clock,
        begin=begin,
        limits=limits_in(entries),
        ending=ending_of(entries),
    )
    return stage.entries


def ending_of(entries: Sequence[Entry]) -> Ending | None:
    """Return how the run has to be ended from outside when its answers are used up, if so."""
    answers = sum(isinstance(entry, Answered) for entry in entries)
    reason = trajectory(entries).stop_reason
    if reason == "cancelled":
        return Ending(answers, "cancelled")
    return Ending(answers, "open") if not reason else None


def _check(entries: Sequence[Entry]) -> Opened:
    first = entries[0] if entries else None
    if not isinstance(first, Opened):
        found = "nothing" if first is None else f"{type(first).__name__!r}"
        raise UserError(
            f"these entries begin with {found}, and a run begins with 'Opened'. Give the whole "
            "journal of the run, from its first entry on."
        )
    phases = [entry.phase for entry in entries if isinstance(entry, Opened)]
    if len(phases) > 1:
        raise UserError(
            f"these entries hold {len(phases)} conversations, one after another "
            f"({', '.join(phases)}), and a cassette is of one agent's run. Record one of them: the "
            "entries from its 'Opened' to its 'Stopped'."
        )
    return first
