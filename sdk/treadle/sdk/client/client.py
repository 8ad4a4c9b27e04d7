"""The client: start runs, wait for them, look at them, and act on them.

    async with Client.connect() as client:
        run = await client.start("code-review", {"repo": "x"}, id="pr-1734")
        print(await run.result())

It talks to NATS only, and needs no engine to be up: a request that was acknowledged is durable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack, overload

from msgspec import Raw

from treadle.sdk import payload
from treadle.sdk.asks import Reply
from treadle.sdk.builder import Workflow
from treadle.sdk.client import (
    answering,
    deciding,
    publishing,
    requests,
    sending,
    tracing,
)
from treadle.sdk.client.answering import PendingAsk
from treadle.sdk.client.arguments import whole_input
from treadle.sdk.client.children import children
from treadle.sdk.client.collecting import Receipt, collect
from treadle.sdk.client.event import RunEvent
from treadle.sdk.client.explain.following import explain
from treadle.sdk.client.explain.reason import Explanation
from treadle.sdk.client.giving import input_of
from treadle.sdk.client.handle import RunHandle
from treadle.sdk.client.inspecting import Inspection
from treadle.sdk.client.limits import LimitView, limits_of
from treadle.sdk.client.listing import RunCounts, RunPage, count_runs, list_runs
from treadle.sdk.client.logs import LogLine, logs
from treadle.sdk.client.many import ManyStarts
from treadle.sdk.client.operating import Operations
from treadle.sdk.client.planned import graph_of
from treadle.sdk.client.publishing import Published
from treadle.sdk.client.result import failure_of, output_of
from treadle.sdk.client.store import Store
from treadle.sdk.client.streaming import StreamItem, stream
from treadle.sdk.client.timeline.reading import timeline
from treadle.sdk.client.timeline.span import Timeline
from treadle.sdk.client.tracing import RunTrace
from treadle.sdk.client.triggers import Triggers
from treadle.sdk.client.view import RunView
from treadle.sdk.client.waiter import Deadline, Waiter
from treadle.sdk.client.watching import history, watch
from treadle.sdk.definition import (
    ApprovalStep,
    Singleton,
    VersionPolicy,
    WorkflowDefinition,
    content_hash,
)
from treadle.sdk.errors import UnknownWorkflow
from treadle.sdk.flow import check_priority
from treadle.sdk.ids import check_id
from treadle.sdk.listing.filters import RunsWanted, filter_of
from treadle.sdk.listing.wire import position_of
from treadle.sdk.messages import MessageKind, WorkerPresence
from treadle.sdk.metadata import Given
from treadle.sdk.run import RunDocument
from treadle.sdk.scheduling import when
from treadle.sdk.settings import Settings
from treadle.sdk.singletons import placed
from treadle.sdk.subjects import MAIN_DOMAIN
from treadle.sdk.tracing import calling
from treadle.sdk.tracing.calling import TraceMode
from treadle.sdk.validation import check
from treadle.sdk.versions import checked_policy

T = TypeVar("T")


class Client(Operations, Inspection, ManyStarts):
    """A connection to one namespace. Make one with ``Client.connect``."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.triggers = Triggers(self, store)
        """What starts runs by itself: see ``docs/triggers.md``."""

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str | None = None,
        namespace: str | None = None,
        *,
        settings: Settings | None = None,
    ) -> AsyncGenerator[Client]:
        """Connect for the length of an ``async with`` block.

        Without arguments the environment decides (``settings.py``): ``TREADLE_NATS_URL``, or the
        dev server of this directory.

        Raises ``ServerUnavailable`` when nothing answers there, and ``ServerUnsuitable`` when no
        engine has set the namespace up.
        """
        if settings is None:
            settings = Settings.from_env(url=url, namespace=namespace)
        store = await Store.open(settings, name="treadle-client")
        try:
            yield cls(store)
        finally:
            await store.close()

    # ---------------------------------------------------------------- workflows

    async def register(self, workflow: Workflow[Any] | WorkflowDefinition) -> str:
        """Register a workflow and return its version, the hash of its content.

        It becomes the version that new runs take; runs under way keep theirs. Registering the
        same content again changes nothing.
        """
        definition = workflow.build() if isinstance(workflow, Workflow) else workflow
        version = content_hash(check(definition))
        await self._store.put_definition(definition, version)
        return version

    async def workflows(self) -> dict[str, str]:
        """Return the registered workflows: name to newest version."""
        return await self._store.workflow_hashes()

    async def workflow(self, name: str, version: str | None = None) -> WorkflowDefinition:
        """Return a workflow's newest version, or the one asked for."""
        check_id("workflow name", name)
        content = version or await self._latest(name)
        definition = await self._store.definition(name, content)
        if definition is None:
            raise UnknownWorkflow(f"{name}@{content}", list(await self.workflows()))
        return definition

    # ---------------------------------------------------------------- acting on runs

    async def start(
        self,
        workflow: str | Workflow[Any] | WorkflowDefinition,
        input: object = None,
        id: str | None = None,
        metadata: Mapping[str, Given] | None = None,
        lane: str | None = None,
        trace: TraceMode | None = None,
        singleton: Singleton | None = None,
        priority: int = 0,
        start_at: datetime | str | None = None,
        start_after: timedelta | float | None = None,
        version_policy: VersionPolicy | None = None,
    ) -> RunHandle:
        """Start a run; a workflow given as an object is registered first.

        The same ``id`` with the same workflow and input is the same run, so a start may be
        repeated without a thought. With another workflow, input or lane: ``RunConflict``.

        The input must fit the workflow's own type; of one that is given by name, the schema that
        was stored of it. Raises ``InvalidPayload`` if it does not.

        Of the runs of one ``lane`` one is active at a time, in the order of their requests: see
        ``docs/lanes.md``. ``singleton`` says what this one does about the others of its lane:
        ``queue`` (the default), ``skip`` or ``cancel_older``.

        ``priority``, -100 to 100, counts among those that wait for a limit instead of the one of
        its steps: docs/flow-control.md.

        With ``start_at``, a time with its zone, or ``start_after``, a delay, the run is scheduled:
        it is there at once and begins then. ``version_policy`` is the workflow's own unless it is
        given: see ``docs/versions.md``.

        Of a workflow that collects its starts this is a run of its own, at once: the input of a
        batch is a list. ``collect`` is how the others begin.

        ``trace`` says how the run's trace relates to the span in which it is started: ``link``
        (a trace of its own, the default), ``join`` (part of the caller's) or ``off``.
        """
        begins = when(start_at, start_after)
        origin = calling.origin(trace)
        if isinstance(workflow, str):
            name = check_id("workflow name", workflow)
            raw = payload.encode(f"input of workflow {name!r}", input)
            version = await self._latest(name)
            definition = await self._store.definition(name, version)
            requests.check_input(definition, raw)
        else:
            name = workflow.name
            definition = workflow.build() if isinstance(workflow, Workflow) else workflow
            raw = input_of(workflow, definition, input)
            version = await self.register(definition)
        place = placed(definition, raw, lane, singleton)
        place = place._replace(priority=check_priority(priority))
        place = place._replace(when=begins, version_policy=checked_policy(version_policy) or "")
        run, _ = await requests.begin(self._store, name, version, raw, id, metadata, place, origin)
        calling.link_to_run(origin)
        return RunHandle(self, run)

    async def collect(
        self,
        workflow: str | Workflow[Any] | WorkflowDefinition,
        input: object = None,
        id: str = "",
    ) -> Receipt:
        """Store a start that becomes part of a run with others: see docs/debounce-and-batch.md.

        Which run is not known yet. The same ``id`` twice is one start; with another input it is a
        ``UserError``, as it is of a workflow that does not collect its starts.
        """
        if isinstance(workflow, str):
            version = await self._latest(check_id("workflow name", workflow))
            definition = await self.workflow(workflow, version)
            raw = payload.encode(f"input of workflow {workflow!r}", input)
        else:
            definition = workflow.build() if isinstance(workflow, Workflow) else workflow
            raw = input_of(workflow, definition, input, is_one=True)
            version = await self.register(definition)
        return await collect(self._store, definition, version, raw, id)

    async def limits(self) -> list[LimitView]:
        """Return the limits that are in use, with who holds their slots and how many wait."""
        return await limits_of(self._store)

    async def signal(
        self, run: str, name: str, payload: object = None, id: str | None = None
    ) -> str:
        """Send a signal and return its id.

        A run counts each id once; give one if the same signal may be sent twice.
        """
        return await requests.signal(self._store, run, name, payload, id)

    async def publish_event(self, name: str, payload: object = None, id: str = "") -> Published:
        """Publish an event to the namespace; what is returned has its sequence.

        It completes each step that waits for it and whose match holds, of every run, also of one
        that has been requested and has not come so far. Publishing one id twice is one event
        (``is_repeated``); with another payload it is a ``UserError``. See docs/events.md.
        """
        return await publishing.publish(self._store, name, payload, id)

    async def send(
        self,
        run: str,
        step: str,
        payload: object,
        kind: MessageKind = "steer",
        id: str | None = None,
    ) -> int:
        """Send a message to an agent loop and return its sequence.

        Its handler reads it with ``ctx.messages()``; a loop that waits goes on. It need not have
        started. A step takes each id once, for ever: give one if the same message may be sent
        twice. Raises ``RunConflict`` if the run has ended; a message to a step that has ended,
        in a run that goes on, is in the history and nobody reads it.
        """
        return await sending.send(self._store, run, step, payload, kind, id)

    async def approve(
        self,
        run: str,
        step: str,
        call_id: str,
        *,
        args_hash: str = "",
        input: Mapping[str, Any] | None = None,
        text: str = "",
        by: str = "",
        wait_s: float = 0,
    ) -> int:
        """Let a call run that people are asked about; return the sequence of the answer.

        ``args_hash`` is that of the arguments which the approver has seen. ``input`` are others to
        run with: a worker checks them, and with ``wait_s`` seconds to wait for that, ``UserError``
        says what is wrong with them. The first answer counts; the same one again is the same
        answer. Raises ``RunConflict`` if that is not asked any more, was answered otherwise, or
        is about other arguments.
        """
        edited = None if input is None else dict(input)
        reply = Reply(
            call_id=call_id, verdict="approve", args_hash=args_hash, input=edited, text=text, by=by
        )
        return await answering.answer(self._store, run, step, reply, wait_s)

    async def reject(
        self,
        run: str,
        step: str,
        call_id: str,
        *,
        args_hash: str = "",
        text: str = "",
        by: str = "",
    ) -> int:
        """Refuse a call, or a question; ``text`` is the reason. See ``approve``."""
        reply = Reply(call_id=call_id, verdict="reject", args_hash=args_hash, text=text, by=by)
        return await answering.answer(self._store, run, step, reply, 0)

    async def answer(
        self,
        run: str,
        step: str,
        call_id: str,
        text: str,
        *,
        args_hash: str = "",
        by: str = "",
    ) -> int:
        """Answer a question; of a call, ``text`` is its result, and it does not run."""
        reply = Reply(call_id=call_id, verdict="answer", args_hash=args_hash, text=text, by=by)
        return await answering.answer(self._store, run, step, reply, 0)

    # ---------------------------------------------------------------- looking at runs

    @overload
    async def result(self, run: str, type_: None = None, timeout_s: float | None = None) -> Any: ...
    @overload
    async def result(self, run: str, type_: type[T], timeout_s: float | None = None) -> T: ...
    async def result(
        self, run: str, type_: type[Any] | None = None, timeout_s: float | None = None
    ) -> Any:
        """Wait for the run's end and return its result, decoded as ``type_`` if given.

        The result is the output of the step that no other waits for; of several such steps, a
        dict by step id. Raises ``RunFailed``, ``RunCancelled``, or ``TimeoutError`` after
        ``timeout_s`` seconds with what the run waits for. A parked run is waited for.
        """
        document = await self._ended(run, Deadline(timeout_s))
        failure = await failure_of(self._store, document)
        if failure is not None:
            raise failure
        raw = await output_of(self._store, document)
        what, most = f"result of run {run!r}", payload.GATHERED_BYTES_MAX
        return payload.decode(what, bytes(raw), type_ or Any, bytes_max=most)

    async def explain(self, run: str) -> Explanation:
        """Return why the run is not getting on, or what it is doing, and what to do next.

        Of a live run it takes up to a second, three if a process that is recorded is silent:
        workers say a few times a second what they execute, and one value is written and deleted,
        to see whether the server takes writes. Raises
        ``UnknownRun``, with the namespaces of the server that have a run of this id.
        """
        return await explain(self._store, run)

    async def trace(self, run: str) -> RunTrace:
        """Return the spans of a run so far, read from its log: no backend is asked."""
        return await tracing.read(self._store, run)

    async def list(
        self, workflow: str | None = None, status: str | None = None, limit: int = 50
    ) -> tuple[RunView, ...]:
        """Return the runs requested last: ``list_runs`` for a look."""
        wanted = filter_of({"workflow": workflow, "status": status})
        return (await list_runs(self._store, wanted, limit, None)).runs

    async def list_runs(
        self, *, limit: int = 50, cursor: str | None = None, **wanted: Unpack[RunsWanted]
    ) -> RunPage:
        """Return a page of the runs that match, newest request first: see ``docs/listing.md``.

        ``cursor`` is that of the page before. Everything is in it that was stored when it was
        asked for. Raises ``UserError`` for what no run can match, such as a status there is not.
        """
        return await list_runs(self._store, filter_of(wanted), limit, position_of(cursor))

    async def count_runs(self, **wanted: Unpack[RunsWanted]) -> RunCounts:
        """Return how many runs match, by status; what matches is said as in ``list_runs``."""
        return await count_runs(self._store, filter_of(wanted))

    async def children(self, run: str) -> tuple[RunView, ...]:
        """Return the runs that a run's steps have started, without their notes and live steps.

        In the order of the steps and their attempts; ``parent`` says of each which step it was.
        """
        return tuple(await children(self._store, run))

    async def approvals(self, run: str | None = None) -> tuple[PendingAsk, ...]:
        """Return what people are asked by all runs, or by one, oldest first.

        It is what the registers of waiting steps say; of all runs, what was asked a moment ago
        may be missing.
        """
        return tuple(await answering.pending(self._store, run))

    async def whole_input(self, asked: PendingAsk) -> Raw | None:
        """Return the arguments of a call as JSON, also where the ask has their beginning only.

        ``None`` if they are kept nowhere: a handler of one's own may have cut what it asks.
        """
        if not asked.ask.full_bytes:
            return asked.ask.input
        document = await requests.require(self._store, asked.run)
        if document is not None and not asked.ask.tool:
            graph = await graph_of(self._store, document)
            step = graph.steps[asked.step] if graph else None
            if graph is not None and isinstance(step, ApprovalStep):
                return await deciding.input_of(self._store, document, graph, step)
        domain = document.domain if document else MAIN_DOMAIN
        hash = asked.ask.args_hash
        return await whole_input(self._store, asked.run, asked.step, domain, hash)

    def history(self, run: str) -> AsyncIterator[RunEvent]:
        """Iterate over every stored event of the run so far, as it was sent."""
        return history(self._store, run)

    async def timeline(self, run: str) -> Timeline:
        """Return what the run did and when: attempts, pauses, waits, in order."""
        return await timeline(self._store, run)

    def watch(self, run: str) -> AsyncIterator[RunEvent]:
        """Iterate over what happened and happens in the run, until it has ended."""
        return watch(self._store, run)

    def stream(
        self, run: str, *, step: str | None = None, after: int = 0, follow: bool = True
    ) -> AsyncIterator[StreamItem]:
        """Iterate over what the run says while it works, until it has ended.

        It begins behind the sequence ``after``, with what is stored: whoever was cut off passes
        the ``sequence`` of the last item and misses nothing. A killed attempt's words stay in the
        stream; a ``Transcript`` tells what stands. Without ``follow`` it ends with what is stored.
        """
        return stream(self._store, run, step, after, follow=follow)

    def logs(
        self,
        run: str,
        *,
        step: str | None = None,
        iteration: int | None = None,
        level: str = "debug",
        after: int = 0,
        follow: bool = False,
    ) -> AsyncIterator[LogLine]:
        """Iterate over what the run's handlers have logged, from that level on.

        Lines of attempts that were given up are among them. ``after`` is the ``sequence`` of the
        last line that was seen. With ``follow`` it goes on until the run has ended.
        """
        return logs(
            self._store,
            run,
            step=step,
            iteration=iteration,
            level=level,
            after=after,
            follow=follow,
        )

    async def processes(self) -> tuple[WorkerPresence, ...]:
        """Return the workers and engines that are alive."""
        return tuple(await self._store.presence())

    # ---------------------------------------------------------------- leaves

    async def _latest(self, name: str) -> str:
        version = await self._store.latest(name)
        if version is None:
            raise UnknownWorkflow(name, list(await self.workflows()))
        return version

    async def _ended(self, run: str, deadline: Deadline) -> RunDocument:
        await requests.require(self._store, run)
        subject = self._store.subjects.run_document(run)
        async with Waiter(self._store.js.connection, subject) as waiter:
            while True:
                document = await self._store.document(run)
                if document is not None and document.is_terminal:
                    return document
                if deadline.remaining_s() <= 0:
                    raise TimeoutError(await self._why_waiting(run))
                await waiter.wait(deadline.remaining_s())

    async def _why_waiting(self, run: str) -> str:
        view = await self.get(run)
        notes = "; ".join(note.text for note in view.notes)
        commands = [note.command for note in view.notes if note.command]
        next_step = commands[0] if commands else f"treadle run show {run}"
        return (
            f"run {run!r} has not ended in the time given: it is {view.status}"
            f"{' (' + notes + ')' if notes else ''}. Nobody has stopped it. Next: `{next_step}`."
        )
