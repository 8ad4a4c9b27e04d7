"""``treadle limits``: which limits, lanes and budgets are in use, by whom, and how many wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.cli.options import Json, Namespace, Url

if TYPE_CHECKING:
    from treadle.sdk.client import Client
    from treadle.sdk.client.limits import LimitView

HOLDERS_SHOWN_MAX = 3


def limits(json: Json = False, url: Url = None, namespace: Namespace = None) -> int:
    """List limits, lanes and budgets of providers: who holds them, and who waits."""
    from treadle.cli import runs

    return runs.run(url, namespace, lambda client: _list(client, as_json=json))


async def _list(client: Client, *, as_json: bool) -> int:
    from treadle.cli import exits, lane_lines, output, provider_lines

    views, lanes = await client.limits(), await client.lanes()
    budgets = await client.provider_budgets()
    if as_json:
        for view in views:
            output.emit(view)
    elif views:
        rows = [
            (view.label, view.kind, _used(view), str(view.waiting), _who(view)) for view in views
        ]
        output.table(("LIMIT", "KIND", "USED", "WAITING", "HELD BY"), rows)
    elif not lanes and not budgets:
        output.remark("no limit is in use; steps get them in their workflow: docs/flow-control.md")
    lane_lines.show(lanes, is_first=not views, as_json=as_json)
    is_first = not views and not lanes
    provider_lines.show(budgets, is_first=is_first, as_json=as_json)
    return exits.OK


def _used(view: LimitView) -> str:
    from treadle.sdk.times import date

    if view.kind == "concurrency":
        return f"{len(view.holders)}/{view.limit}"
    pace = f"one in {view.interval_ms / 1000:g} s"
    return f"{pace}, next at {date(view.next_ms)}" if view.next_ms else pace


def _who(view: LimitView) -> str:
    shown = [f"{each.run}/{each.step}" for each in view.holders[:HOLDERS_SHOWN_MAX]]
    more = len(view.holders) - len(shown)
    return ", ".join([*shown, f"{more} more"] if more else shown)
