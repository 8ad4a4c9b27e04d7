"""The lanes among what ``treadle limits`` lists."""

from __future__ import annotations

import time
from collections.abc import Sequence

from treadle.cli import output
from treadle.sdk.client.lane_list import LaneRun, LaneView
from treadle.sdk.times import age

HOLDERS_SHOWN_MAX = 3


def show(lanes: Sequence[LaneView], *, is_first: bool, as_json: bool) -> None:
    """Print lanes, behind what was printed already."""
    if as_json:
        for lane in lanes:
            output.emit(lane)
        return
    if not lanes:
        return
    if not is_first:
        output.say("")
    now_ms = time.time_ns() // 1_000_000
    rows = [
        (
            lane.lane,
            f"{len(lane.holders)}/{lane.places}",
            f"{lane.waiting}{'+' if lane.is_more else ''}",
            _runs(lane.holders, len(lane.holders), now_ms),
            _runs(lane.first, lane.waiting, now_ms),
        )
        for lane in lanes
    ]
    output.table(("LANE", "ACTIVE", "WAITING", "HELD BY", "NEXT"), rows)


def _runs(runs: Sequence[LaneRun], count: int, now_ms: int) -> str:
    shown = [
        f"{each.run} ({age(now_ms - each.since_ms)})" if each.since_ms else each.run
        for each in runs[:HOLDERS_SHOWN_MAX]
    ]
    more = count - len(shown)
    return ", ".join([*shown, f"{more} more"] if more else shown)
