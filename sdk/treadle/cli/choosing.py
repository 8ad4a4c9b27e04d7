"""Options that say which runs, and how their texts are read."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from treadle.sdk.listing.filters import RunsWanted, Wanted

OfWorkflow = Annotated[
    str | None, typer.Option("--workflow", metavar="NAME", help="Only runs of it.")
]
WithStatus = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help="Only those that are requested, scheduled, queued, running, paused, parked, "
        "completed, failed or cancelled; "
        "repeatable.",
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        metavar="KEY=VALUE",
        help="Only with this in their metadata; also <, <=, > and >=; repeatable.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME|AGE", help="Requested since then; 90m, 2h, 7d ago."),
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME|AGE", help="Requested before then.")
]
InLane = Annotated[
    str | None, typer.Option("--lane", metavar="NAME", help="Only runs of this lane.")
]
OfParent = Annotated[
    str | None, typer.Option("--parent", metavar="RUN", help="Only runs that its steps started.")
]
_CONDITION = re.compile(r"([^<>=]+)(<=|>=|<|>|=)(.*)", re.DOTALL)
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?\Z")
_AGO = re.compile(r"(\d+)([smhd])\Z")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def read_wanted(
    workflow: str | None,
    status: list[str] | None,
    where: list[str] | None,
    since: str | None,
    until: str | None,
    lane: str | None,
    parent: str | None,
) -> RunsWanted:
    """Return which runs those options mean."""
    return {
        "workflow": workflow,
        "status": status,
        "where": _read_where(where or []),
        "requested_after": _read_moment("--since", since),
        "requested_before": _read_moment("--until", until),
        "lane": lane,
        "parent": parent,
    }


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
