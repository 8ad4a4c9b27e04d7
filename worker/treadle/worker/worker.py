"""A worker: handlers, and the process that executes their tasks.

    worker = Worker()

    @worker.handler("llm-review")
    async def llm_review(ctx: LoopContext[Diff]):
        ...

    await worker.run()          # until worker.stop(); ``serve(worker)`` adds signals

What a run of it consists of is put together here; ``runner.py`` executes, ``intake.py`` receives,
``heartbeat.py`` keeps alive.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.bus.wire import Message
from treadle.sdk.errors import HandlerError
from treadle.sdk.identifier import ID_CHARS_MAX
from treadle.sdk.ids import check_id
from treadle.sdk.messages import CancelNotice, WorkerPresence
from treadle.sdk.namespace import awaited_namespace
from treadle.sdk.presence import host_id
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import MAIN_DOMAIN, Subjects
from treadle.sdk.tracing import capture
from treadle.worker import forking
from treadle.worker.capture import capturing, level_of
from treadle.worker.checkpoints import CheckpointStore
from treadle.worker.gauges import observed
from treadle.worker.heartbeat import Heartbeat
from treadle.worker.held import HeldTable
from treadle.worker.inputs import InputReader
from treadle.worker.intake import ACK_WAIT_S, Intake
from treadle.worker.journals import JournalStore
from treadle.worker.mailbox import Mailbox
from treadle.worker.output import OutputStream
from treadle.worker.port import Services
from treadle.worker.registry import Handler, Registry, check_concurrency
from treadle.worker.runner import Runner
from treadle.worker.settle import Settler
from treadle.worker.shared import StoredValues
from treadle.worker.threads import BlockingPool
from treadle.worker.watchdog import LoopWatch

if TYPE_CHECKING:
    from treadle.worker.agent.agent import Agent
    from treadle.worker.agent.durable import AgentHandler
    from treadle.worker.agent.events import AgentEvent
    from treadle.worker.context import LoopContext

F = TypeVar("F", bound=Callable[[Any], Any])

_log = logging.getLogger("treadle.worker")

CONCURRENCY = 64
"""Executions at once by default: LLM and tool calls wait, they do not compute."""
DRAIN_TIMEOUT_S = 30.0
"""What running handlers get on SIGTERM; orchestrators usually kill after as long."""

_decode_notice = msgspec.json.Decoder(CancelNotice).decode


class Worker:
    """Handlers by task type, and the process that executes their tasks."""

    def __init__(
        self,
        name: str = "",
        *,
        concurrency: int = CONCURRENCY,
        domain: str = MAIN_DOMAIN,
        drain_timeout_s: float = DRAIN_TIMEOUT_S,
        ack_wait_s: float = ACK_WAIT_S,
        capture_logs: str = "warning",
    ) -> None:
        """Make a worker.

        ``name`` is for people (default: host and pid); ``concurrency`` bounds its executions at
        once; ``domain`` is the trust domain whose tasks it takes. ``ack_wait_s`` belongs to the
        task types, and must be the same in all their workers. ``capture_logs`` is the level from
        which what handlers log is put on the run's output stream (``treadle run logs``), beside
        all that ``ctx.logger`` says; ``off`` puts nothing there.
        """
        check_concurrency("concurrency of the worker", concurrency)
        self._name = check_id("worker name", name) if name else ""
        self._concurrency = concurrency
        self._domain = check_id("domain", domain)
        self._drain_timeout_s = drain_timeout_s
        self._ack_wait_s = ack_wait_s
        self._capture_level = level_of(capture_logs)
        self._registry = Registry()
        self._preparations: list[Callable[[], None]] = []
        """What takes its time and is done before tasks are asked for."""
        self._agent_handlers: list[AgentHandler] = []
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: Runner | None = None

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The registered handlers, by task type."""
        return self._registry

    @property
    def abandoned(self) -> int:
        """Handlers that were told to stop and still run: the process cannot end in good order."""
        return self._runner.abandoned if self._runner is not None else 0

    def handler(self, type: str, *, concurrency: int | None = None) -> Callable[[F], F]:
        """Register the decorated function as the handler of a task type.

        An ``async`` function runs on the event loop, a plain one in a thread. ``concurrency``
        bounds its executions at once in this process. Raises ``HandlerError`` if the function
        cannot serve.
        """
        # Annotations that are text may name what is local to the caller.
        frame = inspect.currentframe()
        caller = frame.f_back if frame is not None else None
        local_names = dict(caller.f_locals) if caller is not None else {}

        def register(function: F) -> F:
            self._registry.add(type, function, concurrency=concurrency, local_names=local_names)
            return function

        return register

    def agent(
        self,
        type: str,
        agent: Agent[Any],
        *,
        deps: Any = None,
        goal: Callable[[Any], Any] | None = None,
        on_event: Callable[[LoopContext[Any]], Callable[[AgentEvent], None] | None] | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Let an agent serve the agent-loop steps of a task type: a turn is an iteration.

        ``deps`` is what its tools get, or a function of the context that returns it. ``goal``
        makes the goal of the step's input (default: a text as it is, else its JSON).
        ``on_event(ctx)`` returns what is told of each event of the iteration. Raises
        ``HandlerError`` if the type has a handler.
        """
        from treadle.worker.agent import durable

        handler = durable.AgentHandler(agent, deps=deps, goal=goal, on_event=on_event)
        self.agent_handler(type, handler, concurrency=concurrency)

    def agent_handler(
        self, type: str, handler: AgentHandler, *, concurrency: int | None = None
    ) -> None:
        """Register a handler that drives agents; it is prepared before the first task comes."""
        self._registry.add(type, handler, concurrency=concurrency)
        self._preparations.append(handler.prepare)
        self._agent_handlers.append(handler)

    # ---------------------------------------------------------------- life

    async def run(self, settings: Settings | None = None) -> None:
        """Execute tasks until ``stop``; then drain.

        Raises ``ServerUnavailable`` if NATS cannot be reached at the start. A namespace that no
        engine has set up yet is waited for.
        """
        if not self._registry:
            raise HandlerError(
                "the worker has no handlers, so there is nothing it could execute. Register one "
                'with @worker.handler("task-type").'
            )
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        settings = settings or Settings.from_env()
        capture.warn(_log)
        for prepare in self._preparations:
            await asyncio.to_thread(prepare)
        presence = self._presence()
        connection = await Connection.open(settings, name=f"treadle worker {presence.name}")
        try:
            js = JetStream(connection, message_ids=settings.message_ids)
            subjects = await self._namespace(js, settings)
            if subjects is not None:
                with forking.guarded():
                    await self._execute(js, subjects, settings, presence)
        finally:
            await connection.close()

    def stop(self) -> None:
        """Stop pulling and let executions finish. From any thread; returns at once."""
        if self._loop is None or self._stopping is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._stopping.set)
        except RuntimeError:
            pass  # It has ended already.

    async def _execute(
        self, js: JetStream, subjects: Subjects, settings: Settings, presence: WorkerPresence
    ) -> None:
        assert self._stopping is not None
        held = HeldTable()
        watch = LoopWatch()
        pool = BlockingPool("treadle-handler")
        output = OutputStream(js, subjects, presence.incarnation)
        services = Services(
            CheckpointStore(js, subjects),
            InputReader(js, subjects),
            JournalStore(js, subjects),
            Mailbox(js, subjects),
            output,
            pool,
            StoredValues(js, subjects),
        )
        settler = Settler(js, subjects, presence.incarnation)
        runner = Runner(services, settler, held, concurrency=self._concurrency)
        self._runner = runner
        beat = Heartbeat(settings, subjects, presence, held, watch, ack_wait_s=self._ack_wait_s)
        intakes = [
            self._intake(js, subjects, handler, runner, presence) for handler in self._handlers()
        ]
        watch.start()
        try:
            await beat.start()
            await js.connection.subscribe(subjects.all_cancels, _cancel_with(runner))
            await asyncio.gather(*(intake.start() for intake in intakes))
            _log.info(
                "worker.ready incarnation=%s name=%s types=%s concurrency=%d",
                presence.incarnation,
                presence.name,
                ",".join(presence.types),
                self._concurrency,
            )
            with observed(runner, watch), capturing(self._capture_level):
                await self._stopping.wait()
        finally:
            await self._leave(intakes, runner)
            await output.close()
            for handler in self._agent_handlers:
                await handler.close()
            watch.stop()
            await beat.stop()
            pool.close()
            _log.info("worker.stopped incarnation=%s", presence.incarnation)

    async def _leave(self, intakes: list[Intake], runner: Runner) -> None:
        is_told = self._stopping is not None and self._stopping.is_set()
        await asyncio.gather(*(intake.stop() for intake in intakes), return_exceptions=True)
        # Without a stop this is a cancellation or a failed start: nobody waits for handlers.
        await runner.drain(self._drain_timeout_s if is_told else 0.0)

    def _handlers(self) -> list[Handler]:
        return list(self._registry.values())

    def _intake(
        self,
        js: JetStream,
        subjects: Subjects,
        handler: Handler,
        runner: Runner,
        presence: WorkerPresence,
    ) -> Intake:
        return Intake(
            js,
            subjects,
            handler,
            runner,
            domain=self._domain,
            capacity=handler.concurrency or self._concurrency,
            ack_wait_s=self._ack_wait_s,
            worker=presence.incarnation,
        )

    async def _namespace(self, js: JetStream, settings: Settings) -> Subjects | None:
        assert self._stopping is not None

        def tell() -> None:
            _log.warning(
                "worker.waiting namespace=%s: no engine has set it up on this server yet. "
                "Start one: treadle engine",
                settings.namespace,
            )

        return await awaited_namespace(js, settings, self._stopping, tell)

    def _presence(self) -> WorkerPresence:
        host = socket.gethostname().partition(".")[0]
        return WorkerPresence(
            # Fresh per process life: a restarted worker is another one, and holds nothing.
            incarnation=secrets.token_hex(8),
            name=self._name or f"{host}-{os.getpid()}"[-ID_CHARS_MAX:],
            host=host_id(),
            pid=os.getpid(),
            types=tuple(self._registry),
            concurrency=self._concurrency,
            domain=self._domain,
            started_ms=time.time_ns() // 1_000_000,
            version=importlib.metadata.version("treadle"),
        )


def _cancel_with(runner: Runner) -> Callable[[Message], None]:
    def cancel(message: Message) -> None:
        try:
            notice = _decode_notice(message.data)
        except (ValueError, RecursionError) as exc:
            _log.error("worker.cancel-unreadable subject=%s: %s", message.subject, exc)
            return
        runner.cancel(notice.run, notice.step)

    return cancel
