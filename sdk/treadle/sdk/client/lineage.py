"""Who does the work of a failed run again, if not a retry of the run itself.

    a later attempt of the step that started it ───────────> superseded
    a retry of its parent, which has begun the step again ─> retried
    a retry of its parent would begin the step again ──────> inherited
    its parent goes on and has not heard of its end yet ───> awaited
    nobody ────────────────────────────────────────────────> alone

A parent that handled the failure and went on, or whose retry keeps the step as it ended, does
nothing for the child. What is done again of the parent, its own parent's retry included, is done
again of all its children.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal, NamedTuple, TypeVar

import msgspec

from treadle.sdk.children import ParentRun
from treadle.sdk.client import forking, requests
from treadle.sdk.client.fork_plan import kept_steps
from treadle.sdk.client.fork_wanted import Version
from treadle.sdk.client.store import Store
from treadle.sdk.errors import RunConflict, StoredUnreadable, UnknownWorkflow
from treadle.sdk.messages import LetterMark
from treadle.sdk.messages.dead_letter import what_of_run
from treadle.sdk.run import RunDocument, child_of
from treadle.sdk.stored import read

KEPT_MAX = 1_000
"""Documents of parents that are kept at hand: children of one parent are often met together."""

Standing = Literal["alone", "superseded", "retried", "inherited", "awaited"]

K = TypeVar("K")
V = TypeVar("V")

_marks = msgspec.json.Decoder(LetterMark)


class Heir(NamedTuple):
    """Who does a run's work again."""

    standing: Standing
    run: str = ""
    """The run that does it, or whose retry would, or that may decide to."""
    above: tuple[RunDocument, ...] = ()
    """If it is inherited: the runs whose retry does it, from the parent upwards."""

    @property
    def is_at_work(self) -> bool:
        """True if the work is done again already, or has been."""
        return self.standing in ("superseded", "retried")

    @property
    def failed(self) -> str:
        """The highest of those above that has failed too; empty if none has, or nobody inherits."""
        return next((run.run for run in reversed(self.above) if run.status == "failed"), "")


ALONE = Heir("alone")


class Lineage:
    """Looks up who does the work of failed runs again; keeps what cannot change any more."""

    def __init__(self, store: Store, version: Version = "same") -> None:
        self._store = store
        self._version: Version = version
        self._ended: OrderedDict[str, RunDocument] = OrderedDict()
        self._again: OrderedDict[tuple[str, str], bool] = OrderedDict()

    async def heir(self, run: str, link: ParentRun | None) -> Heir:
        """Return who does the work of a run that has failed, given what it says of its parent."""
        if link is None or link.detached:
            return ALONE
        parent = await self.document(link.run)
        entry = parent.steps.get(link.step) if parent else None
        if parent is None or entry is None:
            return ALONE
        if child_of(parent, link.step, link.attempt) != run:
            return ALONE  # The id of its parent is another run's by now.
        above = await self.heir(parent.run, parent.parent)
        if above.is_at_work or above.standing == "awaited":
            return above
        if entry.attempt > link.attempt:
            return Heir("superseded", child_of(parent, link.step, link.attempt + 1))
        if not parent.is_terminal:
            is_open = entry.status == "active" or parent.undoing
            return Heir("awaited", parent.run) if is_open else ALONE
        if parent.status == "completed":
            return ALONE
        retry = await self.retry_of(parent)
        if retry is not None:
            keeps = retry.fork is not None and link.step in retry.fork.kept
            return ALONE if keeps else Heir("retried", retry.run)
        if not await self._begins_again(parent, link.step):
            return ALONE
        if above.standing == "inherited":
            return Heir("inherited", above.run, (parent, *above.above))
        return Heir("inherited", parent.run, (parent,))

    async def retry_of(self, run: RunDocument) -> RunDocument | None:
        """Return the retry of a run, as far as an engine has taken one; None if there is none."""
        found = await self.document(forking.retry_id(run.run))
        if found is None or not _is_retry(found, run.run):
            made = await self._marked(run)
            found = await self.document(made) if made else None
        return found if found is not None and _is_retry(found, run.run) else None

    async def made_of(self, run: str) -> str:
        """Return the id of the retry of a run, requested or more; empty if there is none."""
        document = await self.document(run)
        retry = await self.retry_of(document) if document is not None else None
        if retry is not None:
            return retry.run
        name = forking.retry_id(run)
        requested = await requests.requested(self._store, name, None)
        fork = requested[0].fork if requested else None
        return name if fork is not None and fork.is_retry and fork.run == run else ""

    async def _marked(self, run: RunDocument) -> str:
        """Return the run that the letter of a failed one says was made of it."""
        js, s = self._store.js, self._store.subjects
        letter = s.dead(run.workflow, run.run, what_of_run(run.requested))
        stored = await js.last(s.dead_stream, s.letter_mark(letter))
        try:
            return read(_marks, stored).run if stored is not None else ""
        except StoredUnreadable:
            return ""

    async def _begins_again(self, run: RunDocument, step: str) -> bool:
        """True if a retry of a run does not take over that step."""
        if (known := self._again.get((run.run, step))) is not None:
            return known
        try:
            graphs = await forking.graphs_of(self._store, run, self._version)
        except UnknownWorkflow:
            return False
        again = step not in kept_steps(graphs.old, graphs.new, run)
        _keep(self._again, (run.run, step), again)
        return again

    async def document(self, run: str) -> RunDocument | None:
        """Return the document of a run; None if there is none, or it cannot be read."""
        if (known := self._ended.get(run)) is not None:
            return known
        try:
            found = await self._store.document(run)
        except StoredUnreadable:
            return None
        if found is not None and found.is_terminal:
            _keep(self._ended, run, found)
        return found


def waits_for(run: str, heir: Heir) -> RunConflict:
    """Return the error that it is not known yet whether a run is done again."""
    return RunConflict(
        run,
        f"was started by run {heir.run!r}, which has not heard of its end yet and may start it "
        "again",
        f"Try again in a moment; see what it does: `treadle explain {heir.run}`.",
    )


def _is_retry(run: RunDocument, source: str) -> bool:
    return run.fork is not None and run.fork.is_retry and run.fork.run == source


def _keep(kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    if len(kept) > KEPT_MAX:
        kept.popitem(last=False)
