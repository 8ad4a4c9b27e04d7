"""``python -m bench``: every case, as JSON lines, with NATS' default sync and with ``always``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from bench.cases import Bench, Line, open_bench
from bench.processes import Processes, Sync
from treadle.sdk import Client

SYNCS: dict[str, Sync] = {"default": "2m", "always": "always"}

CASES: dict[str, Callable[[Bench], Awaitable[Line]]] = {
    "loop-1x100": lambda b: b.loops("loop-1x100", "bench-checkpoint", 1, 100, saves=True),
    "loop-200x20": lambda b: b.loops("loop-200x20", "bench-checkpoint", 200, 20, saves=True),
    "loop-1": lambda b: b.loops("loop-1", "bench-checkpoint", 1, 2000, saves=True),
    "loop-1-carry": lambda b: b.loops("loop-1-carry", "bench-carry", 1, 2000, saves=False),
    "loop-200": lambda b: b.loops("loop-200", "bench-checkpoint", 200, 100, saves=True),
    "loop-200-carry": lambda b: b.loops("loop-200-carry", "bench-carry", 200, 100, saves=False),
    "chain-1000": lambda b: b.chains("chain-1000", 1000),
    "chain-3000": lambda b: b.chains("chain-3000", 3000),
    "chain-idle": lambda b: b.latency("chain-idle", 200),
    "growth": lambda b: b.growth("growth", 10_000, 1000),
    "agent-growth": lambda b: b.agent_growth("agent-growth", "bench-agent"),
    "agent-growth-compacting": lambda b: b.agent_growth(
        "agent-growth-compacting", "bench-agent-compacting"
    ),
}


async def _run(sync: str, names: list[str]) -> None:
    with Processes(SYNCS[sync]) as processes:
        async with (
            Client.connect(processes.url) as client,
            open_bench(processes, sync, client) as bench,
        ):
            for name in names:
                line = await CASES[name](bench)
                line["load_average"] = os.getloadavg()[0]
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()


def main(
    case: Annotated[list[str] | None, typer.Option(help="Only these cases.")] = None,
    sync: Annotated[
        list[str] | None, typer.Option(help="default, always; both by default.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often; fresh processes each time.")] = 1,
) -> None:
    """Measure Treadle: one server, one engine and one worker process on this machine."""
    for _ in range(rounds):
        for setting in sync or list(SYNCS):
            asyncio.run(_run(setting, case or list(CASES)))


if __name__ == "__main__":
    typer.run(main)
