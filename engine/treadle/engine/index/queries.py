"""A filter of runs as SQL. It selects what ``treadle.sdk.listing.filters.matches`` does."""

from __future__ import annotations

from collections.abc import Callable

from treadle.sdk.listing.filters import Condition, RunFilter, kind_of
from treadle.sdk.listing.wire import Position
from treadle.sdk.messages import MetadataValue

NONE_BELOW = Position(2**63 - 1, "")
"""Behind it is every run."""

Sql = str | int | float


def label_row(run: int, key: str, value: MetadataValue) -> tuple[int, str, str, Sql]:
    """Return the row of a label: the kind keeps values apart that SQL would compare."""
    return run, key, kind_of(value), value


def selection(
    wanted: RunFilter, is_rare: Callable[[str, list[Sql]], bool]
) -> tuple[str, list[Sql]]:
    """Return a condition on rows of ``run``, and its values.

    ``is_rare`` tells of a condition on labels whether few have it: those are looked up first,
    others of each row in turn, which ends when the page is full.
    """
    parts: list[str] = []
    values: list[Sql] = []

    def and_(sql: str, *given: Sql) -> None:
        parts.append(sql)
        values.extend(given)

    if wanted.workflow:
        and_("workflow = ?", wanted.workflow)
    if wanted.statuses:
        and_(f"status IN ({_marks(len(wanted.statuses))})", *wanted.statuses)
    else:
        and_("status != ''")
    if wanted.after_ms:
        and_("requested_ms >= ?", wanted.after_ms)
    if wanted.before_ms:
        and_("requested_ms < ?", wanted.before_ms)
    if wanted.lane:
        and_("lane = ?", wanted.lane)
    if wanted.parent:
        and_("parent = ?", wanted.parent)
    for condition in wanted.where:
        sql, given = _labelled(condition)
        if is_rare(sql, given):
            and_(f"id IN (SELECT run FROM label WHERE {sql})", *given)
        else:
            and_(f"EXISTS (SELECT 1 FROM label WHERE run = id AND {sql})", *given)
    return " AND ".join(parts), values


def _labelled(condition: Condition) -> tuple[str, list[Sql]]:
    compared = [
        (f"(kind = ? AND value {condition.operator} ?)", (kind_of(value), value))
        for value in condition.values
    ]
    sql = " OR ".join(part for part, _ in compared)
    given = [each for _, pair in compared for each in pair]
    return f"key = ? AND ({sql})", [condition.key, *given]


def _marks(count: int) -> str:
    return ", ".join("?" * count)
