"""``treadle run logs``: what a run's handlers have logged, for people and programs."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli import exits, output
from treadle.cli.options import Json, Namespace, RunId, Url

if TYPE_CHECKING:
    from treadle.sdk.client import Client, LogLine

_STYLES = {"debug": "dim", "warning": "yellow", "error": "red", "critical": "bold red"}

_NONE = (
    "no such line is kept. Of a handler that is what ctx.logger says, and of other loggers what is "
    "at least as grave as its Worker's capture_logs, which is warning by default."
)


class Level(StrEnum):
    """Levels of log lines."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"
    critical = "critical"


def logs(
    run: RunId,
    step: Annotated[
        str | None, typer.Option("--step", metavar="STEP", help="Only what this step logged.")
    ] = None,
    iteration: Annotated[
        int | None, typer.Option("--iteration", metavar="N", min=0, help="Only this iteration.")
    ] = None,
    level: Annotated[Level, typer.Option("--level", help="From this level on.")] = Level.debug,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Until the run has ended.")
    ] = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Show what the handlers of a run have logged."""
    from treadle.cli import runs

    async def show(client: Client) -> int:
        from treadle.cli import views

        loops = views.loops_of(await client.get(run))
        is_any = False
        found = client.logs(run, step=step, iteration=iteration, level=level, follow=follow)
        async for line in found:
            is_any = True
            if json:
                output.emit(line)
            else:
                _say(line, loops)
        if not is_any and not json:
            output.remark(_NONE)
        return exits.code_of_status((await client.get(run)).status) if follow else exits.OK

    return runs.run(url, namespace, show)


def _say(line: LogLine, loops: frozenset[str]) -> None:
    at = datetime.fromtimestamp(line.time_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    iteration = f", iteration {line.iteration}" if line.step in loops else ""
    attempt = f", attempt {line.attempt}" if line.attempt > 1 else ""
    fields = "".join(f" {name}={value}" for name, value in line.fields.items())
    text = f"{at} {line.level.upper():<8} [{line.step}{iteration}{attempt}] {line.text}{fields}"
    output.say(output.one_line(text), _STYLES.get(line.level, ""))
    if line.traceback:
        output.say(line.traceback, "dim")
