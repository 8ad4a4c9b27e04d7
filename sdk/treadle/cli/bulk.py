"""What ``--all`` does: count, ask, act, and say what became of each run."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from treadle.cli import exits, output, runs
from treadle.cli.run_list import require_workflow
from treadle.sdk.client import Client
from treadle.sdk.client.bulk import LEFT, Action, BulkOutcome, BulkReport, Over, selected
from treadle.sdk.errors import UserError
from treadle.sdk.listing.filters import RunsWanted, filter_of

NAMED_MAX = 3
"""Parents that a warning names."""


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
        warned: list[BulkOutcome] = []

        def tell(outcome: BulkOutcome) -> None:
            if _is_warned_of(outcome):
                warned.append(outcome)
            _tell(outcome, dry_run=many.dry_run, as_json=as_json)

        over: Over = {**wanted, "at_once": many.at_once, "dry_run": many.dry_run, "each": tell}
        dry_run = many.dry_run
        if not many.dry_run and not many.yes:
            asked = await _ask(client, many, over, act, place)
            if asked == "no":
                output.remark("nothing was done")
                return exits.OK
            dry_run = asked == "nothing"
        report = await act(client, {**over, "dry_run": dry_run})
        if not report.matched:
            await require_workflow(client, wanted)
        if as_json:
            output.emit({"matched": report.matched, "counts": report.counts})
        else:
            output.remark(_summary(many.action, report, place, dry_run=dry_run))
        if many.dry_run or many.yes:
            _warn(many.action, warned)
        return exits.OK if report.is_complete else exits.PARTIAL

    return runs.run(url, namespace, over)


async def _ask(
    client: Client,
    many: Many,
    over: Over,
    act: Callable[[Client, Over], Awaitable[BulkReport]],
    place: str,
) -> Literal["yes", "no", "nothing"]:
    """Return whether a person wants it; ``nothing`` if there is nothing to ask about."""
    counts = await client.count_runs(**selected(many.action, many.wanted))
    if not counts.total:
        return "nothing"
    figures: dict[str, int] = {}
    if many.action in LEFT:
        warned: list[BulkOutcome] = []

        def look(outcome: BulkOutcome) -> None:
            if _is_warned_of(outcome):
                warned.append(outcome)

        report = await act(client, {**over, "dry_run": True, "each": look})
        if not report.counts.get("would"):
            return "nothing"
        figures = report.counts if len(report.counts) > 1 else {}
        _warn(many.action, warned)
    is_wanted = _confirmed(many.action, counts.total, counts.by_status, figures, place)
    return "yes" if is_wanted else "no"


def _confirmed(
    action: Action, count: int, by_status: dict[str, int], figures: dict[str, int], place: str
) -> bool:
    """Ask a person; raise ``UserError`` where there is none."""
    which = ", ".join(f"{n:,} {status}" for status, n in by_status.items())
    runs = "1 run" if count == 1 else f"{count:,} runs"
    question = f"{action} {runs} ({which}) {place}"
    if figures:
        question = f"{action} {figures['would']:,} of {runs} ({which}) {place}; {_left(figures)}"
    if not sys.stdin.isatty():
        raise UserError(
            f"{question}: there is no terminal to ask at. See which they are with --dry-run, and "
            "give --yes."
        )
    sys.stderr.write(f"{output.visible(question)}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _left(figures: dict[str, int]) -> str:
    """Return how many are not acted on themselves, and why."""
    return ", ".join(f"{n:,} {result}" for result, n in figures.items() if result != "would")


def _is_alone(outcome: BulkOutcome) -> bool:
    """True for a run that is acted on, though a run above it might do the same again."""
    return bool(outcome.parent) and outcome.result in ("would", "done")


def _is_warned_of(outcome: BulkOutcome) -> bool:
    return _is_alone(outcome) or bool(outcome.repeated)


def _warn(action: Action, found: Sequence[BulkOutcome]) -> None:
    again = sorted(outcome.run for outcome in found if outcome.repeated)
    if again:
        some = ", ".join(again[:NAMED_MAX]) + (" and others" if len(again) > NAMED_MAX else "")
        output.remark(
            f"! {len(again):,} of them were compensated ({some}): a {action} executes again what "
            "was undone, and what depends on that"
        )
    alone = [outcome for outcome in found if _is_alone(outcome)]
    if not alone:
        return
    parents = sorted({outcome.parent for outcome in alone})
    some = ", ".join(parents[:NAMED_MAX]) + (" and others" if len(parents) > NAMED_MAX else "")
    output.remark(
        f"! {len(alone):,} of them were started by runs that have failed too and do not match "
        f"({some}): a {action} of those does this work once more"
    )


def _tell(outcome: BulkOutcome, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        output.emit(outcome)
    elif outcome.error:
        output.remark(f"! {output.one_line(outcome.error)}")
    elif outcome.result != "covered" and not (dry_run and outcome.result == "unchanged"):
        output.say(f"{outcome.run}  {outcome.made}" if outcome.made else outcome.run)


def _summary(action: Action, report: BulkReport, place: str, *, dry_run: bool) -> str:
    if not report.matched:
        return f"no runs match {place}"
    parts = ", ".join(f"{n:,} {result}" for result, n in report.counts.items())
    would = report.counts.get("would", 0)
    if dry_run and not would:
        return f"nothing to {action} {place}: {parts}"
    if dry_run:
        runs = "1 run matches" if report.matched == 1 else f"{report.matched:,} runs match"
        left = _left(report.counts)
        parts = f": {would:,} to {action}, {left}" if left else ""
        return f"{runs} {place}{parts}; nothing was done: leave out --dry-run to {action}"
    return f"{action} {place}: {parts}"
