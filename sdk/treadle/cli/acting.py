"""Cancel, pause, resume, retry, fork: the arguments of these commands, for one run or for all."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli import options
from treadle.cli.choosing import (
    InLane,
    OfParent,
    OfWorkflow,
    Since,
    Until,
    Where,
    WithStatus,
    read_wanted,
)
from treadle.cli.options import Json, Namespace, RunId, Url

OneRun = Annotated[str | None, typer.Argument(metavar="RUN", help="Id of the run, or --all.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Kept with the run.")]
Now = Annotated[bool, typer.Option("--now", help="Undo nothing, or nothing more.")]
All = Annotated[bool, typer.Option("--all", help="Not one run, but all that match.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Of --all: only say which runs they are.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Of --all: do not ask.")]
AtOnce = Annotated[
    int, typer.Option("--at-once", metavar="N", min=1, max=256, help="Of --all: so many together.")
]
Latest = Annotated[bool, typer.Option("--latest", help="On the newest version.")]
NewId = Annotated[str | None, typer.Option("--id", metavar="RUN", help="Id of the new run.")]
_VALUE = "JSON|@FILE|-"
_AT_ONCE = 16


def add_to(app: typer.Typer) -> None:
    """Add the commands to ``treadle run``."""
    for command in (cancel, pause, resume, retry, fork):
        app.command()(command)


def cancel(
    run: OneRun = None,
    reason: Reason = "",
    now: Now = False,
    all_: All = False,
    workflow: OfWorkflow = None,
    status: WithStatus = None,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    lane: InLane = None,
    parent: OfParent = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    at_once: AtOnce = _AT_ONCE,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Cancel a run, or all that match. What they have done is undone first, without --now."""
    from treadle.cli import bulk, runs

    wanted = read_wanted(workflow, status, where, since, until, lane, parent)
    many = bulk.Many("cancel", wanted, dry_run=dry_run, yes=yes, at_once=at_once)
    acts = bulk.Acts(
        lambda client, one: runs.cancel(client, one, reason, now=now, as_json=json),
        lambda client, over: client.bulk.cancel(reason=reason, now=now, **over),
    )
    return bulk.one_or_all(run, many, acts, all_=all_, url=url, namespace=namespace, as_json=json)


def pause(
    run: OneRun = None,
    reason: Reason = "",
    all_: All = False,
    workflow: OfWorkflow = None,
    status: WithStatus = None,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    lane: InLane = None,
    parent: OfParent = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    at_once: AtOnce = _AT_ONCE,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Start nothing more of a run, or of all that match, until it is resumed."""
    from treadle.cli import bulk, runs

    wanted = read_wanted(workflow, status, where, since, until, lane, parent)
    many = bulk.Many("pause", wanted, dry_run=dry_run, yes=yes, at_once=at_once)
    acts = bulk.Acts(
        lambda client, one: runs.pause(client, one, reason, as_json=json),
        lambda client, over: client.bulk.pause(reason=reason, **over),
    )
    return bulk.one_or_all(run, many, acts, all_=all_, url=url, namespace=namespace, as_json=json)


def resume(
    run: OneRun = None,
    step: Annotated[
        str | None, typer.Option("--step", metavar="STEP", help="Only this step.")
    ] = None,
    max_iterations: Annotated[
        str | None,
        typer.Option("--max-iterations", metavar="N|+N", help="Raise the bound to N, or by N."),
    ] = None,
    max_duration: Annotated[
        str | None,
        typer.Option("--max-duration", metavar="S|+S", help="Raise it to S seconds, or by S."),
    ] = None,
    add_tool_calls: Annotated[
        int, typer.Option("--add-tool-calls", metavar="N", min=0, help="So many more tool calls.")
    ] = 0,
    add_tokens: Annotated[
        int,
        typer.Option(
            "--add-tokens", metavar="N", min=0, help="So many more, in each bound on them."
        ),
    ] = 0,
    add_cost: Annotated[
        float, typer.Option("--add-cost", metavar="USD", min=0, help="So many dollars more.")
    ] = 0,
    all_: All = False,
    workflow: OfWorkflow = None,
    status: WithStatus = None,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    lane: InLane = None,
    parent: OfParent = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    at_once: AtOnce = _AT_ONCE,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """End the pause of a run, or of all that match, and move parked steps on."""
    from treadle.cli import bulk, runs

    iterations = options.read_count("--max-iterations", max_iterations)
    duration = options.read_duration("--max-duration", max_duration)
    raised = runs.raised(iterations, duration, runs.Added(add_tool_calls, add_tokens, add_cost))
    wanted = read_wanted(workflow, status, where, since, until, lane, parent)
    many = bulk.Many("resume", wanted, dry_run=dry_run, yes=yes, at_once=at_once)
    acts = bulk.Acts(
        lambda client, one: runs.resume(client, one, step, raised, as_json=json),
        lambda client, over: client.bulk.resume(raised=raised, **over),
        "--step",
        step,
    )
    return bulk.one_or_all(run, many, acts, all_=all_, url=url, namespace=namespace, as_json=json)


def retry(
    run: OneRun = None,
    id: NewId = None,
    latest: Latest = False,
    all_: All = False,
    workflow: OfWorkflow = None,
    status: WithStatus = None,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    lane: InLane = None,
    parent: OfParent = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    at_once: AtOnce = _AT_ONCE,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Make a new run that goes on where one has failed, or was cancelled; or one of each."""
    from treadle.cli import bulk, runs

    wanted = read_wanted(workflow, status, where, since, until, lane, parent)
    many = bulk.Many("retry", wanted, dry_run=dry_run, yes=yes, at_once=at_once)
    acts = bulk.Acts(
        lambda client, one: runs.retry(client, one, id, latest=latest, as_json=json),
        lambda client, over: client.bulk.retry(version="latest" if latest else "same", **over),
        "--id",
        id,
    )
    return bulk.one_or_all(run, many, acts, all_=all_, url=url, namespace=namespace, as_json=json)


def fork(
    run: RunId,
    from_step: Annotated[
        str | None, typer.Option("--from-step", metavar="STEP", help="Where it starts again.")
    ] = None,
    iteration: Annotated[
        int | None, typer.Option("--iteration", metavar="N", min=0, help="Of that loop.")
    ] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", metavar=_VALUE, help="Another input of the step, or of the run."),
    ] = None,
    id: NewId = None,
    latest: Latest = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Make a new run that starts again from a step of another one."""
    from treadle.cli import runs

    place = runs.ForkFrom(
        from_step, iteration, input is not None, options.read_json("--input", input)
    )
    return runs.run(
        url,
        namespace,
        lambda client: runs.fork(client, run, place, id, latest=latest, as_json=json),
    )
