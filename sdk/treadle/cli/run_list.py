"""``treadle run list``: find runs, or count them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli.options import Json, Namespace, Url

if TYPE_CHECKING:
    from treadle.sdk.client import Client
    from treadle.sdk.listing.filters import RunsWanted, Wanted

SCANNED_MANY = 10_000
"""Documents whose reading one waits for: then it is said why."""
_CONDITION = re.compile(r"([^<>=]+)(<=|>=|<|>|=)(.*)", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?\Z")
_AGO = re.compile(r"(\d+)([smhd])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def list_(
    workflow: Annotated[
        str | None, typer.Option("--workflow", metavar="NAME", help="Only runs of it.")
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="Only those that are requested, scheduled, queued, running, paused, parked, "
            "completed, failed or cancelled; "
            "repeatable.",
        ),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="KEY=VALUE",
            help="Only with this in their metadata; also <, <=, > and >=; repeatable.",
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME|AGE", help="Requested since then; 90m, 2h, 7d ago."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME|AGE", help="Requested before then.")
    ] = None,
    lane: Annotated[
        str | None, typer.Option("--lane", metavar="NAME", help="Only runs of this lane.")
    ] = None,
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

    wanted: RunsWanted = {
        "workflow": workflow,
        "status": status,
        "where": _read_where(where or []),
        "requested_after": _read_moment("--since", since),
        "requested_before": _read_moment("--until", until),
        "lane": lane,
    }
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
        await _require_workflow(client, wanted)
    if as_json:
        for view in page.runs:
            output.emit(views.summary(view))
        if page.cursor is not None:
            output.emit({"cursor": page.cursor})
        return exits.OK
    if page.runs:
        views.listing(page.runs)
    else:
        output.remark(f"no runs{_which(wanted)} {place}; start one: treadle run start WORKFLOW")
    if page.cursor is not None:
        output.remark(f"there are more: --cursor {page.cursor}")
    _remark_scanned(page.scanned)
    return exits.OK


async def _count(client: Client, wanted: RunsWanted, *, as_json: bool) -> int:
    from treadle.cli import exits, output

    counts = await client.count_runs(**wanted)
    if not counts.total:
        await _require_workflow(client, wanted)
    if as_json:
        output.emit({"total": counts.total, "by_status": counts.by_status})
        return exits.OK
    rows = [(status, f"{n:,}") for status, n in counts.by_status.items()]
    output.table(("STATUS", "RUNS"), [*rows, ("all", f"{counts.total:,}")])
    _remark_scanned(counts.scanned)
    return exits.OK


async def _require_workflow(client: Client, wanted: RunsWanted) -> None:
    """Raise ``UnknownWorkflow`` if that is why nothing was found."""
    from treadle.sdk.errors import UnknownWorkflow

    workflow = wanted.get("workflow")
    if workflow and workflow not in (known := await client.workflows()):
        raise UnknownWorkflow(workflow, list(known))


def _which(wanted: RunsWanted) -> str:
    workflow, status = wanted.get("workflow"), wanted.get("status")
    of = f" of workflow {workflow!r}" if workflow else ""
    that = f" that are {' or '.join(status)}" if status else ""
    more = " and match" if wanted.get("where") or wanted.get("lane") else ""
    return f"{of}{that}{more}"


def _remark_scanned(count: int) -> None:
    from treadle.cli import output

    if count >= SCANNED_MANY:
        output.remark(
            f"no engine answered from its index, so {count:,} documents were read; one that has "
            "just started needs some seconds for it"
        )


def _read_where(items: list[str]) -> dict[str, Wanted]:
    """Return conditions on the metadata by key."""
    found: dict[str, Wanted] = {}
    for item in items:
        match = _CONDITION.match(item)
        if match is None:
            raise _error(
                f"--where {item!r} is no condition. Write it as KEY=VALUE, or with <, <=, > or >=."
            )
        key, operator, text = match.groups()
        if key in found:
            raise _error(f"--where has {key!r} twice. Give each key once.")
        found[key] = _wanted(operator, text)
    return found


def _wanted(operator: str, text: str) -> Any:
    """Return what a value has to be: a text that could be a number may be either."""
    typed: list[str | bool | float] = [text]
    if text in ("true", "false"):
        typed.append(text == "true")
    elif _NUMBER.match(text):
        typed.append(float(text))
    return typed if operator == "=" else (operator, typed[-1])


def _read_moment(option: str, text: str | None) -> datetime | None:
    """Return the time that a text names, or that was so long ago."""
    if text is None:
        return None
    if match := _AGO.match(text):
        try:
            return datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
        except OverflowError as exc:
            raise _error(f"{option} {text!r} is before all times. Give a shorter one.") from exc
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as exc:
        raise _error(
            f"{option} {text!r} is no time. Give an age such as 90m, 2h or 7d, or a time such as "
            "2026-02-03 or 2026-02-03T10:00:00+01:00; without a zone it is the local one."
        ) from exc


def _error(text: str) -> Exception:
    from treadle.sdk.errors import UserError

    return UserError(text)
