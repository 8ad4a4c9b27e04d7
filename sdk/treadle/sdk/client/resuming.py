"""A parked step as a resume finds it: under the newest version, with the budgets as used now.

What is stored of it tells of the moment when it parked. Since then a newer version may have been
registered, a budget raised, and others may have used more of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from msgspec.structs import replace

from treadle.sdk.client.bounds import Stops, bounds
from treadle.sdk.client.planned import definition_of
from treadle.sdk.client.store import Store
from treadle.sdk.client.view import Held
from treadle.sdk.definition import AgentLoopStep, Step
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import Parked, Register, Task
from treadle.sdk.run import RunDocument
from treadle.sdk.shared_budgets import budgets_of
from treadle.sdk.subjects import RegisterAddress
from treadle.sdk.versions import begins_anew, successor, under


async def standing(store: Store, run: RunDocument, held: Mapping[str, Held]) -> dict[str, Held]:
    """Return the registers, those of parked loops with the budgets that they share as used now."""
    parked = {
        step: each
        for step, each in held.items()
        if isinstance(each.register, Parked) and each.register.task.budgets
    }
    found = await asyncio.gather(*(with_budgets(store, run, *each) for each in parked.items()))
    return {**held, **dict(zip(parked, found, strict=True))}


async def with_budgets(store: Store, run: RunDocument, step: str, held: Held) -> Held:
    """Return the register of a parked loop with the budgets that it shares, as used now.

    As it is stored, if what others have used cannot be read.
    """
    parked = held.register
    if not isinstance(parked, Parked) or not parked.task.budgets:
        return held
    try:
        budgets = await budgets_of(_Books(store), run, step)
    except StoredUnreadable:
        return held
    return Held(
        replace(parked, task=replace(parked.task, budgets=budgets)), held.time_ms, held.sequence
    )


async def stops_of(store: Store, held: Mapping[str, Held]) -> dict[str, Stops]:
    """Return what stops the parked loops again, under the versions that they would go on under.

    ``held`` knows the budgets that they share as used now (``standing``).
    """
    found = dict[str, Stops]()
    for step, each in held.items():
        if isinstance(parked := each.register, Parked):
            task = await under_newest(store, step, parked)
            version = "" if task is parked.task else task.definition
            found[step] = Stops(bounds=bounds(task, parked.parked_ms), version=version)
    return found


async def under_newest(store: Store, step: str, parked: Parked) -> Task:
    """Return the task of a parked step under the version that a resume would dispatch it with."""
    task = parked.task
    if not begins_anew(task):
        return task
    version = await store.latest(task.workflow)
    if version is None or version == task.definition:
        return task
    newest = await store.definition(task.workflow, version)
    own = await store.definition(task.workflow, task.definition)
    old = next((each for each in own.steps if each.id == step), None) if own else None
    if newest is None or not isinstance(old, AgentLoopStep):
        return task
    found = successor(newest, step, old.type)
    return under(task, old, found, version) if found else task


class _Books:
    """What runs have used, as a client reads it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def run(self, run: str) -> RunDocument | None:
        return await self._store.document(run)

    async def steps(self, run: RunDocument) -> Mapping[str, Step]:
        definition = await definition_of(self._store, run)
        return {step.id: step for step in definition.steps} if definition else {}

    async def loop(self, address: RegisterAddress) -> Register | None:
        held = await self._store.register(address.run, address.step, address.type, address.domain)
        return held.register if held else None
