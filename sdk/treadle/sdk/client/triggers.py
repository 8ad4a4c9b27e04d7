"""Triggers as a client makes and changes them: each change is one compare-and-set.

    nightly = Cron("0 3 * * *", zone="Europe/Berlin", catch_up="last")
    await client.triggers.create("nightly", "report", nightly, input={"days": 1})

The stored trigger is itself what engines are told of it, so an acknowledged change is durable,
also while none runs. How far the trigger has come is the engines', and is left as it stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.sdk import payload
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import Refused
from treadle.sdk.client import requests, starting
from treadle.sdk.client.notes import Note
from treadle.sdk.client.store import FULL_S, Store
from treadle.sdk.client.trigger_view import TriggerView, unreadable, view_of
from treadle.sdk.errors import (
    InvalidPayload,
    ServerUnavailable,
    StoredUnreadable,
    UnknownTrigger,
    UserError,
)
from treadle.sdk.ids import check_id
from treadle.sdk.lanes import check_lane
from treadle.sdk.messages import MetadataValue
from treadle.sdk.metadata import Given, checked
from treadle.sdk.singletons import has_lane, placed
from treadle.sdk.triggers.kinds import check_on, described, is_same, kind_of
from treadle.sdk.triggers.naming import OURS, check_name
from treadle.sdk.triggers.source import attach
from treadle.sdk.triggers.trigger import Cron, Http, On, Source, Subject, Trigger, Webhook
from treadle.sdk.wording import Suggestions

if TYPE_CHECKING:
    from treadle.sdk.builder import Workflow
    from treadle.sdk.client.client import Client
    from treadle.sdk.client.handle import RunHandle
    from treadle.sdk.definition import WorkflowDefinition

TRIES_MAX = 8
"""Engines write a trigger twice for each firing; nobody changes one as often as that at once."""
_DELETED = {"KV-Operation": "DEL"}


class Triggers:
    """The triggers of a client's namespace: ``client.triggers``."""

    def __init__(self, client: Client, store: Store) -> None:
        self._client = client
        self._store = store

    async def create(
        self,
        name: str,
        workflow: str | Workflow[Any] | WorkflowDefinition,
        on: On,
        *,
        input: object = None,
        version: str | None = None,
        metadata: Mapping[str, Given] | None = None,
        lane: str | None = None,
        replace: bool = False,
    ) -> TriggerView:
        """Create a trigger that starts runs of a workflow; one given as an object is registered.

        Its runs take the workflow's newest version at the firing, or ``version``. Creating the
        same trigger again changes nothing; another one of its name is ``UserError``, unless it is
        to be replaced. A replaced one stays paused if it was, and with another expression, zone
        or subject its firings begin anew. ``input`` is that of a cron trigger's runs.
        """
        check_name(name)
        if isinstance(on, Http):
            await self._check_path(name, on)
        wanted = await self._wanted(workflow, on, input, version, metadata, lane)
        source: Source | None = None

        def change(standing: Trigger | None) -> Trigger:
            if standing is None or standing.deleted:
                dropped = standing.dropped if standing else ()
                return msgspec.structs.replace(wanted, source=source, dropped=dropped)
            changed = _over(standing, wanted, source)
            if changed != standing and not replace:
                raise UserError(
                    f"trigger {name!r} exists and is another one: it starts "
                    f"{standing.workflow!r} at {described(standing.on)}. Choose another name, or "
                    "replace it: replace=True, `treadle trigger create ... --replace`."
                )
            return changed

        found = await self._read(name)
        planned = change(found[0] if found else None)
        if isinstance(on, Subject) and planned.source is None:
            source = await attach(self._store.js, self._store.subjects, name, on)
        await self._change(name, change)
        return await self.get(name)

    async def get(self, name: str) -> TriggerView:
        """Return where a trigger stands, with its next firings and its last run."""
        standing, revision_ms = await self._require(name)
        view = view_of(name, standing, revision_ms, _now_ms())
        status = ""
        if view.run:
            document = await self._store.document(view.run)
            is_requested = document is None and await self._store.last_event(view.run) is not None
            status = document.status if document else "requested" if is_requested else ""
        notes = (*view.notes, *await self._notes(standing))
        waiting = await self._store.undelivered(standing.source) if standing.source else 0
        return msgspec.structs.replace(view, run_status=status, notes=notes, waiting=waiting)

    async def list(self) -> tuple[TriggerView, ...]:
        """Return all triggers by name, without their last runs.

        One that cannot be read has no workflow, and a note that says why.
        """
        found = [
            unreadable(name, standing)
            if isinstance(standing, StoredUnreadable)
            else view_of(name, standing, changed_ms, _now_ms())
            async for name, standing, changed_ms in self._store.triggers()
            if isinstance(standing, StoredUnreadable) or not standing.deleted
        ]
        return tuple(sorted(found, key=lambda view: view.name))

    async def pause(self, name: str) -> None:
        """Let a trigger start nothing until it is resumed; a run under way goes on."""
        await self._require(name)
        await self._change(name, lambda standing: _paused(name, standing, is_paused=True))

    async def resume(self, name: str) -> None:
        """Let a paused trigger fire again, from now on: what it would have fired is no miss."""
        await self._require(name)
        await self._change(name, lambda standing: _paused(name, standing, is_paused=False))

    async def delete(self, name: str) -> None:
        """Delete a trigger; its runs stay. Raise ``UnknownTrigger`` if there is none."""
        await self._require(name)
        subject = self._store.subjects.trigger(name)
        for _ in range(TRIES_MAX):
            found = await self._read(name)
            if found is None or found[0] is None:
                return
            if sources := _sources(found[0]):
                gone = msgspec.structs.replace(found[0], deleted=True, source=None, dropped=sources)
                if await self._store.put_trigger(name, gone, found[1], FULL_S):
                    return
                continue
            try:
                # A mark, as the tools of key-value buckets leave it: it is what engines are told.
                done = await self._store.js.attempt(
                    subject, b"", expected=found[1], headers=_DELETED
                )
            except Unknown:
                continue
            if not isinstance(done, Refused):
                return
        raise _busy(name)

    async def fire(
        self, name: str, id: str | None = None, *, input: object = msgspec.UNSET
    ) -> RunHandle:
        """Start a run of a trigger now, once, paused or not; the next firing stays as it is.

        ``input`` is the trigger's own, unless one is given. The same ``id`` is the same run, as
        in ``Client.start``.
        """
        standing, _ = await self._require(name)
        raw = bytes(standing.input)
        if input is not msgspec.UNSET:
            raw = payload.encode(f"input of workflow {standing.workflow!r}", input)
        return self._client.handle(await starting.start(self._store, name, standing, raw, id))

    # ---------------------------------------------------------------- leaves

    async def _wanted(
        self,
        workflow: str | Workflow[Any] | WorkflowDefinition,
        on: On,
        input: object,
        version: str | None,
        metadata: Mapping[str, Given] | None,
        lane: str | None,
    ) -> Trigger:
        check_on(on)
        if not isinstance(workflow, str):
            await self._client.register(workflow)
            workflow = workflow.name
        check_id("workflow name", workflow)
        raw = payload.encode(f"input of workflow {workflow!r}", input)
        definition = await self._client.workflow(workflow, version)
        if isinstance(on, Cron):
            requests.check_input(definition, raw)
            placed(definition, raw, lane, None)
        elif input is not None:
            raise UserError(
                f"a trigger of kind {kind_of(on)} has no input of its own: what comes in is the "
                "input of its runs. Leave input out."
            )
        if (
            lane is not None
            and definition.collect is not None
            and isinstance(on, Subject | Webhook)
        ):
            raise UserError(
                f"workflow {workflow!r} collects its starts, so that none of them has a place of "
                "its own in a lane. Leave lane out, or declare concurrency on the workflow."
            )
        if lane is not None and has_lane(definition):
            placed(definition, raw, lane, None)
        return Trigger(
            on=on,
            workflow=workflow,
            version=version or "",
            input=msgspec.Raw(raw),
            metadata=_without_ours(checked(metadata or {})),
            lane=check_lane(lane) if lane is not None else "",
        )

    async def _check_path(self, name: str, on: Http) -> None:
        path = on.path or name
        for view in await self.list():
            if not isinstance(view.on, Http) or view.name == name:
                continue
            if (view.on.path or view.name) == path:
                raise UserError(
                    f"path /api/{path} is that of trigger {view.name!r}, and a request starts one "
                    "run. Choose another path, or delete that trigger."
                )

    async def _change(self, name: str, change: Callable[[Trigger | None], Trigger]) -> None:
        """Store what ``change`` makes of the trigger as it stands, if that is anything new."""
        for _ in range(TRIES_MAX):
            found = await self._read(name, or_deleted=True)
            standing, revision, _ = found or (None, 0, 0)
            changed = change(standing)
            if changed == standing:
                return
            if await self._store.put_trigger(name, changed, revision, FULL_S):
                return
        raise _busy(name)

    async def _read(
        self, name: str, *, or_deleted: bool = False
    ) -> tuple[Trigger | None, int, int] | None:
        """Return a trigger, its revision and when it was stored; None if there is none."""
        found = await self._store.trigger(name)
        is_there = found is not None and found[0] is not None and not found[0].deleted
        return found if is_there or or_deleted else None

    async def _require(self, name: str) -> tuple[Trigger, int]:
        check_id("trigger name", name)
        found = await self._read(name)
        if found is None or found[0] is None:
            names = [view.name for view in await self.list()]
            raise UnknownTrigger(name, Suggestions().nearest(name, names))
        return found[0], found[2]

    async def _notes(self, standing: Trigger) -> tuple[Note, ...]:
        """Return why the next firing would start nothing, or a run that fails."""
        name = standing.workflow
        version = standing.version or await self._store.latest(name)
        definition = await self._store.definition(name, version) if version else None
        if definition is None:
            which = f"version {standing.version} of workflow" if standing.version else "workflow"
            text = f"{which} {name!r} is not registered, so a firing starts no run"
            return (Note(text, "treadle workflow register FILE"),)
        if not isinstance(standing.on, Cron):
            return ()
        try:
            requests.check_input(definition, bytes(standing.input))
        except InvalidPayload as exc:
            return (Note(f"its runs will fail: {exc}", f"treadle workflow show {name}"),)
        return ()


def _over(standing: Trigger, wanted: Trigger, source: Source | None) -> Trigger:
    """Return the standing trigger with what is wanted of it, as far as it had come.

    ``source`` is the new one, if it is to have another.
    """
    is_as_before = is_same(standing.on, wanted.on)
    dropped = () if is_as_before else _sources(standing)
    return msgspec.structs.replace(
        standing,
        on=wanted.on,
        workflow=wanted.workflow,
        version=wanted.version,
        input=wanted.input,
        metadata=wanted.metadata,
        lane=wanted.lane,
        next_ms=standing.next_ms if is_as_before else 0,
        due=standing.due if isinstance(wanted.on, Cron) else (),
        source=standing.source if is_as_before else source,
        dropped=standing.dropped if is_as_before else dropped,
    )


def _sources(trigger: Trigger) -> tuple[Source, ...]:
    return (*trigger.dropped, *((trigger.source,) if trigger.source else ()))


def _paused(name: str, standing: Trigger | None, *, is_paused: bool) -> Trigger:
    if standing is None or standing.deleted:
        raise UnknownTrigger(name)
    if standing.paused == is_paused:
        return standing
    return msgspec.structs.replace(standing, paused=is_paused, next_ms=0)


def _without_ours(metadata: dict[str, MetadataValue]) -> dict[str, MetadataValue]:
    for key in OURS:
        if key in metadata:
            raise UserError(
                f"metadata {key!r} is set by the trigger itself in each run that it starts. "
                "Choose another key."
            )
    return metadata


def _busy(name: str) -> ServerUnavailable:
    return ServerUnavailable(
        f"trigger {name!r} was changed by others {TRIES_MAX} times while it was written, or the "
        "server did not answer. Try again, or see `treadle doctor`."
    )


def _now_ms() -> int:
    return round(time.time() * 1_000)
