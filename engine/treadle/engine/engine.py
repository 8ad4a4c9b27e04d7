"""The engine process: wires the parts, pulls events, and stops gracefully.

Any number of engines share the same consumers. None is a leader, none keeps in memory what
another could not read, and one that dies leaves its un-acked events to the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from opentelemetry.metrics import Meter

from treadle.engine.admission import Admission
from treadle.engine.children import Children
from treadle.engine.collect_log import CollectLog
from treadle.engine.collecting import Collecting
from treadle.engine.collector import Collector
from treadle.engine.core.moment import Moment
from treadle.engine.correlator import Correlator
from treadle.engine.dead_letters import DeadLetters
from treadle.engine.definitions import Definitions
from treadle.engine.documents import Documents
from treadle.engine.driver import Driver
from treadle.engine.floor import AckFloor
from treadle.engine.forks import Forks
from treadle.engine.inbox import Inbox
from treadle.engine.index.beside import Indexing
from treadle.engine.inputs import Inputs
from treadle.engine.intake import Intake
from treadle.engine.lane_log import LaneLog
from treadle.engine.lanes import Lanes
from treadle.engine.last_resort import LastResort
from treadle.engine.ledger import Ledger
from treadle.engine.overdue import Overdue
from treadle.engine.pauses import Pauses
from treadle.engine.planned import RunPlans
from treadle.engine.rates import Rates
from treadle.engine.registers import Registers
from treadle.engine.requesting import Requests
from treadle.engine.retention import RETENTION_S, Retention
from treadle.engine.runs import Runs
from treadle.engine.slot_sweep import SlotSweep
from treadle.engine.slots import Slots
from treadle.engine.steps import Steps
from treadle.engine.takeover import Takeover
from treadle.engine.telemetry.beside import Tracing
from treadle.engine.telemetry.counting import counting
from treadle.engine.timers import Timers
from treadle.engine.topology import EVENT_ACK_WAIT_S, ensure_topology
from treadle.engine.trigger_intake import TriggerIntake
from treadle.engine.trigger_messages import TriggerMessages
from treadle.engine.trigger_pulls import TriggerPulls
from treadle.engine.triggers import Triggers
from treadle.engine.turns import Turns
from treadle.engine.versions import Versions
from treadle.engine.waiter_log import WaiterLog
from treadle.engine.waiters import Waiters
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.client.store import Store
from treadle.sdk.ids import new_nonce
from treadle.sdk.payload import small_server
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects

EVENTS_IN_HAND_MAX = 1024
"""Events an engine takes at once: enough to fold and to hide round trips, few enough that a
killed engine leaves little to redo."""
DRAIN_S = 10.0

_log = logging.getLogger("treadle.engine")


class Engine:
    """One engine; ``run`` returns after ``stop``.

    ``partitions`` counts only for the engine that sets the namespace up; 0 takes what is there.
    ``replicas`` is the number of servers that hold each stream, for streams it creates.
    ``retention_s`` is how long ended runs are kept, in seconds; 0 keeps them for ever.
    ``event_ack_wait_s`` belongs to the shared consumers: it must be the same in all engines.
    ``output_max_age_s`` is how long what runs say is kept, in seconds; None leaves it as it is.
    ``tracing`` is how the spans of runs are exported (``treadle.engine.telemetry``); None is not.
    ``indexing`` is how an index of the runs is kept for listings; None is not.
    ``meter`` counts what happens in the namespace (docs/metrics.md); None is no metrics.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        name: str = "",
        partitions: int = 0,
        replicas: int = 1,
        event_ack_wait_s: float = EVENT_ACK_WAIT_S,
        retention_s: float = RETENTION_S,
        output_max_age_s: float | None = None,
        tracing: Tracing | None = None,
        meter: Meter | None = None,
        indexing: Indexing | None = None,
    ) -> None:
        self._settings = settings
        self._name = name or f"engine-{new_nonce()}"
        self._partitions = partitions
        self._replicas = replicas
        self._retention_s = retention_s
        self._event_ack_wait_s = event_ack_wait_s
        self._output_max_age_s = output_max_age_s
        self._tracing = tracing or Tracing()
        self._meter = meter
        self._indexing = indexing or Indexing()
        self._pullers: list[Puller] = []
        self._stopping = asyncio.Event()
        self.ready = asyncio.Event()
        """Set once events are being pulled."""

    def stop(self) -> None:
        """Ask the engine to finish what it holds and return."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until ``stop``. Raises ``ServerError`` if the server cannot be used."""
        connection = await Connection.open(self._settings, name=self._name)
        if small := small_server(connection.max_payload_bytes):
            _log.warning("engine.server-small %s: %s", *small)
        try:
            js = JetStream(connection, message_ids=self._settings.message_ids)
            subjects = await self._ensure_topology(js)
            registers = Registers(js, subjects)
            parts = _wire(connection, js, subjects, registers)
            intake, lanes, pauses, waiters, admission = parts
            takeover = Takeover(
                js,
                subjects,
                registers,
                name=self._name,
                projects=self._tracing.is_wanted,
                measures=self._meter is not None,
                indexes=self._indexing.is_wanted,
            )
            me = (self._settings, self._name, takeover.incarnation)
            index = self._indexing.beside(js, subjects, *me)
            async with self._tracing.beside(*me), counting(self._meter, *me), index:
                await self._serve(js, subjects, intake, takeover, lanes, pauses, waiters, admission)
        finally:
            await connection.close()

    async def _ensure_topology(self, js: JetStream) -> Subjects:
        return await ensure_topology(
            js,
            self._settings,
            partitions=self._partitions,
            replicas=self._replicas,
            event_ack_wait_s=self._event_ack_wait_s,
            output_max_age_s=self._output_max_age_s,
        )

    async def _serve(
        self,
        js: JetStream,
        subjects: Subjects,
        intake: Intake,
        takeover: Takeover,
        lanes: Lanes,
        pauses: Pauses,
        waiters: Waiters,
        admission: Admission,
    ) -> None:
        async def catch_up() -> None:
            for partition in range(subjects.partitions):
                await _catch_up(js, subjects, partition, intake)

        await pauses.start()
        for partition in range(subjects.partitions):
            consumer = subjects.engine_consumer(partition)
            await self._pull(js, subjects.events_stream, consumer, partial(intake.take, "e"))
            await self._pull(js, subjects.timers_stream, consumer, partial(intake.take, "t"))
        settling, pulls = _triggers(js, subjects)
        triggers = TriggerIntake(subjects, settling)
        for stream in (subjects.workflows_stream, subjects.timers_stream):
            await self._pull(js, stream, subjects.triggers_consumer(), triggers.take)
        collector = _collector(js, subjects)
        name = subjects.collect_consumer()
        await self._pull(js, subjects.collect_stream, name, collector.take_start)
        await self._pull(js, subjects.timers_stream, name, collector.take_firing)
        correlator = Correlator(subjects, waiters)
        await self._pull(
            js, subjects.external_stream, subjects.correlator_consumer(), correlator.take
        )
        await catch_up()
        await takeover.start(catch_up)
        retention = Retention(js, subjects, keep_s=self._retention_s)
        overdue = Overdue(js, subjects)
        slots = SlotSweep(js, subjects, admission)
        sweeps = (retention, overdue, lanes, pulls, pauses, waiters, slots, collector)
        sweeping = [asyncio.create_task(each.run()) for each in sweeps]
        self.ready.set()
        _log.info("engine.ready %s", self._name)
        await self._stopping.wait()
        for sweep in sweeping:
            sweep.cancel()
        for puller in self._pullers:
            await puller.stop()
        await intake.wait_idle(DRAIN_S)
        await admission.wait_idle(DRAIN_S)
        await triggers.wait_idle(DRAIN_S)
        await pulls.stop(DRAIN_S)
        await correlator.wait_idle(DRAIN_S)
        await collector.wait_idle(DRAIN_S)
        await takeover.stop()
        _log.info("engine.stopped %s", self._name)

    async def _pull(
        self, js: JetStream, stream: str, consumer: str, take: Callable[[Delivery, Puller], None]
    ) -> None:
        async def recreate() -> None:
            await self._ensure_topology(js)

        def taken(delivery: Delivery) -> None:
            take(delivery, puller)

        puller = Puller(
            js,
            stream,
            consumer,
            capacity=EVENTS_IN_HAND_MAX,
            on_delivery=taken,
            on_missing=recreate,
        )
        self._pullers.append(puller)
        await puller.start()


def _wire(
    connection: Connection, js: JetStream, subjects: Subjects, registers: Registers
) -> tuple[Intake, Lanes, Pauses, Waiters, Admission]:
    dead_letters = DeadLetters(js, subjects)
    documents, definitions = Documents(js, subjects), Definitions(js, subjects)
    timers = Timers(js, subjects)
    inputs = Inputs(js, subjects, registers)
    pauses = Pauses(js, subjects, documents)
    plans = RunPlans(definitions, registers, inputs.outputs)
    admission = Admission(registers, timers, pauses, Slots(js, subjects), Rates(js, subjects))
    inbox = Inbox(js, subjects)
    versions = Versions(js, subjects, definitions)
    ledger = Ledger(documents, plans, registers)
    steps = Steps(
        registers,
        documents,
        definitions,
        plans,
        timers,
        inbox,
        ledger,
        pauses,
        admission,
        versions,
        Turns(js, subjects, registers),
    )
    floor = AckFloor(js, subjects)
    lanes = Lanes(LaneLog(js, subjects, documents, definitions, floor))
    waiters = Waiters(WaiterLog(js, subjects), documents, plans, inputs)
    children = Children(js, subjects, documents, definitions, inputs, ledger)
    forks = Forks(js, subjects, registers)
    driver = Driver(
        connection,
        subjects,
        registers,
        steps,
        inputs,
        timers,
        lanes,
        pauses,
        children,
        waiters,
        forks,
        versions,
        ledger,
    )
    runs = Runs(
        documents,
        registers,
        definitions,
        plans,
        steps,
        driver,
        inputs,
        dead_letters,
        floor,
        lanes,
        children,
        inbox,
        forks,
    )
    last_resort = LastResort(js, subjects, documents, definitions, plans, driver, dead_letters)
    intake = Intake(subjects, runs, last_resort, dead_letters)
    return intake, lanes, pauses, waiters, admission


def _triggers(js: JetStream, subjects: Subjects) -> tuple[Triggers, TriggerPulls]:
    store = Store(js, subjects)
    settling = Triggers(js, subjects)
    messages = TriggerMessages(
        store,
        Requests(js, subjects, store),
        Definitions(js, subjects),
        DeadLetters(js, subjects),
    )
    return settling, TriggerPulls(js, store, settling, messages)


def _collector(js: JetStream, subjects: Subjects) -> Collector:
    log = CollectLog(js, subjects, Definitions(js, subjects))
    return Collector(subjects, log, Collecting(log, Requests(js, subjects, Store(js, subjects))))


async def _catch_up(js: JetStream, subjects: Subjects, partition: int, intake: Intake) -> None:
    """Handle the events that a dead engine may have taken and not acked.

    The server delivers them again after the ack wait; reading them now costs nothing but a
    second look at some, and spares the runs that wait for them.
    """
    consumer = subjects.engine_consumer(partition)
    info = await js.api(f"CONSUMER.INFO.{subjects.events_stream}.{consumer}")
    first = int(info["ack_floor"]["stream_seq"]) + 1
    last = int(info["delivered"]["stream_seq"])
    if first > last:
        return
    events = subjects.events_of_partition(partition)
    async for stored in js.read(subjects.events_stream, events, start=first):
        if stored.sequence > last:
            break
        moment = Moment("", f"e{stored.sequence}", stored.time_ms, stored.sequence)
        intake.take_message(moment, stored.subject, stored.data)
