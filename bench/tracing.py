"""What tracing costs: ``python -m bench.tracing``, the modes in turn in one run, as JSON lines.

    off         runs are started without a trace
    api         runs have a trace, and no engine exports it
    sdk         an engine exports it to a collector on this machine that keeps nothing
    refused     an engine exports it to a port where nobody listens

The last lines are the ratios to ``off``: medians over the rounds of the same minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from bench.cases import Line, open_bench
from bench.processes import Processes
from treadle.sdk import Client

MODES = ("off", "api", "sdk", "refused")
CASES = {
    "loop-1": ("bench-checkpoint", 1, 1500, True),
    "loop-1-carry": ("bench-carry", 1, 1500, False),
    "loop-200": ("bench-checkpoint", 200, 30, True),
}
_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_DISABLED = "OTEL_SDK_DISABLED"


@contextmanager
def tracing(mode: str) -> Iterator[None]:
    """Set the environment of a mode; with ``sdk`` a collector runs meanwhile."""
    for name in (_ENDPOINT, _DISABLED):
        os.environ.pop(name, None)
    match mode:
        case "off":
            os.environ[_DISABLED] = "true"
            yield
        case "sdk":
            with subprocess.Popen(
                [sys.executable, "-m", "bench.sink"],
                cwd=Path(__file__).parents[1],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            ) as sink:
                assert sink.stdout is not None
                os.environ[_ENDPOINT] = sink.stdout.readline().strip()
                yield
                out, _ = sink.communicate()
                requests, size_bytes = map(int, out.split())
                sys.stdout.write(json.dumps({"requests": requests, "bytes": size_bytes}) + "\n")
        case "refused":
            os.environ[_ENDPOINT] = "http://127.0.0.1:9/v1/traces"
            yield
        case _:
            yield


async def _round(mode: str, number: int) -> list[Line]:
    lines: list[Line] = []
    with Processes("2m") as processes:
        async with (
            Client.connect(processes.url) as client,
            open_bench(processes, mode, client) as bench,
        ):
            await bench.loops("warm-up", "bench-carry", 4, 50, saves=False)
            for case, (workflow, loops, iterations, saves) in CASES.items():
                line = await bench.loops(case, workflow, loops, iterations, saves=saves)
                lines.append({"tracing": mode, "round": number, **line})
    return lines


def main(
    rounds: Annotated[int, typer.Option(help="How often each mode; in turn.")] = 3,
    mode: Annotated[list[str] | None, typer.Option(help="Only these modes.")] = None,
) -> None:
    """Measure the same loops with each mode of tracing."""
    rates: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for each in mode or MODES:
            with tracing(each):
                for line in asyncio.run(_round(each, number)):
                    rates.setdefault((line["case"], each), []).append(line["iterations_per_s"])
                    sys.stdout.write(json.dumps(line) + "\n")
                    sys.stdout.flush()
    for (case, each), found in rates.items():
        base = statistics.median(rates.get((case, "off"), found))
        ratio = round(statistics.median(found) / base, 3)
        sys.stdout.write(json.dumps({"case": case, "tracing": each, "ratio_to_off": ratio}) + "\n")


if __name__ == "__main__":
    typer.run(main)
