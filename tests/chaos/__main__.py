"""``python -m tests.chaos --seeds 5``: trials one after the other, a table, and a verdict.

Each trial is one JSON line on standard error as it ends; the table comes on standard output.
The exit status is 1 if any promise was broken; then the directory with all logs is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec
from tests.chaos.plants import PLANTS
from tests.chaos.trial import Report, Trial
from tests.crash.stage import open_stage
from tests.nursery import ENGINES, Nursery

from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="how many trials")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seconds", type=float, default=16.0, help="of faults in each trial")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="a bug that has to be found")
    asked = parser.parse_args()
    if asked.plant:
        os.environ["CRASH_PLANT"] = asked.plant
    nursery = Nursery(*ENGINES)
    try:
        reports = [
            play(nursery, seed, asked.seconds, message_ids=seed % 2 == 0)
            for seed in range(asked.first, asked.first + asked.seeds)
        ]
    finally:
        nursery.close()
    print(table(reports))
    for violation in sorted({text for report in reports for text in report.violations})[:20]:
        print(violation)
    return 1 if any(report.violations for report in reports) else 0


def play(nursery: Nursery, seed: int, seconds: float, *, message_ids: bool) -> Report:
    """Play one trial on a server of its own."""
    directory = Path(tempfile.mkdtemp(prefix=f"treadle-chaos-{seed}-"))
    server = NatsServer.start(directory / "nats")
    try:
        settings = Settings(url=server.url, namespace="chaos", message_ids=message_ids)
        report = asyncio.run(_play(server, nursery, settings, directory, seed, seconds))
    finally:
        server.stop()
    print(msgspec.json.encode(report).decode(), file=sys.stderr, flush=True)
    if report.violations:
        print(f"seed {seed}: see {directory}", file=sys.stderr)
    else:
        shutil.rmtree(directory)
    return report


async def _play(
    server: NatsServer,
    nursery: Nursery,
    settings: Settings,
    directory: Path,
    seed: int,
    seconds: float,
) -> Report:
    async with open_stage(server, nursery, settings, directory) as stage:
        return await Trial(stage, seed=seed, seconds=seconds).run()


def table(reports: list[Report]) -> str:
    """Return the trials as a table in Markdown."""
    names = [
        "seed",
        "killed: engines",
        "workers",
        "server",
        "died at a window",
        "paused",
        "consumers deleted",
        "acks lost",
        "verdicts repeated",
        "runs",
        "iterations committed",
        "executions",
        "last end",
        "violations",
    ]
    lines = [f"| {' | '.join(names)} |", "|---:" * len(names) + "|"]
    lines += [f"| {' | '.join(map(str, _cells(each)))} |" for each in reports]
    return "\n".join(lines)


def _cells(report: Report) -> list[object]:
    faults = Counter(report.faults)
    return [
        report.seed,
        faults["kill engine"],
        faults["kill worker"],
        faults["kill server"],
        report.deaths - report.killed,
        faults["pause engine"] + faults["pause worker"],
        faults["delete_consumer engine"] + faults["delete_consumer worker"],
        report.lost_acks,
        report.repeated_settles,
        report.runs,
        report.committed,
        report.executions,
        f"{report.last_end_s} s",
        len(report.violations),
    ]


if __name__ == "__main__":
    sys.exit(main())
