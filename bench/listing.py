"""What lists cost among many finished runs: ``python -m bench.listing``, as JSON lines.

    empty   a server, an engine and a worker that have nothing behind them
    full    the same beside a bucket of finished runs, whose documents are stored as they are

Starts alternate between the two, in batches whose order is drawn anew. The questions are asked of
the index, then, when its engine has ended, of a scan.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from bench.cases import Bench, open_bench
from bench.processes import Processes, cpu_s, memory_mb
from treadle.sdk import Client
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.run import RunDocument, StepEntry
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects

WRITES_AT_ONCE = 512
PATIENCE_S = 120.0
ASKED = 40
SCANS = 1
ROUNDS = 12
BATCH = 20
MODULE = b"treadle.engine.index"

QUESTIONS: dict[str, dict[str, Any]] = {
    "newest 50": {},
    "one status": {"status": "failed"},
    "one workflow and status": {"workflow": "flow-3", "status": "completed"},
    "one customer of 1,000": {"where": {"customer": "c17"}},
    "half of all, by a bool": {"where": {"paid": True}},
    "two labels, one rare": {"where": {"paid": True, "amount": (">=", 99_950)}},
    "nothing": {"where": {"customer": "nobody"}},
}


def _document(n: int, now_ms: int) -> RunDocument:
    requested_ms = now_ms - 3_600_000 + n
    steps = {
        name: StepEntry("completed", 1, requested_ms, requested_ms + 20, f"e{3 * n}", position=n)
        for name in ("a", "b", "c")
    }
    return RunDocument(
        run=f"old-{n}",
        workflow=f"flow-{n % 10}",
        definition="0" * 16,
        status="failed" if n % 50 == 0 else "completed",
        requested=n + 1,
        requested_ms=requested_ms,
        ended_ms=requested_ms + 60,
        steps=steps,
        metadata={"customer": f"c{n % 1_000}", "amount": n, "paid": n % 2 == 0},
    )


async def _fill(url: str, count: int) -> int:
    """Store so many documents; return the bytes of one."""
    connection = await Connection.open(Settings(url=url), name="bench-fill")
    js, subjects, now_ms = JetStream(connection), Subjects(), round(time.time() * 1000)
    size = 0
    for first in range(0, count, WRITES_AT_ONCE):
        writes: list[Awaitable[int]] = []
        for n in range(first, min(count, first + WRITES_AT_ONCE)):
            data = msgspec.json.encode(_document(n, now_ms))
            size = len(data)
            writes.append(js.store(subjects.run_document(f"old-{n}"), data))
        await asyncio.gather(*writes)
    await connection.close()
    return size


def index_pid(engine: int) -> int:
    """Return the process of the engine's index; 0 if it has none."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == engine and MODULE in (entry / "cmdline").read_bytes():
                return int(entry.name)
        except OSError:
            continue
    return 0


async def _answering(client: Client) -> float:
    """Wait until an index answers; return how long that took, in seconds."""
    began = time.perf_counter()
    async with asyncio.timeout(PATIENCE_S):
        while (await client.count_runs(status="queued")).scanned:
            await asyncio.sleep(0.1)
    return time.perf_counter() - began


async def _timed(act: Callable[[], Awaitable[Any]], times: int) -> dict[str, float]:
    took: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        await act()
        took.append((time.perf_counter() - began) * 1000)
    took.sort()
    return {"p50_ms": round(took[len(took) // 2], 2), "max_ms": round(took[-1], 2)}


async def _ask(
    client: Client, how: str, times: int, names: Sequence[str] = tuple(QUESTIONS)
) -> None:
    for name in names:
        wanted = QUESTIONS[name]
        page = await client.list_runs(**wanted)
        assert bool(page.scanned) == (how == "scan")
        line = await _timed(lambda wanted=wanted: client.list_runs(**wanted), times)
        _say(question=name, by=how, found=len(page.runs), **line)
        line = await _timed(lambda wanted=wanted: client.count_runs(**wanted), times)
        total = (await client.count_runs(**wanted)).total
        _say(question=f"count: {name}", by=how, found=total, **line)


async def _starts(empty: Bench, full: Bench) -> None:
    """Compare how long a run takes from its start to its result, and what it costs."""
    medians: dict[str, list[float]] = {"empty": [], "full": []}
    for _ in range(ROUNDS):
        order = [("empty", empty), ("full", full)]
        random.shuffle(order)
        for name, bench in order:
            medians[name].append((await bench.latency("start", BATCH))["p50_ms"])
    ratios = [b / a for a, b in zip(medians["empty"], medians["full"], strict=True)]
    quartiles = statistics.quantiles(ratios)
    _say(
        start_to_result_p50_ms={name: statistics.median(each) for name, each in medians.items()},
        ratio=[round(each, 2) for each in quartiles],
    )


async def _run(count: int) -> None:
    with Processes("2m") as empty, Processes("2m") as full:
        async with Client.connect(empty.url) as one, Client.connect(full.url) as other:
            size = await _fill(full.url, count)
            ready_s = await _answering(other)
            async with (
                open_bench(empty, "2m", one) as empty_bench,
                open_bench(full, "2m", other) as full_bench,
            ):
                await _starts(empty_bench, full_bench)
            await _ask(other, "index", ASKED)
            full.end("engine")
            await _ask(other, "scan", SCANS, ("newest 50", "one customer of 1,000"))
            full.spawn("engine", "engine")
            ready_s = await _answering(other)
            pid = index_pid(full.pids()["engine"])
            _say(
                documents=count,
                bytes_of_one=size,
                answers_after_s=round(ready_s, 1),
                index_cpu_s=round(cpu_s(pid), 1),
                index_memory_mb=round(memory_mb(pid), 1),
                engine_memory_mb=full.memory()["engine"],
            )


def _say(**line: Any) -> None:
    sys.stdout.write(json.dumps({**line, "load_average": round(os.getloadavg()[0], 1)}) + "\n")
    sys.stdout.flush()


def main(
    runs: Annotated[int, typer.Option(help="Finished runs behind the engine.")] = 100_000,
) -> None:
    """Measure lists, counts and starts beside many finished runs."""
    asyncio.run(_run(runs))


if __name__ == "__main__":
    typer.run(main)
