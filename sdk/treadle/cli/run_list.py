"""``treadle run list``: find runs, or count them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

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
from treadle.cli.options import Json, Namespace, Url

if TYPE_CHECKING:
    from treadle.sdk.client import Client
    from treadle.sdk.listing.filters import RunsWanted

SCANNED_MANY = 10_000
"""Documents whose reading one waits for: then it is said why."""


def list_(
    workflow: OfWorkflow = None,
    status: WithStatus = None,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    lane: InLane = None,
    parent: OfParent = None,
    count: Annotated[bool, typer.Option("--count", help="How many there are, by status.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    cursor: Annotated[
        str | None,
        typer.Option("--cursor", metavar="CURSOR", help="Go on where another list has ended."),
    ] = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """List runs, newest first."""
    from treadle.cli import runs
    from treadle.sdk.listing.filters import filter_of

    wanted = read_wanted(workflow, status, where, since, until, lane, parent)
    filter_of(wanted)  # A mistake is told without a server.
    if count:
        return runs.run(url, namespace, lambda client: _count(client, wanted, as_json=json))
    place = runs.place_of(url, namespace)
    return runs.run(
        url, namespace, lambda client: _list(client, wanted, limit, cursor, place, as_json=json)
    )


async def _list(
    client: Client,
    wanted: RunsWanted,
    limit: int,
    cursor: str | None,
    place: str,
    *,
    as_json: bool,
) -> int:
    from treadle.cli import exits, output, views

    page = await client.list_runs(limit=limit, cursor=cursor, **wanted)
    if not page.runs:
        await require_workflow(client, wanted)
    if as_json:
        for view in page.runs:
            output.emit(views.summary(view))
        if page.cursor is not None:
            output.emit({"cursor": page.cursor})
        return exits.OK
    if page.runs:
        views.listing(page.runs)
    else:
        start = "" if any(wanted.values()) else "; start one: treadle run start WORKFLOW"
        output.remark(f"no runs{_which(wanted)} {place}{start}")
    if page.cursor is not None:
        output.remark(f"there are more: --cursor {page.cursor}")
    _remark_scanned(page.scanned)
    return exits.OK


async def _count(client: Client, wanted: RunsWanted, *, as_json: bool) -> int:
    from treadle.cli import exits, output

    counts = await client.count_runs(**wanted)
    if not counts.total:
        await require_workflow(client, wanted)
    if as_json:
        output.emit({"total": counts.total, "by_status": counts.by_status})
        return exits.OK
    rows = [(status, f"{n:,}") for status, n in counts.by_status.items()]
    output.table(("STATUS", "RUNS"), [*rows, ("all", f"{counts.total:,}")])
    _remark_scanned(counts.scanned)
    return exits.OK


async def require_workflow(client: Client, wanted: RunsWanted) -> None:
    """Raise ``UnknownWorkflow`` if that is why nothing was found."""
    from treadle.sdk.errors import UnknownWorkflow

    workflow = wanted.get("workflow")
    if workflow and workflow not in (known := await client.workflows()):
        raise UnknownWorkflow(workflow, list(known))


def _which(wanted: RunsWanted) -> str:
    workflow, status = wanted.get("workflow"), wanted.get("status")
    of = f" of workflow {workflow!r}" if workflow else ""
    that = f" that are {' or '.join(status)}" if status else ""
    more = " and match" if any(wanted.get(each) for each in ("where", "lane", "parent")) else ""
    return f"{of}{that}{more}"


def _remark_scanned(count: int) -> None:
    from treadle.cli import output

    if count >= SCANNED_MANY:
        output.remark(
            f"no engine answered from its index, so {count:,} documents were read; one that has "
            "just started needs some seconds for it"
        )
