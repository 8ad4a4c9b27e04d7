"""``treadle run timeline`` and ``treadle run diff``: what runs did, from their stored events."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli import exits, output
from treadle.cli.options import Json, Namespace, RunId, Url

if TYPE_CHECKING:
    from treadle.sdk.client import Client, Span, Timeline

BAR_CHARS = 24
MAP_BYTES_MAX = 16 * 1024 * 1024
"""Of the output of a map that is compared: of a larger one its size is."""
_MARKS = {
    **dict.fromkeys(("attempt", "map"), "█"),
    **dict.fromkeys(("pause", "scheduled"), "·"),
    **dict.fromkeys(
        ("wait", "parked", "paused", "signal", "event", "lane", "approval", "child"), "░"
    ),
    **dict.fromkeys(("choice", "respond"), "▏"),
}
_BAR = 4
"""The column of the bars."""

Step = Annotated[
    str | None, typer.Option("--step", metavar="STEP", help="Only this step of the run.")
]


def timeline(
    run: RunId,
    step: Step = None,
    all: Annotated[
        bool, typer.Option("--all", help="Every attempt of every chunk of a map too.")
    ] = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Show what a run did and when: attempts, pauses and waits, in order."""
    from treadle.cli import runs

    return runs.run(
        url, namespace, lambda client: _timeline(client, run, step, all_=all, as_json=json)
    )


def diff(
    run: RunId,
    other: Annotated[
        str | None, typer.Argument(metavar="[OTHER]", help="Id of the run to compare with.")
    ] = None,
    iterations: Annotated[
        tuple[int, int] | None,
        typer.Option("--iterations", metavar="N M", help="Compare two iterations of the run."),
    ] = None,
    step: Step = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Compare two runs, or two iterations of one: outcome, time, output, usage, failures."""
    from treadle.cli import runs
    from treadle.sdk.errors import UserError

    if (other is None) == (iterations is None):
        raise UserError(
            "a run is compared with another run, or two of its iterations with each other. Give "
            "OTHER, or --iterations N M."
        )
    return runs.run(
        url, namespace, lambda client: _diff(client, run, other, iterations, step, as_json=json)
    )


async def _timeline(
    client: Client, run: str, step: str | None, *, all_: bool, as_json: bool
) -> int:
    found = await client.timeline(run)
    found = found.of_step(step) if step else found
    found = found if all_ else found.without_chunks()
    if as_json:
        for span in found.spans:
            output.emit(span)
        return exits.OK
    now_ms = found.ended_ms or time.time_ns() // 1_000_000
    output.say(
        f"{found.run}  {found.workflow}  {found.status}", output.STYLES.get(found.status, "")
    )
    rows = [_span_row(span, found, now_ms) for span in found.spans]
    headings: tuple[str, ...] = ("AT", "STEP", "WHAT", "TOOK", "", "HOW IT ENDED")
    if not output.has_bars():
        headings = (*headings[:_BAR], *headings[_BAR + 1 :])
        rows = [(*row[:_BAR], *row[_BAR + 1 :]) for row in rows]
    if rows:
        output.table(headings, rows)
    return exits.OK


async def _diff(
    client: Client,
    run: str,
    other: str | None,
    iterations: tuple[int, int] | None,
    step: str | None,
    *,
    as_json: bool,
) -> int:
    from treadle.cli import differences
    from treadle.sdk.client.timeline.diffing import diff_iterations, diff_runs

    left = await client.timeline(run)
    if iterations is not None:
        found = diff_iterations(left, *iterations, step or "")
    else:
        right = await client.timeline(other or "")
        if step:
            left, right = left.of_step(step), right.of_step(step)
        left, right = await _with_maps(client, left), await _with_maps(client, right)
        found = diff_runs(left, right)
    if as_json:
        output.emit(found)
    else:
        differences.show(found)
    return exits.OK


async def _with_maps(client: Client, run: Timeline) -> Timeline:
    from treadle.sdk.client.timeline.diffing import with_outputs

    if not any(span.kind == "map" and span.outcome == "completed" for span in run.spans):
        return run
    return with_outputs(run, await client.outputs(run.run, bytes_max=MAP_BYTES_MAX))


# ---------------------------------------------------------------- rows


def _span_row(span: Span, found: Timeline, now_ms: int) -> tuple[str, ...]:
    from treadle.sdk.times import age

    what: str = span.kind
    if span.kind == "attempt":
        what = f"iteration {span.iteration}" if span.step in found.loops else "task"
        what = f"{what}, attempt {span.attempt}" if span.attempt > 1 else what
    told = [span.outcome or ("" if span.end_ms else "lasts")]
    told += [span.detail, str(span.failure) if span.failure else ""]
    return (
        f"+{age(span.begin_ms - found.requested_ms)}",
        span.step,
        what,
        age(span.took_ms(now_ms)),
        _bar(span, found.requested_ms, now_ms),
        "  ".join(filter(None, told)),
    )


def _bar(span: Span, begin_ms: int, end_ms: int) -> str:
    total_ms = max(1, end_ms - begin_ms)
    first = min(BAR_CHARS - 1, max(0, (span.begin_ms - begin_ms) * BAR_CHARS // total_ms))
    behind = -(-((span.end_ms or end_ms) - begin_ms) * BAR_CHARS // total_ms)
    length = max(1, min(BAR_CHARS, behind) - first)
    return " " * first + _MARKS[span.kind] * length + " " * (BAR_CHARS - first - length)
