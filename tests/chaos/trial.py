"""One trial: loops run while processes, the server and consumers are struck, then the audit.

New runs start until the last fault has struck, so that every fault meets work under way. Then
everything is healed, every run has to end, and the stored history has to be sound.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import msgspec
from tests.chaos.proxy import AckLosingProxy
from tests.chaos.schedule import Fault, schedule, slots, window
from tests.crash import audit
from tests.crash.chain import TASK_TYPE
from tests.crash.process import Process
from tests.crash.stage import ACK_WAIT_S, Stage, loops

from treadle.sdk import Retry, TreadleError
from treadle.sdk.bus.connection import Message, Unknown
from treadle.sdk.bus.jetstream import ApiError
from treadle.sdk.messages import CancelRequested, SignalReceived

ITERATIONS = 12
UNDER_WAY = 24
"""Runs at once."""
LOST_ACKS = 0.01
REPEATED_SETTLES = 0.05
END_S = 45.0
"""Longest a run may take to end after the last fault."""

_RETRY = Retry(max_attempts=50, backoff="fixed", delay_s=0.05)


class Report(msgspec.Struct):
    """What came of a trial."""

    seed: int
    seconds: float = 0
    runs: int = 0
    statuses: dict[str, int] = {}
    faults: dict[str, int] = {}
    deaths: int = 0
    """Processes that died, by a fault or at a failpoint they were started with."""
    killed: int = 0
    """Of those, by a fault: some faults find nobody at home."""
    lost_acks: int = 0
    repeated_settles: int = 0
    committed: int = 0
    """Iterations committed."""
    executions: int = 0
    last_end_s: float = 0
    """From the last fault to the end of the last run."""
    violations: list[str] = []


class Trial:
    """A trial on a stage; ``run`` plays it."""

    def __init__(self, stage: Stage, *, seed: int, seconds: float) -> None:
        self._stage = stage
        self._rng = random.Random(seed)
        self._faults = schedule(seed, seconds, ACK_WAIT_S)
        self._slots: dict[str, Process] = {}
        self._proxies: dict[str, AckLosingProxy] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_struck = True
        self._count = 0
        self.report = Report(seed=seed, seconds=seconds)

    async def run(self) -> Report:
        """Play the trial and return what came of it."""
        stage, report = self._stage, self.report
        for slot in slots():
            proxy = AckLosingProxy(stage.server.port, share=LOST_ACKS, rng=self._rng)
            self._proxies[slot] = proxy
            await proxy.open()
            self._keepers.append(asyncio.create_task(self._keep(slot)))
        await stage.js.connection.subscribe(stage.subjects.all_events, self._repeat)
        players = [asyncio.create_task(self._play()) for _ in range(UNDER_WAY)]
        await self._strike()
        self._is_struck = False
        struck_at_s = time.monotonic()
        await asyncio.gather(*players)
        report.last_end_s = round(time.monotonic() - struck_at_s, 1)
        await asyncio.gather(*self._tasks)
        await stage.settled()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for proxy in self._proxies.values():
            await proxy.close()
        await self._judge()
        stage.expected.clear()
        return report

    # ---------------------------------------------------------------- faults

    async def _strike(self) -> None:
        begun_s = time.monotonic()
        for fault in self._faults:
            await asyncio.sleep(max(0.0, begun_s + fault.at_s - time.monotonic()))
            kind = f"{fault.kind} {fault.target.rstrip('0123456789')}"
            self.report.faults[kind] = self.report.faults.get(kind, 0) + 1
            if fault.kind == "delete_consumer":
                await self._delete_consumer(fault.target)
            elif fault.target == "server":
                await self._stage.kill_server()
            elif fault.kind == "kill":
                self.report.killed += self._slots[fault.target].is_running
                self._slots[fault.target].kill()
            else:
                self._slots[fault.target].stop()
                self._spawn(self._go_on(fault, self._slots[fault.target]))

    async def _go_on(self, fault: Fault, process: Process) -> None:
        await asyncio.sleep(fault.hold_s)
        process.go_on()

    async def _keep(self, slot: str) -> None:
        """Start a process, and another one a moment after it has died."""
        role = slot.rstrip("0123456789")
        url = f"nats://127.0.0.1:{self._proxies[slot].port}"
        while True:
            failpoint = window(self._rng, role) if self._is_struck else ""
            process = self._slots[slot] = self._stage.process(role, failpoint, url=url)
            while process.is_running:
                await asyncio.sleep(0.02)
            self.report.deaths += 1
            await asyncio.sleep(self._rng.uniform(0.05, 0.6))

    async def _delete_consumer(self, whose: str) -> None:
        subjects = self._stage.subjects
        names = {
            "worker": (subjects.steps_stream, subjects.worker_consumer(TASK_TYPE)),
            "engine": (subjects.events_stream, subjects.engine_consumer(0)),
        }
        stream, consumer = names[whose]
        try:
            await self._stage.js.api(f"CONSUMER.DELETE.{stream}.{consumer}")
        except (ApiError, Unknown):
            pass  # The server is away, or nobody has made it anew yet.

    def _repeat(self, message: Message) -> None:
        """Store a share of the verdicts again: at once or late, with another message id."""
        if b'"step.' not in message.data or self._rng.random() >= REPEATED_SETTLES:
            return
        self.report.repeated_settles += 1
        self._spawn(self._again(message.subject, message.data, self._rng.choice([0.0, 0.5, 3.0])))

    async def _again(self, subject: str, data: bytes, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._stage.js.store(subject, data, message_id=secrets.token_hex(8))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---------------------------------------------------------------- runs

    async def _play(self) -> None:
        """Start one run after the other while faults strike, and see each to its end."""
        while self._is_struck:
            self._count += 1
            run = f"run{self._count}"
            await self._start_run(run, self._count)
            try:
                await self._stage.ended(run, END_S + self.report.seconds)
            except AssertionError:
                return  # The audit says of it that it has not ended.

    async def _start_run(self, run: str, number: int) -> None:
        options, statuses = dict[str, float](), ["completed"]
        if number % 10 == 3:
            options["max_duration"] = self._rng.uniform(1, 4)
            statuses.append("failed")
        if number % 10 == 7:
            statuses.append("cancelled")
        workflow = loops(f"chain{number % 10}", steps=2, retry=_RETRY, **options)
        while True:
            try:
                await self._stage.start(
                    run,
                    workflow=workflow,
                    statuses=tuple(statuses),
                    iterations=ITERATIONS,
                    work_ms=self._rng.choice([0, 10, 40]),
                    delay_ms=self._rng.choice([0, 0, 0, 60]),
                    fails_percent=2,
                )
                break
            except TreadleError:
                self._stage.expected.pop()  # The server is away: the same start again.
        for index in range(3):
            self._spawn(self._later(run, SignalReceived(name="note", id=f"s{index}")))
        if "cancelled" in statuses:
            self._spawn(self._later(run, CancelRequested()))

    async def _later(self, run: str, event: SignalReceived | CancelRequested) -> None:
        await asyncio.sleep(self._rng.uniform(0, 2))
        await self._stage.publish(event, run)

    # ---------------------------------------------------------------- the verdict

    async def _judge(self) -> None:
        report, expected = self.report, self._stage.expected
        found = await self._stage.recorder.collect()
        report.violations = audit.violations(found, expected)
        report.committed = audit.committed(found)
        report.executions = sum(each["kind"] == "begin" for each in self._stage.effects())
        report.runs = len(expected)
        report.statuses = dict(Counter(found.documents[each.run][-1].status for each in expected))
        report.lost_acks = sum(proxy.lost for proxy in self._proxies.values())
