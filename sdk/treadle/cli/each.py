"""``treadle run start --each``: a run for each line of a file, or of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from treadle.cli import exits, output, runs
from treadle.sdk import conditions
from treadle.sdk.client import Client, Start, StartOutcome
from treadle.sdk.errors import UserError, clause
from treadle.sdk.versions import checked_policy


@dataclass(frozen=True)
class Each:
    """Where the inputs are, and what names their runs."""

    path: str
    """``-`` is standard input."""
    id_by: str
    """An expression over ``input`` whose value is the run's id; empty is none."""
    at_once: int


def start(
    url: str | None, namespace: str | None, request: runs.Start, each: Each, *, as_json: bool
) -> int:
    """Start a run for each line and return the exit code."""
    _check(request, each)
    with _opened(each.path) as lines:
        return runs.run(
            url, namespace, lambda client: _start(client, request, each, lines, as_json=as_json)
        )


async def _start(
    client: Client, request: runs.Start, each: Each, lines: IO[bytes], *, as_json: bool
) -> int:
    def tell(outcome: StartOutcome) -> None:
        if as_json:
            output.emit(outcome)
        elif outcome.error:
            output.remark(f"! start {outcome.number}: {output.one_line(outcome.error)}")
        elif outcome.result == "started":
            output.say(outcome.run)

    report = await client.start_many(
        request.workflow,
        _starts(lines, each.id_by),
        id=request.id or "",
        metadata=request.metadata,
        lane=request.lane,
        priority=request.priority,
        start_at=request.start_at,
        start_after=request.start_after,
        version_policy=checked_policy(request.version_policy),
        at_once=each.at_once,
        each=tell,
    )
    if as_json:
        output.emit({"counts": report.counts})
    else:
        said = {"there": "were there before"}
        parts = [f"{n:,} {said.get(result, result)}" for result, n in report.counts.items()]
        output.remark(", ".join(parts) or f"{each.path} has no lines, so nothing was started")
    return exits.OK if report.is_complete else exits.PARTIAL


def _check(request: runs.Start, each: Each) -> None:
    """Refuse what is of one run alone."""
    alone = {
        "--input": request.input is not None,
        "--watch": request.watch,
        "--wait": request.wait,
        "--timeout": request.timeout_s is not None,
        "--singleton": request.singleton is not None,
    }
    for option, is_given in alone.items():
        if is_given:
            raise UserError(f"{option} is of one run, and --each starts many. Leave it out.")
    if each.id_by and request.id is not None:
        raise UserError("--id and --id-by both name the runs of --each. Leave out one.")
    if each.id_by:
        for problem in conditions.problems_of(each.id_by, (), ("input",)):
            raise UserError(f"--id-by {each.id_by!r}: {problem}")


def _opened(path: str) -> AbstractContextManager[IO[bytes]]:
    if path == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return Path(path).open("rb")
    except OSError as exc:
        raise UserError(
            f"--each: {path} cannot be read: {exc.strerror or exc}. Name an existing file, or - "
            "for standard input."
        ) from exc


def _starts(lines: IO[bytes], id_by: str) -> Iterator[Start | UserError]:
    """Yield a start for each line that is not empty, or why it cannot be read."""
    for line in lines:
        if line.strip():
            yield _start_of(line, id_by)


def _start_of(line: bytes, id_by: str) -> Start | UserError:
    try:
        value: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        return UserError(f"the line is not JSON: {clause(exc)}. Write one value a line.")
    if not id_by:
        return Start(value)
    try:
        return Start(value, id=conditions.key_of(id_by, value, {}))
    except conditions.ConditionError as exc:
        return UserError(str(exc))
