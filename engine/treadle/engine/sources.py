"""The sources of subject triggers: held while their trigger stands, removed when it has gone.

Idempotent, like all that settles a trigger: whoever comes after a crash does the rest.
"""

from __future__ import annotations

from msgspec.structs import replace

from treadle.sdk import failpoints
from treadle.sdk.bus.jetstream import JetStream, Refused
from treadle.sdk.client.store import Store
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.subjects import Subjects
from treadle.sdk.triggers.source import attach, hold, release
from treadle.sdk.triggers.trigger import Source, Subject, Trigger

_DELETED = {"KV-Operation": "DEL"}


class Sources:
    """The sources of a namespace's triggers."""

    def __init__(self, js: JetStream, subjects: Subjects, store: Store) -> None:
        self._js = js
        self._subjects = subjects
        self._store = store

    async def is_settled(self, name: str, trigger: Trigger, revision: int) -> bool:
        """Bring the sources of a trigger to what it says; False if it was changed meanwhile."""
        if trigger.dropped:
            in_use = await self._captured_of_others(name)
            if trigger.source is not None:
                in_use.add(trigger.source.stream)
            for source in trigger.dropped:
                with_stream = source.is_captured and source.stream not in in_use
                await release(self._js, source, with_stream=with_stream)
                failpoints.reach("engine.source-released")
        if trigger.deleted:
            return await self._is_forgotten(name, revision)
        changed = replace(trigger, dropped=())
        if isinstance(trigger.on, Subject):
            if changed.source is None:
                source = await attach(self._js, self._subjects, name, trigger.on)
                changed = replace(changed, source=source)
            else:
                await hold(self._js, self._subjects, changed.source, trigger.on)
            failpoints.reach("engine.source-held")
        if changed == trigger:
            return True
        # What is stored is settled once more: it comes to this line with nothing left to change.
        await self._store.put_trigger(name, changed, revision)
        return False

    async def _is_forgotten(self, name: str, revision: int) -> bool:
        subject = self._subjects.trigger(name)
        done = await self._js.attempt(subject, b"", expected=revision, headers=_DELETED)
        return not isinstance(done, Refused)

    async def _captured_of_others(self, name: str) -> set[str]:
        """Return the captured streams that other triggers read."""
        found: list[Source] = []
        async for other, trigger, _ in self._store.triggers():
            if isinstance(trigger, StoredUnreadable):
                # It may read any of them, so none goes while it cannot be read.
                raise trigger
            if other != name:
                found.extend((*trigger.dropped, *((trigger.source,) if trigger.source else ())))
        return {source.stream for source in found if source.is_captured}
