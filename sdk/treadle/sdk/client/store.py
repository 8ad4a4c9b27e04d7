"""What a client reads of a namespace: documents, registers, events, definitions, presence.

Every value is decoded here, and what cannot be read raises ``StoredUnreadable``; who decides what
it means is above (``view.py``, ``result.py``).
Reads of one key ask the stream's leader; reads of many may lag on a cluster, and are used only
where a later look corrects them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator

import msgspec

from treadle.sdk.bus.acks import CONSUMER_NOT_FOUND
from treadle.sdk.bus.connection import Connection, Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream, Stored
from treadle.sdk.client.view import Held
from treadle.sdk.definition import WorkflowDefinition, to_plain
from treadle.sdk.errors import ServerUnavailable, StoredUnreadable, clause
from treadle.sdk.messages import Register, WorkerPresence
from treadle.sdk.namespace import open_namespace
from treadle.sdk.presence import host_id, is_process_alive
from treadle.sdk.run import RunDocument
from treadle.sdk.settings import Settings
from treadle.sdk.stored import put_over, read
from treadle.sdk.subjects import Subjects
from treadle.sdk.triggers.trigger import Source, Trigger

STARTED_MAX = 100

FULL_S = 1.0
"""How long a client offers a full store what it has to say: whoever waits for the answer acts on
it. Engines and workers wait longer, for room."""

_log = logging.getLogger("treadle.client")
_registers: msgspec.json.Decoder[Register] = msgspec.json.Decoder(Register)
_documents = msgspec.json.Decoder(RunDocument)
_definitions = msgspec.json.Decoder(WorkflowDefinition)
_triggers = msgspec.json.Decoder(Trigger)
_presences = msgspec.json.Decoder(WorkerPresence)


class _Latest(msgspec.Struct, frozen=True):
    hash: str


_latest = msgspec.json.Decoder(_Latest)


class Store:
    """Typed access to one namespace on one connection."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self.js = js
        self.subjects = subjects
        self.started: deque[str] = deque(maxlen=STARTED_MAX)
        """The newest runs whose requests this client has had acknowledged."""

    @classmethod
    async def open(cls, settings: Settings, *, name: str) -> Store:
        """Connect; raise ``ServerUnsuitable`` when no engine has set the namespace up."""
        connection = await Connection.open(settings, name=name)
        try:
            js = JetStream(connection, message_ids=settings.message_ids)
            return cls(js, await open_namespace(js, settings))
        except BaseException:
            await connection.close()
            raise

    async def close(self) -> None:
        """Close the connection."""
        await self.js.connection.close()

    # ---------------------------------------------------------------- runs

    async def document(self, run: str) -> RunDocument | None:
        """Return the run's document; None if no engine has taken the run."""
        found = await self.document_at(run)
        return found[0] if found else None

    async def document_at(self, run: str) -> tuple[RunDocument, int] | None:
        """Return the run's document, and when it was written in milliseconds."""
        s = self.subjects
        stored = await self.js.last(s.runs_stream, s.run_document(run))
        if stored is None:
            return None
        if not stored.data:
            first = await self.js.next(s.events_stream, s.events_of_run(run), 1)
            if first is None or first.time_ms > stored.time_ms:
                return (
                    None  # The key of an earlier run was deleted, and nothing else is left of it.
                )
        return read(_documents, stored), stored.time_ms

    async def documents(self) -> AsyncIterator[RunDocument | StoredUnreadable]:
        """Yield every run's document, or what is wrong with it, in the order of their last change.

        A key that was deleted is left out.
        """
        s = self.subjects
        async for stored in self.js.read(s.runs_stream, s.all_runs):
            if not stored.data:
                continue
            try:
                document = read(_documents, stored)
            except StoredUnreadable as exc:
                yield exc
            else:
                yield document

    def events(self, run: str, start: int = 1) -> AsyncIterator[Stored]:
        """Iterate over the run's stored events from a sequence on."""
        s = self.subjects
        return self.js.read(s.events_stream, s.events_of_run(run), start=start)

    async def events_behind(
        self, partition: int, start: int, count_max: int
    ) -> AsyncIterator[Stored]:
        """Yield at most so many stored events of a partition, from a sequence on."""
        s = self.subjects
        events = self.js.read(s.events_stream, s.events_of_partition(partition), start=start)
        count = 0
        async for stored in events:
            yield stored
            count += 1
            if count == count_max:
                return

    async def last_event(self, run: str) -> Stored | None:
        """Return the run's newest event; None means that there is no such run."""
        s = self.subjects
        return await self.js.last(s.events_stream, s.events_of_run(run))

    async def event(self, sequence: int) -> Stored | None:
        """Return the event at that sequence."""
        return await self.js.get(self.subjects.events_stream, sequence)

    async def register(self, run: str, step: str, task_type: str, domain: str) -> Held | None:
        """Return a step's register."""
        s = self.subjects
        stored = await self.js.last(s.steps_stream, s.register(run, step, task_type, domain))
        if stored is None:
            return None
        return Held(read(_registers, stored), stored.time_ms, stored.sequence)

    # ---------------------------------------------------------------- definitions

    async def latest(self, name: str) -> str | None:
        """Return the hash of a workflow's newest version."""
        s = self.subjects
        stored = await self.js.last(s.workflows_stream, s.workflow_latest(name))
        return read(_latest, stored).hash if stored and stored.data else None

    async def definition(self, name: str, content_hash: str) -> WorkflowDefinition | None:
        """Return one version of a workflow."""
        s = self.subjects
        stored = await self.js.last(s.workflows_stream, s.workflow_version(name, content_hash))
        return read(_definitions, stored) if stored else None

    async def workflow_hashes(self) -> dict[str, str]:
        """Return every registered workflow's name and newest hash; '' if that cannot be read."""
        s = self.subjects
        found: dict[str, str] = {}
        async for stored in self.js.read(s.workflows_stream, s.all_workflow_latest()):
            name = stored.subject.split(".")[-2]
            if not stored.data:
                continue
            try:
                found[name] = read(_latest, stored).hash
            except StoredUnreadable:
                found[name] = ""
        return dict(sorted(found.items()))

    async def put_definition(self, definition: WorkflowDefinition, content_hash: str) -> None:
        """Store a version and make it the newest; nothing is written that already stands.

        Warns if it is an older one, which was another's predecessor before.
        """
        s = self.subjects
        version = s.workflow_version(definition.name, content_hash)
        known = await self.js.last(s.workflows_stream, version)
        if known is None:
            raw = msgspec.json.encode(to_plain(definition), order="sorted")
            await self.js.store(version, raw, full_s=FULL_S)
        newest = await self.js.last(s.workflows_stream, s.workflow_latest(definition.name))
        newest_hash = read(_latest, newest).hash if newest and newest.data else None
        if newest_hash == content_hash:
            return
        latest = msgspec.json.encode(_Latest(content_hash))
        await self.js.store(s.workflow_latest(definition.name), latest, full_s=FULL_S)
        # Else it is new, and somebody else has stored it just now.
        if known and newest and newest_hash and known.sequence < newest.sequence:
            _log.warning(
                "workflow.older-version workflow=%s version=%s instead_of=%s: a version that was "
                "registered before is the newest again, because this process has it. New runs take "
                "it. If that is not meant, update or end this process (a worker with --no-register "
                "registers nothing, and clients start runs by name) and register the other one "
                "again: treadle workflow register FILE",
                definition.name,
                content_hash,
                newest_hash,
            )

    # ---------------------------------------------------------------- triggers

    async def trigger(self, name: str) -> tuple[Trigger | None, int, int] | None:
        """Return a trigger (None if it was deleted), its revision, and when it was stored in ms."""
        s = self.subjects
        stored = await self.js.last(s.workflows_stream, s.trigger(name))
        if stored is None:
            return None
        trigger = read(_triggers, stored) if stored.data else None
        return trigger, stored.sequence, stored.time_ms

    async def put_trigger(
        self, name: str, trigger: Trigger, revision: int, full_s: float | None = None
    ) -> int:
        """Store a trigger over ``revision``, 0 is none; return its own, or 0 if another stands."""
        s = self.subjects
        return await put_over(
            self.js, s.workflows_stream, s.trigger(name), trigger, revision, full_s
        )

    async def undelivered(self, source: Source) -> int:
        """Return how many messages of a source are not done with; 0 if nobody can say."""
        try:
            info = await self.js.api(f"CONSUMER.INFO.{source.stream}.{source.consumer}")
        except (ApiError, Unknown):
            return 0
        return int(info["num_pending"]) + int(info["num_ack_pending"])

    async def triggers(self) -> AsyncIterator[tuple[str, Trigger | StoredUnreadable, int]]:
        """Yield every trigger's name, the trigger or what is wrong with it, and when it changed."""
        s = self.subjects
        async for stored in self.js.read(s.workflows_stream, s.all_triggers):
            if not stored.data:
                continue
            name = s.parse_trigger(stored.subject)
            try:
                trigger = read(_triggers, stored)
            except StoredUnreadable as exc:
                yield name, exc, stored.time_ms
            else:
                yield name, trigger, stored.time_ms

    # ---------------------------------------------------------------- processes, consumers

    async def presence(self) -> list[WorkerPresence]:
        """Return the living workers and engines.

        A record vanishes 30 s after its last refresh; of this host's processes the dead are
        known at once.
        """
        s = self.subjects
        found: list[WorkerPresence] = []
        async for stored in self.js.read(s.workers_stream, s.all_workers):
            try:
                presence = read(_presences, stored)
            except StoredUnreadable:
                continue  # It says nothing, and expires.
            if _may_live(presence):
                found.append(presence)
        return found

    async def is_pulled(self, stream: str, consumer: str) -> bool:
        """Return whether some process asks for the consumer's messages at this moment."""
        try:
            info = await self.js.api(f"CONSUMER.INFO.{stream}.{consumer}")
        except (ApiError, Unknown):
            return False
        return int(info.get("num_waiting", 0)) > 0

    async def handled_up_to(self, partition: int) -> int:
        """Return the sequence below which the engines have handled a partition's events."""
        s = self.subjects
        tail = f"CONSUMER.INFO.{s.events_stream}.{s.engine_consumer(partition)}"
        try:
            info = await self.js.api(tail)
        except ApiError as exc:
            if exc.err_code == CONSUMER_NOT_FOUND:
                return 0
            raise exc.for_users(f"the state of {tail!r}") from exc
        except Unknown as exc:
            raise ServerUnavailable(
                f"the server did not tell how far the engines are: {clause(exc)}. "
                "See `treadle doctor`."
            ) from exc
        return int(info["ack_floor"]["stream_seq"])


def _may_live(presence: WorkerPresence) -> bool:
    is_here = presence.host != "" and presence.host == host_id()
    return not is_here or is_process_alive(presence.pid)
