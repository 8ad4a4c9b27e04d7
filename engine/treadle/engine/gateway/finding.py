"""Which trigger a request is for. The trigger itself is read for each request.

By name that is one read. By path the names are remembered, which may be wrong: a trigger that was
read has to have the path, or all are listed again.
"""

from __future__ import annotations

import asyncio
import time

from treadle.sdk.client.store import Store
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.triggers.trigger import Http, On, Trigger

LISTED_S = 0.25
"""Unknown paths let the triggers be listed at most so often, for all that ask: anybody may."""


class Finder:
    """Finds the triggers of a namespace."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: dict[str, str] = {}
        self._listed_at = float("-inf")
        self._listing = asyncio.Lock()

    async def named(self, name: str, kind: type[On]) -> Trigger | None:
        """Return the trigger of that name and kind; None if there is none."""
        found = await self._store.trigger(name)
        trigger = found[0] if found else None
        if trigger is None or trigger.deleted or not isinstance(trigger.on, kind):
            return None
        return trigger

    async def at_path(self, path: str) -> tuple[str, Trigger] | None:
        """Return the name and the HTTP trigger of a path; None if there is none."""
        found = await self._known(path)
        if found is None:
            await self._list()
            found = await self._known(path)
        return found

    async def _known(self, path: str) -> tuple[str, Trigger] | None:
        name = self._names.get(path)
        trigger = await self.named(name, Http) if name is not None else None
        if name is None or trigger is None or not isinstance(trigger.on, Http):
            return None
        return (name, trigger) if (trigger.on.path or name) == path else None

    async def _list(self) -> None:
        """Have the paths listed anew, from now on: what is created is found at once."""
        asked_at = time.monotonic()
        async with self._listing:
            if self._listed_at >= asked_at:
                return  # Somebody else has, meanwhile.
            await asyncio.sleep(self._listed_at + LISTED_S - time.monotonic())
            begun_at = time.monotonic()
            names: dict[str, str] = {}
            async for name, trigger, _ in self._store.triggers():
                if isinstance(trigger, StoredUnreadable) or trigger.deleted:
                    continue
                if isinstance(trigger.on, Http):
                    # Two that were created at once may have one path: the first by name has it.
                    path = trigger.on.path or name
                    names[path] = min(name, names.get(path, name))
            self._names, self._listed_at = names, begun_at
