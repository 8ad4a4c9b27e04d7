"""Loops that take newer versions of their workflow, and keep theirs all the same: why."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.sdk.client.notes import Note, version_note
from treadle.sdk.client.store import Store
from treadle.sdk.client.view import StepView
from treadle.sdk.run import RunDocument
from treadle.sdk.versions import why_it_stays


async def kept_notes(
    store: Store, document: RunDocument, steps: Sequence[StepView]
) -> tuple[Note, ...]:
    """Return a note for each live loop that the newest version has no successor for."""
    loops = [step for step in steps if step.version]
    if document.version_policy != "latest" or not loops:
        return ()
    version = await store.latest(document.workflow)
    if version is None or all(step.version == version for step in loops):
        return ()
    newest = await store.definition(document.workflow, version)
    if newest is None:
        return ()
    told = ((step.id, why_it_stays(newest, version, step.id, step.type)) for step in loops)
    return tuple(version_note(step, why) for step, why in told if why)
