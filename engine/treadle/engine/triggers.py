"""Triggers: look at one, start the runs of what is due, and set its schedule to what is next.

    a trigger was stored ──> settle      (the message in the bucket is the event)
    its schedule fired ────> settle      (a hint: what is due is read, never believed)

Settling is idempotent and belongs to nobody: whoever does it, whenever, does what is due. It moves
the trigger by compare-and-set, first to "these firings are due", then, when their runs are
requested, to "they were". Both are messages in the bucket that come again until somebody has
settled them, so an engine that dies on the way leaves the rest to another.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from treadle.engine.core.triggers import decide, requested
from treadle.engine.requesting import Requests
from treadle.engine.sources import Sources
from treadle.engine.timers import schedule
from treadle.sdk import failpoints
from treadle.sdk.bus.acks import time_us
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client.store import Store
from treadle.sdk.errors import UserError
from treadle.sdk.subjects import Subjects
from treadle.sdk.triggers.naming import SCHEDULED_KEY, run_id, scheduled_at
from treadle.sdk.triggers.times import firings_of
from treadle.sdk.triggers.trigger import Cron, Trigger, TriggerDue

TRIES_MAX = 8
"""More engines and clients do not write one trigger at once."""


class Kept(NamedTuple):
    """A trigger as it stands."""

    trigger: Trigger
    revision: int
    changed_ms: int


class Triggers:
    """The triggers of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._store = Store(js, subjects)
        self._requests = Requests(js, subjects, self._store)
        self._sources = Sources(js, subjects, self._store)

    async def settle(self, name: str) -> None:
        """Do what is due of a trigger; raise ``StoredUnreadable`` if it cannot be read."""
        for _ in range(TRIES_MAX):
            kept = await self._read(name)
            failpoints.reach("engine.trigger-looked")
            if kept is None:
                await self._unset(name)
                s = self._subjects
                await self._js.purge(s.timers_stream, s.trigger_fired(name))
                return
            if kept.trigger.dropped or not isinstance(kept.trigger.on, Cron):
                if await self._sources.is_settled(name, kept.trigger, kept.revision):
                    await self._unset(name)
                    return
            elif await self._is_settled(name, kept, kept.trigger.on):
                return
        raise Unknown(f"trigger {name!r} was changed by others {TRIES_MAX} times")

    async def now_ms(self) -> int:
        """Return the server's time: the same for every engine, and the one schedules fire by."""
        info = await self._js.api(f"STREAM.INFO.{self._subjects.timers_stream}")
        return time_us(info["ts"]) // 1_000

    async def _is_settled(self, name: str, kept: Kept, on: Cron) -> bool:
        trigger = kept.trigger
        now_ms = await self.now_ms()
        decided = decide(trigger, firings_of(on.expression, on.zone), kept.changed_ms, now_ms)
        revision = kept.revision
        if decided is not trigger:
            revision = await self._store.put_trigger(name, decided, revision)
            failpoints.reach("engine.trigger-decided")
        if revision and decided.due:
            failure = ""
            for firing_ms in decided.due:
                failure = await self._request(name, decided, firing_ms)
                failpoints.reach("engine.trigger-run-requested")
            decided = requested(decided, failure)
            revision = await self._store.put_trigger(name, decided, revision)
            failpoints.reach("engine.trigger-noted")
        if not revision:
            return False
        await self._set(name, decided.next_ms)
        failpoints.reach("engine.trigger-scheduled")
        return True

    # ---------------------------------------------------------------- runs

    async def _request(self, name: str, trigger: Trigger, firing_ms: int) -> str:
        """Request the run of a firing, unless it was; return why it cannot be started, or ''."""
        version = await self._requests.version(trigger)
        if version is None:
            return f"workflow {trigger.workflow!r} is not registered"
        run = run_id(name, firing_ms)
        if await self._requests.is_known(run):
            return ""
        definition = await self._store.definition(trigger.workflow, version)
        metadata = {SCHEDULED_KEY: scheduled_at(firing_ms)}
        try:
            await self._requests.store(
                name, trigger, run, version, definition, trigger.input, metadata
            )
        except UserError as exc:
            return str(exc)
        return ""

    # ---------------------------------------------------------------- the trigger

    async def _read(self, name: str) -> Kept | None:
        found = await self._store.trigger(name)
        if found is None or found[0] is None:
            return None
        return Kept(found[0], found[1], found[2])

    # ---------------------------------------------------------------- its schedule

    async def _set(self, name: str, next_ms: int) -> None:
        """Make the schedule fire at a time, 0 is never; nothing is written that already stands."""
        if not next_ms:
            await self._unset(name)
            return
        s = self._subjects
        stored = await self._js.last(s.timers_stream, s.trigger_timer(name))
        due = msgspec.json.encode(TriggerDue(name, next_ms))
        if stored is None or stored.data != due:
            headers = schedule(next_ms, s.trigger_fired(name))
            await self._js.store(s.trigger_timer(name), due, headers=headers)

    async def _unset(self, name: str) -> None:
        await self._js.purge(self._subjects.timers_stream, self._subjects.trigger_timer(name))
