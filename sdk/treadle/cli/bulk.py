"""What ``--all`` does: count, ask, act, and say what became of each run."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from treadle.cli import exits, output, runs
from treadle.cli.run_list import require_workflow
from treadle.sdk.client import Client
from treadle.sdk.client.bulk import Action, BulkOutcome, BulkReport, Over, selected
from treadle.sdk.errors import UserError
from treadle.sdk.listing.filters import RunsWanted, filter_of


@dataclass(frozen=True)
class Many:
    """What is asked of all runs that match."""

    action: Action
    wanted: RunsWanted
    dry_run: bool
    yes: bool
    at_once: int


def one_run(run: str | None, wanted: RunsWanted, *, all_: bool, has_more: bool) -> str | None:
    """Return the run that is meant, None if it is all that match; refuse what may be either."""
    if all_:
        if run is not None:
            raise UserError(
                f"run {run!r} is named beside --all, which means all that match. Leave out one."
            )
        return None
    if run is None:
        raise UserError(
            "no run is named. Name one, or give --all for all that match: --workflow, --status, "
            "--where, --since, --until, --lane."
        )
    if any(wanted.values()) or has_more:
        raise UserError(
            f"run {run!r} is named beside options that are for many runs. Leave them out, or give "
            "--all instead of the run."
        )
    return run


@dataclass(frozen=True)
class Acts:
    """What a command does to one run, and to all that match."""

    one: Callable[[Client, str], Awaitable[int]]
    every: Callable[[Client, Over], Awaitable[BulkReport]]
    option: str = ""
    """An option that is of one run alone, with its value."""
    value: str | None = None


def one_or_all(
    run: str | None,
    many: Many,
    acts: Acts,
    *,
    all_: bool,
    url: str | None,
    namespace: str | None,
    as_json: bool,
) -> int:
    """Act on the run that is named, or on all that match; return the exit code."""
    has_more = many.dry_run or many.yes
    one = one_run(run, many.wanted, all_=all_, has_more=has_more)
    if one is not None:
        return runs.run(url, namespace, lambda client: acts.one(client, one))
    if acts.value is not None:
        raise UserError(f"{acts.option} {acts.value!r} is of one run. Leave it out, or name a run.")
    return _every(url, namespace, many, acts.every, as_json=as_json)


def _every(
    url: str | None,
    namespace: str | None,
    many: Many,
    act: Callable[[Client, Over], Awaitable[BulkReport]],
    *,
    as_json: bool,
) -> int:
    wanted = selected(many.action, many.wanted)
    filter_of(wanted)  # A mistake is told without a server.
    place = runs.place_of(url, namespace)

    async def over(client: Client) -> int:
        if not many.dry_run and not many.yes:
            counts = await client.count_runs(**wanted)
            if counts.total and not _confirmed(many.action, counts.total, counts.by_status, place):
                output.remark("nothing was done")
                return exits.OK
        over: Over = {
            **wanted,
            "at_once": many.at_once,
            "dry_run": many.dry_run,
            "each": lambda outcome: _tell(outcome, as_json=as_json),
        }
        report = await act(client, over)
        if not report.matched:
            await require_workflow(client, wanted)
        if as_json:
            output.emit({"matched": report.matched, "counts": report.counts})
        else:
            output.remark(_summary(many, report, place))
        return exits.OK if report.is_complete else exits.PARTIAL

    return runs.run(url, namespace, over)


def _confirmed(action: Action, count: int, by_status: dict[str, int], place: str) -> bool:
    """Ask a person; raise ``UserError`` where there is none."""
    which = ", ".join(f"{n:,} {status}" for status, n in by_status.items())
    runs = "1 run" if count == 1 else f"{count:,} runs"
    question = f"{action} {runs} ({which}) {place}"
    if not sys.stdin.isatty():
        raise UserError(
            f"{question}: there is no terminal to ask at. See which they are with --dry-run, and "
            "give --yes."
        )
    sys.stderr.write(f"{output.visible(question)}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _tell(outcome: BulkOutcome, *, as_json: bool) -> None:
    if as_json:
        output.emit(outcome)
    elif outcome.error:
        output.remark(f"! {output.one_line(outcome.error)}")
    elif outcome.result != "covered":
        output.say(f"{outcome.run}  {outcome.made}" if outcome.made else outcome.run)


def _summary(many: Many, report: BulkReport, place: str) -> str:
    if not report.matched:
        return f"no runs match {place}"
    if many.dry_run:
        runs = "1 run matches" if report.matched == 1 else f"{report.matched:,} runs match"
        return f"{runs} {place}; nothing was done: leave out --dry-run to {many.action}"
    parts = ", ".join(f"{n:,} {result}" for result, n in report.counts.items())
    return f"{many.action} {place}: {parts}"
