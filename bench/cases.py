"""The cases: what is run, and what is read off it.

Rates of a steady state are taken from the server's time stamps of the stored events between
the tenth and the ninetieth percentile, so that start-up and the last stragglers do not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from bench import agent_app, app, growth
from bench.floor import floor
from bench.processes import Processes
from treadle.engine.telemetry.projector import CURSOR, Cursor
from treadle.sdk import Client
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.run import RunDocument
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects
from treadle.sdk.tracing.calling import TraceMode

Line = dict[str, Any]
_document = msgspec.json.Decoder(RunDocument)
_cursor = msgspec.json.Decoder(Cursor)
_STARTS_AT_ONCE = 64
_WORKFLOWS = (app.checkpointed, app.carried, app.chain)
_AGENTS = (agent_app.grown, agent_app.compacted)


class Bench:
    """One set of processes, and a client in this process that loads them."""

    def __init__(self, processes: Processes, client: Client, js: JetStream, sync: str) -> None:
        self._processes = processes
        self._client = client
        self._js = js
        self._sync = sync
        self._subjects = Subjects()
        self._runs = 0

    async def loops(
        self, case: str, workflow: str, loops: int, iterations: int, *, saves: bool
    ) -> Line:
        """Run so many loops side by side; rate of committed iterations."""
        bare = await floor(
            self._processes.url,
            loops=loops,
            iterations=min(iterations, 300),
            state_bytes=app.STATE_BYTES,
            saves=saves,
        )
        line = await self.batch(workflow, loops, iterations)
        return self._line(
            case,
            **line,
            ratio_to_bare_messages=round(line["iterations_per_s"] / bare, 2),
            bare_messages_per_s=round(bare),
            loops=loops,
            iterations=iterations,
        )

    async def batch(
        self, workflow: str, loops: int, iterations: int, trace: TraceMode | None = None
    ) -> Line:
        """Run so many loops side by side; rate of committed iterations, and what they cost."""
        first_event = await self._last_event() + 1
        cpu, started = self._processes.cpu(), time.perf_counter()
        await self._start_all(workflow, {"n": iterations}, loops, trace)
        seconds = time.perf_counter() - started
        count = loops * iterations
        return {
            "iterations_per_s": round(await self._steady_rate(first_event)),
            "iterations_per_s_with_start": round(count / seconds),
            "cpu_us_per_iteration": self._cpu_us(cpu, count),
        }

    async def until_exported(self, timeout_s: float) -> None:
        """Wait until the spans of what has happened so far are with the collector."""
        last, s = await self._last_event(), self._subjects
        async with asyncio.timeout(timeout_s):
            while True:
                stored = await self._js.last(s.workflows_stream, s.cursor(CURSOR))
                if stored is not None and _cursor.decode(stored.data).events >= last:
                    return
                await asyncio.sleep(0.05)

    async def chains(self, case: str, runs: int) -> Line:
        """Run chains of three steps, all at once: first request to last end, by their documents."""
        cpu = self._processes.cpu()
        ids = await self._start_all("bench-chain", {"pad": "x" * 200}, runs)
        used = self._cpu_us(cpu, runs)
        documents = [await self._document(run) for run in ids]
        ended = sorted(document.ended_ms for document in documents)
        began = min(document.requested_ms for document in documents)
        low, high = int(runs * 0.1), int(runs * 0.9)
        return self._line(
            case,
            runs_per_s=round(1000 * (high - low) / max(1, ended[high] - ended[low])),
            runs_per_s_with_start=round(1000 * runs / (ended[-1] - began)),
            runs=runs,
            cpu_us_per_run=used,
        )

    async def latency(self, case: str, runs: int) -> Line:
        """Run chains one after the other: start to result, at idle."""
        times_ms: list[float] = []
        for _ in range(runs):
            started = time.perf_counter()
            run = await self._client.start("bench-chain", {"pad": "x" * 200})
            await run.result()
            times_ms.append((time.perf_counter() - started) * 1000)
        times_ms.sort()
        return self._line(
            case,
            p50_ms=round(statistics.median(times_ms), 2),
            p99_ms=round(times_ms[int(len(times_ms) * 0.99) - 1], 2),
            runs=runs,
        )

    async def growth(self, case: str, iterations: int, window: int) -> Line:
        """Run one long loop; rate and CPU in each window, to see that the cost stays flat."""
        first_event = await self._last_event() + 1
        run = await self._client.start("bench-checkpoint", {"n": iterations})
        waiting = asyncio.create_task(run.result())
        samples = [(0, self._processes.cpu())]
        while not waiting.done():
            await asyncio.sleep(0.02)
            done = await self._last_event() - first_event
            if done - samples[-1][0] >= window:
                samples.append((done, self._processes.cpu()))
        await waiting
        times = await self._event_times(first_event)
        rates = [
            round(1000 * window / max(1, times[i + window] - times[i]))
            for i in range(10, len(times) - window, window)
        ]
        cpu = [
            {name: round(1e6 * (after[name] - before[name]) / (n2 - n1)) for name in after}
            for (n1, before), (n2, after) in itertools.pairwise(samples)
        ]
        return self._line(
            case,
            iterations=iterations,
            window=window,
            iterations_per_s=rates,
            cpu_us_per_iteration=cpu,
            last_to_first=round(statistics.mean(rates[-2:]) / statistics.mean(rates[:2]), 2),
        )

    async def agent_growth(
        self, case: str, workflow: str, iterations: int = 300, window: int = 30
    ) -> Line:
        """Run one agent whose conversation grows; what an iteration costs in each window."""
        curves = await growth.measure(
            self._processes, self._client, self._js, workflow, iterations, window
        )
        return self._line(case, **curves)

    # ---------------------------------------------------------------- parts

    async def _start_all(
        self, workflow: str, value: object, count: int, trace: TraceMode | None = None
    ) -> list[str]:
        gate = asyncio.Semaphore(_STARTS_AT_ONCE)

        async def one() -> str:
            async with gate:
                return (await self._client.start(workflow, value, trace=trace)).id

        ids = await asyncio.gather(*(one() for _ in range(count)))
        # The last one started is nearly the last to end; then each is looked at once.
        await self._client.result(ids[-1])
        for run in ids:
            if not (await self._document(run)).is_terminal:
                await self._client.result(run)
        return list(ids)

    async def _document(self, run: str) -> RunDocument:
        stored = await self._js.last(self._subjects.runs_stream, self._subjects.run_document(run))
        assert stored is not None, run
        return _document.decode(stored.data)

    async def _last_event(self) -> int:
        info = await self._js.api(f"STREAM.INFO.{self._subjects.events_stream}")
        return int(info["state"]["last_seq"])

    async def _event_times(self, first: int) -> list[int]:
        stream, events = self._subjects.events_stream, self._subjects.all_events
        return [stored.time_ms async for stored in self._js.read(stream, events, start=first)]

    async def _steady_rate(self, first: int) -> float:
        times = sorted(await self._event_times(first))
        low, high = int(len(times) * 0.1), int(len(times) * 0.9)
        return 1000 * (high - low) / max(1, times[high] - times[low])

    def _cpu_us(self, before: dict[str, float], count: int) -> dict[str, int]:
        after = self._processes.cpu()
        return {name: round(1e6 * (after[name] - before[name]) / count) for name in after}

    def _line(self, case: str, **values: Any) -> Line:
        return {
            "case": case,
            "sync": self._sync,
            **values,
            "memory_mb": self._processes.memory(),
        }


@contextlib.asynccontextmanager
async def open_bench(processes: Processes, sync: str, client: Client) -> AsyncGenerator[Bench]:
    """Register the workload and give the bench over running processes."""
    for workflow in (*_WORKFLOWS, *_AGENTS):
        await client.register(workflow)
    connection = await Connection.open(Settings(url=processes.url), name="bench")
    try:
        yield Bench(processes, client, JetStream(connection), sync)
    finally:
        await connection.close()
