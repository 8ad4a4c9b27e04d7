"""``python -m bench.sleeping``: what runs cost that sleep, and whether a timer is late for them.

    none      a server and an engine that have nothing to do
    sleeping  the same with so many runs that sleep for a year: half of them in a step, half of them
              scheduled to begin then

No worker runs. The probes are runs that sleep for a second; they alternate between the two, in
batches whose order is drawn anew. Times are the server's: ``fired_ms`` is how late what the timer
fires was stored, ``ended_ms`` how late the end of its run was.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any

import msgspec
import typer

from bench.cases import Line
from bench.listing import index_pid
from bench.processes import Processes, cpu_s, memory_mb
from treadle.engine.overdue import SWEEP_S
from treadle.sdk import Client, Workflow
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.run import RunDocument
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects

AT_ONCE = 128
YEAR = timedelta(days=365)
PROBE_S = 1.0
PATIENCE_S = 900.0
IDLE_S = 2 * SWEEP_S
"""Each of an engine's sweeps comes at least twice in it."""
BATCH = 25
EVERY_S = 0.04
"""Between two probes of a batch, so that they meet the server's wheel anywhere in its turn."""

_document = msgspec.json.Decoder(RunDocument)


class Place:
    """A server and an engine without a worker, and what asks them."""

    def __init__(self, processes: Processes, client: Client, js: JetStream) -> None:
        self.processes = processes
        self.client = client
        self.js = js
        self.subjects = Subjects()
        self._probes = 0

    async def fill(self, count: int) -> None:
        """Start so many runs that sleep for a year; wait until each is where it stays."""
        await self.client.register(_sleeps("bench-nap", YEAR))
        left = iter(range(count))

        async def start() -> None:
            for n in left:
                after = YEAR if n % 2 else None
                await self.client.start("bench-nap", id=f"asleep-{n}", start_after=after)

        await asyncio.gather(*(start() for _ in range(AT_ONCE)))
        s = self.subjects
        timers = lambda: self.js.count(s.timers_stream, s.all_timers)  # noqa: E731
        await _until(timers, count)

    async def bytes_stored(self) -> int:
        """Return what all streams hold."""
        names = sorted(self.subjects.own_streams)
        infos = [await self.js.api(f"STREAM.INFO.{name}") for name in names]
        return sum(int(info["state"]["bytes"]) for info in infos)

    async def probe(self, late: dict[str, list[int]]) -> None:
        """Start a batch of runs that sleep for a second; note how late each was."""
        runs: list[str] = []
        for _ in range(BATCH):
            self._probes += 1
            runs.append((await self.client.start("bench-second", id=f"probe-{self._probes}")).id)
            await asyncio.sleep(EVERY_S)
        for run in runs:
            await self.client.result(run, timeout_s=PATIENCE_S)
            stored = await self.js.last(self.subjects.runs_stream, self.subjects.run_document(run))
            assert stored is not None
            entry = _document.decode(stored.data).steps["nap"]
            due_ms = entry.started_ms + round(PROBE_S * 1000)
            late["fired_ms"].append(entry.ended_ms - due_ms)
            late["ended_ms"].append(stored.time_ms - due_ms)

    def memory(self) -> dict[str, float]:
        """Return the memory of each process in MB, that of the engine's index apart."""
        found = {role: memory_mb(pid) for role, pid in self.processes.pids().items()}
        if pid := index_pid(self.processes.pids()["engine"]):
            found["index"] = memory_mb(pid)
        return {role: round(mb, 1) for role, mb in found.items()}

    def restart(self) -> None:
        """Start the engine anew: it finds them all asleep."""
        self.processes.end("engine")
        self.processes.spawn("engine", "engine")


def _sleeps(name: str, duration: timedelta) -> Workflow[Any]:
    workflow = Workflow[Any](name)
    workflow.sleep("nap", duration)
    return workflow


async def _until(read: Callable[[], Awaitable[int]], count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await read() < count:
            await asyncio.sleep(0.5)


@asynccontextmanager
async def _place() -> AsyncIterator[Place]:
    with Processes("2m") as processes:
        processes.end("worker")
        connection = await Connection.open(Settings(url=processes.url), name="bench-sleeping")
        try:
            async with Client.connect(processes.url) as client:
                await client.register(_sleeps("bench-second", timedelta(seconds=PROBE_S)))
                yield Place(processes, client, JetStream(connection))
        finally:
            await connection.close()


async def _idle(places: dict[str, Place]) -> dict[str, dict[str, float]]:
    """Return the share of a core that the processes of each take while nothing happens."""
    pids = {name: place.processes.pids() for name, place in places.items()}
    before = {name: {role: cpu_s(pid) for role, pid in of.items()} for name, of in pids.items()}
    began = time.monotonic()
    await asyncio.sleep(IDLE_S)
    took_s = time.monotonic() - began
    return {
        name: {
            role: round(100 * (cpu_s(pid) - before[name][role]) / took_s, 2)
            for role, pid in of.items()
        }
        for name, of in pids.items()
    }


def _spread(values: Sequence[int]) -> dict[str, int]:
    ordered = sorted(values)
    at = {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 99)}
    return {**at, "max": ordered[-1]}


async def _run(count: int, rounds: int) -> None:
    async with _place() as none, _place() as sleeping:
        places = {"none": none, "sleeping": sleeping}
        for place in places.values():
            await place.probe({"fired_ms": [], "ended_ms": []})  # The first ones warm everything.
        memory, stored = sleeping.memory(), await sleeping.bytes_stored()
        began = time.monotonic()
        await sleeping.fill(count)
        filled_s = time.monotonic() - began
        _say(
            runs=count,
            seconds_to_start=round(filled_s, 1),
            bytes_per_run=round((await sleeping.bytes_stored() - stored) / count),
            memory_mb_before=memory,
            memory_mb_after=sleeping.memory(),
            workers=sum(each.role == "worker" for each in await sleeping.client.processes()),
        )
        for place in places.values():
            place.restart()
        await asyncio.sleep(IDLE_S)  # An engine reads all schedules once, in its first sweep.
        idle = await _idle(places)
        _say(
            idle_cpu_percent=idle,
            memory_mb={name: place.memory() for name, place in places.items()},
        )
        late: dict[str, dict[str, list[int]]] = {
            name: {"fired_ms": [], "ended_ms": []} for name in places
        }
        for _ in range(rounds):
            order = list(places)
            random.shuffle(order)
            for name in order:
                await places[name].probe(late[name])
        for name, of in late.items():
            _say(
                probes=rounds * BATCH,
                asleep=count if name == "sleeping" else 0,
                late={what: _spread(values) for what, values in of.items()},
            )


def _say(**line: Any) -> None:
    told: Line = {**line, "load_average": round(os.getloadavg()[0], 1)}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def main(
    runs: Annotated[int, typer.Option(help="Runs that sleep.")] = 50_000,
    rounds: Annotated[int, typer.Option(help="Batches of probes on each side.")] = 20,
) -> None:
    """Measure sleeping runs: two servers, each with an engine, and no worker."""
    asyncio.run(_run(runs, rounds))


if __name__ == "__main__":
    typer.run(main)
