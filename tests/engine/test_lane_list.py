"""The lanes that are listed: who is active, since when, and who waits behind.
Method: a real server and an engine in this process; the step of a run is settled by hand."""

from __future__ import annotations

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand
from tests.engine.test_run_concurrency import few, settle
from typer.testing import CliRunner

from treadle.cli.main import app
from treadle.sdk.client.lane_list import LaneView
from treadle.sdk.settings import Settings


def told(lane: LaneView) -> tuple[str, int, list[str], int, list[str]]:
    holders, first = ([each.run for each in runs] for runs in (lane.holders, lane.first))
    return lane.lane, lane.places, holders, lane.waiting, first


@pytest.mark.slow
def test_a_lane_is_listed_with_its_places_its_holders_and_who_comes_next(
    play: Play, settings: Settings
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        definition = few(2, concurrency_key='input["customer"]')
        for number in range(7):
            await stand.client.start(definition, {"customer": "big"}, id=f"r{number}")
        await stand.client.start("few", {"customer": "small"}, id="alone")
        for name in ("r0", "r1", "alone"):
            await stand.status(name, "running")
        await stand.status("r6", "queued")
        big, small = await stand.client.lanes()
        assert told(big) == ("few:big", 2, ["r0", "r1"], 5, ["r2", "r3", "r4"])
        assert told(small) == ("few:small", 2, ["alone"], 0, []), "nobody has ever waited in it"
        await settle(stand, "r1")
        await stand.status("r2", "running")
        big = (await stand.client.lanes())[0]
        assert told(big) == ("few:big", 2, ["r0", "r2"], 4, ["r3", "r4", "r5"])
        began = await stand.client.get("r2")
        assert big.holders[1].since_ms == began.step("loop").started_ms > began.requested_ms
        await settle(stand, "alone")
        assert [lane.lane for lane in await stand.client.lanes()] == ["few:big"]

    play(story)
    runner = CliRunner(env={"TREADLE_NATS_URL": settings.url})
    place = ("--namespace", settings.namespace)
    (row,) = [
        " ".join(line.split())
        for line in runner.invoke(app, ["limits", *place]).output.splitlines()
        if line.startswith("few:big")
    ]
    assert row.startswith("few:big 2/2 4 r0 (") and row.count("), r") == 3
    assert row.endswith(", 1 more")
    line = msgspec.json.decode(runner.invoke(app, ["limits", *place, "--json"]).output)
    assert (line["kind"], line["waiting"], line["first"][0]["run"]) == ("lane", 4, "r3")
