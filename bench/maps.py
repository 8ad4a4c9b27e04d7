"""``python -m bench.maps``: maps over lists of growing length, as JSON lines.

One server, one engine and one worker process. Bytes are those written to the streams of events and
registers, which nothing overwrites in a map without failures, and what the run's document took.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Annotated, Any

import typer

from bench.cases import Line
from bench.processes import Processes, cpu_s, memory_mb
from treadle.sdk import Client, Workflow
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects

COUNTS = (0, 1, 100, 1_000, 10_000, 100_000)
RESULT_S = 600.0


def mapping() -> Workflow[Any]:
    """A map of a handler that returns its item."""
    workflow = Workflow[Any]("bench-map")
    workflow.map("bench-pass")
    return workflow


async def _written(js: JetStream, subjects: Subjects) -> tuple[int, int]:
    """Return the bytes of events and registers, and how many messages there were of all kinds."""
    streams = (subjects.events_stream, subjects.steps_stream, subjects.runs_stream)
    states = [(await js.api(f"STREAM.INFO.{name}"))["state"] for name in streams]
    return sum(int(state["bytes"]) for state in states[:2]), sum(
        int(state["last_seq"]) for state in states
    )


async def _measure(
    processes: Processes, client: Client, js: JetStream, count: int, number: int
) -> Line:
    pids, subjects = processes.pids(), Subjects()
    run = f"map-{count}-{number}"
    bytes_before, messages_before = await _written(js, subjects)
    engine_mb, cpu = memory_mb(pids["engine"]), {name: cpu_s(pid) for name, pid in pids.items()}
    began = time.monotonic()
    items = [index % 1_000 for index in range(count)]  # More digits do not fit into one message.
    await client.start(mapping(), items, id=run)
    result = await client.result(run, timeout_s=RESULT_S)
    took_s = time.monotonic() - began
    assert result == items, "every result is there, in order"
    bytes_after, messages_after = await _written(js, subjects)
    document = await js.last(subjects.runs_stream, subjects.run_document(run))
    assert document is not None
    written = bytes_after - bytes_before
    return {
        "case": "map",
        "items": count,
        "seconds": round(took_s, 3),
        "written_bytes": written,
        "written_bytes_per_item": round(written / max(1, count), 1),
        "messages": messages_after - messages_before,
        "document_bytes": len(document.data),
        "engine_mb_before": round(engine_mb, 1),
        "engine_mb_after": round(memory_mb(pids["engine"]), 1),
        "cpu_s": {name: round(cpu_s(pid) - cpu[name], 2) for name, pid in pids.items()},
        "load_average": os.getloadavg()[0],
    }


async def _run(counts: list[int], rounds: int) -> None:
    with Processes("2m") as processes:
        settings = Settings(url=processes.url)
        async with Client.connect(processes.url) as client:
            connection = await Connection.open(settings, name="bench-maps")
            try:
                js = JetStream(connection)
                await _measure(processes, client, js, 100, -1)  # The first one warms everything.
                for number in range(rounds):
                    for count in counts:
                        line = await _measure(processes, client, js, count, number)
                        sys.stdout.write(json.dumps(line) + "\n")
                        sys.stdout.flush()
            finally:
                await connection.close()


def main(
    items: Annotated[list[int] | None, typer.Option(help="Only lists of these lengths.")] = None,
    rounds: Annotated[int, typer.Option(help="How often.")] = 1,
) -> None:
    """Measure maps: one server, one engine and one worker process on this machine."""
    asyncio.run(_run(items or list(COUNTS), rounds))


if __name__ == "__main__":
    typer.run(main)
