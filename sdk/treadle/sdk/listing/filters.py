"""Which runs a listing is about. Pure; an index selects the same in its own way."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypedDict, cast, get_args

import msgspec

from treadle.sdk import metadata
from treadle.sdk.errors import UserError
from treadle.sdk.ids import check_id
from treadle.sdk.messages import MetadataValue
from treadle.sdk.metadata import Given
from treadle.sdk.run import RunStatus

Operator = Literal["=", "<", "<=", ">", ">="]
Wanted = Given | Sequence[Given] | tuple[Operator, Given]
"""A value, any one of several in a list, or an operator and a value: ``(">=", 100)``."""


class RunsWanted(TypedDict, total=False):
    """Which runs; what is left out does not matter."""

    workflow: str | None
    status: str | Sequence[str] | None
    """One, or any of several."""
    where: Mapping[str, Wanted] | None
    """What the metadata has to be."""
    requested_after: datetime | None
    """Requested at this time or later."""
    requested_before: datetime | None
    lane: str | None
    parent: str | None
    """The run whose steps have started them."""


STATUSES = ("requested", *get_args(RunStatus), "unreadable")
"""``requested`` until an engine has taken the run, ``unreadable`` if its document is damaged."""
CONDITIONS_MAX = 20
_COMPARE: dict[Operator, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a key of the metadata has to be; a run that does not have the key does not match."""

    key: str
    operator: Operator
    values: tuple[MetadataValue, ...]
    """One of these will do."""


class RunFilter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the runs have in common; what is left out does not matter. Times in milliseconds."""

    workflow: str = ""
    statuses: tuple[str, ...] = ()
    where: tuple[Condition, ...] = ()
    after_ms: int = 0
    """Requested at this time or later."""
    before_ms: int = 0
    """Requested before it."""
    lane: str = ""
    parent: str = ""
    """The run whose steps have started them."""


class ParentOf(Protocol):
    """The link of a run to the one that has started it."""

    @property
    def run(self) -> str: ...


class Listed(Protocol):
    """What a filter looks at: a document, a request, or a view of either."""

    @property
    def workflow(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def requested_ms(self) -> int: ...
    @property
    def lane(self) -> str: ...
    @property
    def parent(self) -> ParentOf | None: ...
    @property
    def metadata(self) -> Mapping[str, MetadataValue]: ...


def filter_of(wanted: RunsWanted) -> RunFilter:
    """Return what is wanted as it is asked; raise ``UserError`` for what no run can be."""
    workflow, status, parent = (wanted.get("workflow"), wanted.get("status"), wanted.get("parent"))
    statuses = (status,) if isinstance(status, str) else tuple(status or ())
    for each in statuses:
        if each not in STATUSES:
            raise UserError(f"{each!r} is no status of a run. Choose one of {', '.join(STATUSES)}.")
    return RunFilter(
        workflow=check_id("workflow name", workflow) if workflow is not None else "",
        statuses=statuses,
        where=_conditions(wanted.get("where") or {}),
        after_ms=_moment_ms("requested_after", wanted.get("requested_after")),
        before_ms=_moment_ms("requested_before", wanted.get("requested_before")),
        lane=wanted.get("lane") or "",
        parent=check_id("run id", parent) if parent is not None else "",
    )


def matches(wanted: RunFilter, run: Listed) -> bool:
    """True if the run is one of those."""
    return (
        (not wanted.workflow or run.workflow == wanted.workflow)
        and (not wanted.statuses or run.status in wanted.statuses)
        and (not wanted.after_ms or run.requested_ms >= wanted.after_ms)
        and (not wanted.before_ms or run.requested_ms < wanted.before_ms)
        and (not wanted.lane or run.lane == wanted.lane)
        and (not wanted.parent or (run.parent is not None and run.parent.run == wanted.parent))
        and all(_holds(condition, run.metadata) for condition in wanted.where)
    )


def kind_of(value: MetadataValue) -> str:
    """Return the type within which values are compared: a bool is no number."""
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str) else "number"


def _holds(condition: Condition, labels: Mapping[str, MetadataValue]) -> bool:
    if condition.key not in labels:
        return False
    value = labels[condition.key]
    compare = _COMPARE[condition.operator]
    return any(
        kind_of(value) == kind_of(wanted) and compare(value, wanted) for wanted in condition.values
    )


def _moment_ms(name: str, at: datetime | None) -> int:
    if at is None:
        return 0
    if at.tzinfo is None:
        raise UserError(
            f"`{name}` is {at.isoformat()}, which has no time zone. Give one, such as "
            "datetime.now(UTC)."
        )
    return max(1, round(at.timestamp() * 1000))


def _conditions(where: Mapping[str, Wanted]) -> tuple[Condition, ...]:
    found = tuple(_condition(key, wanted) for key, wanted in where.items())
    if len(found) > CONDITIONS_MAX:
        raise UserError(
            f"`where` has {len(found)} conditions, and {CONDITIONS_MAX} are allowed: each is "
            "looked up for every run. Leave some out."
        )
    return found


def _condition(key: str, wanted: Wanted) -> Condition:
    name = f"`where` {key!r}"
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        return Condition(key, "=", (metadata.stored(name, wanted),))
    if isinstance(wanted, tuple):
        if len(wanted) != 2 or wanted[0] not in _COMPARE:
            raise UserError(
                f"{name} is {wanted!r}, which is no comparison. Write an operator (one of "
                f"{', '.join(_COMPARE)}) and a value: {{{key!r}: ('>=', 100)}}; several values, of "
                "which one has to be there, are a list."
            )
        return Condition(key, cast("Operator", wanted[0]), (metadata.stored(name, wanted[1]),))
    values = tuple(metadata.stored(name, value) for value in wanted)
    if not values:
        raise UserError(f"{name} is an empty list, which no run matches. Name a value.")
    return Condition(key, "=", values)
