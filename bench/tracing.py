"""What tracing costs: ``python -m bench.tracing``, every mode in turn in one run, as JSON lines.

    off         runs are started without a trace
    api         runs have a trace, and no engine exports it
    sdk         an engine exports it to a collector on this machine that keeps nothing
    refused     an engine exports it to a port where nobody listens
    before      runs without a trace, on the engine and worker of another checkout (--before)

All processes of all modes live throughout, and the modes alternate in short batches in an order
that is drawn anew each round, so that a machine that is slower for a while is so for all of them.
The last lines are the ratios to ``off`` of the same round: the median over the rounds, and the
quartiles. ``exported_after_s`` is how long after a batch its last span was with the collector.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from bench.cases import Bench, Line, open_bench
from bench.processes import Processes
from treadle.sdk import Client
from treadle.sdk.tracing.calling import TraceMode

MODES = ("off", "api", "sdk", "refused", "before")
CASES = {
    "loop-1": ("bench-checkpoint", 1, 400),
    "loop-1-carry": ("bench-carry", 1, 400),
    "loop-200": ("bench-checkpoint", 200, 8),
}
_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PATH = "PYTHONPATH"
_NOBODY = "http://127.0.0.1:9/v1/traces"
_EXPORTED_S_MAX = 60.0


class Place(NamedTuple):
    """Where the batches of a mode run."""

    bench: Bench
    trace: TraceMode
    exports: bool


@contextmanager
def collector() -> Iterator[str]:
    """Run a collector that keeps nothing; give its address."""
    command = [sys.executable, "-m", "bench.sink"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=Path(__file__).parents[1], stdin=pipe, stdout=pipe, text=True
    ) as sink:
        assert sink.stdout is not None
        yield sink.stdout.readline().strip()
        out, _ = sink.communicate()
        requests, size_bytes = map(int, out.split())
        sys.stdout.write(json.dumps({"requests": requests, "bytes": size_bytes}) + "\n")


@asynccontextmanager
async def processes(endpoint: str, checkout: Path | None = None) -> AsyncGenerator[Bench]:
    """Run a server, an engine and a worker; the engine exports to that address, or nowhere."""
    for name in (_ENDPOINT, _PATH):
        os.environ.pop(name, None)
    if endpoint:
        os.environ[_ENDPOINT] = endpoint
    if checkout is not None:
        os.environ[_PATH] = ":".join(str(checkout / part) for part in ("sdk", "engine", "worker"))
    with Processes("2m") as children:
        async with (
            Client.connect(children.url) as client,
            open_bench(children, "2m", client) as bench,
        ):
            yield bench


@asynccontextmanager
async def places(modes: list[str], before: Path | None) -> AsyncGenerator[dict[str, Place]]:
    """Run what the modes need."""
    async with contextlib.AsyncExitStack() as stack:
        found: dict[str, Place] = {}
        if {"off", "api"} & set(modes):
            plain = await stack.enter_async_context(processes(""))
            found |= {"off": Place(plain, "off", False), "api": Place(plain, "link", False)}
        if "sdk" in modes:
            endpoint = stack.enter_context(collector())
            sdk = await stack.enter_async_context(processes(endpoint))
            found["sdk"] = Place(sdk, "link", True)
        if "refused" in modes:
            refused = await stack.enter_async_context(processes(_NOBODY))
            found["refused"] = Place(refused, "link", False)
        if "before" in modes:
            assert before is not None
            old = await stack.enter_async_context(processes("", before))
            found["before"] = Place(old, "off", False)
        yield {mode: found[mode] for mode in modes}


async def batch(place: Place, case: str) -> Line:
    """Run one batch, and wait until what it has to export is exported."""
    workflow, loops, iterations = CASES[case]
    line = await place.bench.batch(workflow, loops, iterations, trace=place.trace)
    if place.exports:
        began_s = time.perf_counter()
        await place.bench.until_exported(_EXPORTED_S_MAX)
        line["exported_after_s"] = round(time.perf_counter() - began_s, 2)
    return line


async def measure(
    modes: list[str], rounds: int, seed: int, before: Path | None
) -> dict[tuple[str, str], list[float]]:
    """Return the rates by case and mode, in the order of the rounds."""
    rates: dict[tuple[str, str], list[float]] = {}
    order = random.Random(seed)
    async with places(modes, before) as found:
        for number in range(rounds + 1):  # The first is for warming up.
            for case in CASES:
                for mode in order.sample(modes, len(modes)):
                    line = await batch(found[mode], case)
                    if number:
                        rates.setdefault((case, mode), []).append(line["iterations_per_s"])
                        told = {"case": case, "tracing": mode, "round": number, **line}
                        sys.stdout.write(json.dumps(told) + "\n")
                        sys.stdout.flush()
    return rates


def main(
    rounds: Annotated[int, typer.Option(help="How often each mode; in turn.")] = 25,
    mode: Annotated[list[str] | None, typer.Option(help="Only these modes, and off.")] = None,
    seed: Annotated[int, typer.Option(help="Of the order of the modes.")] = 1,
    before: Annotated[
        Path | None, typer.Option(help="A checkout without tracing, as the mode 'before'.")
    ] = None,
) -> None:
    """Measure the same loops with each mode of tracing."""
    modes = [each for each in MODES if mode is None or each in ("off", *mode)]
    if before is None and "before" in modes:
        modes.remove("before")
    rates = asyncio.run(measure(modes, rounds, seed, before))
    for (case, each), found in rates.items():
        ratios = [rate / off for rate, off in zip(found, rates[case, "off"], strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        line = {
            "case": case,
            "tracing": each,
            "ratio_to_off": round(median, 3),
            "quartiles": [round(low, 3), round(high, 3)],
            "load_average": os.getloadavg()[0],
        }
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    typer.run(main)
