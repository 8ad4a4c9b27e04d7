"""Runs that wait for each other are named, from wherever one looks, with one run to cancel.

Pure: links written by hand, a reason out."""

from __future__ import annotations

import msgspec

from treadle.sdk.client.explain.rings import LINKS_SHOWN_MAX, Link, Ring, ring_of, ring_reason
from treadle.sdk.times import date

PATH = (
    Link(run="top", on="p1", step="go"),
    Link(run="p1", on="c1", step="sub"),
    Link(run="c1", on="p2", lane="b", requested_ms=5),
    Link(run="p2", on="c2", step="sub"),
    Link(run="c2", on="p1", lane="a", requested_ms=6),
)


def test_a_path_that_comes_back_is_a_ring_without_what_leads_to_it() -> None:
    assert [ring_of(PATH[:length]) for length in range(1, 5)] == [None] * 4
    assert ring_of(PATH) == Ring(PATH[1:])
    alone = Link(run="c", on="c", lane="a")
    assert ring_of((alone,)) == Ring((alone,))


def test_whoever_is_asked_tells_the_whole_ring_and_the_same_run_to_cancel() -> None:
    ring = Ring(PATH[1:])
    assert ring_reason(ring, "p1").text == (
        "runs wait for each other, and none gets on: p1 waits in step 'sub' for its child c1, "
        "which waits in lane 'b' for p2, which waits in step 'sub' for its child c2, which waits "
        "in lane 'a' for p1"
    )
    for run in ("p1", "c1", "p2", "c2"):
        reason = ring_reason(ring, run)
        assert (reason.kind, reason.level) == ("deadlock", "problem")
        assert f"none gets on: {run} waits in" in reason.text
        assert reason.command == "treadle run cancel c2", "the youngest that has not begun"


def test_a_timeout_in_the_ring_is_told_as_its_end() -> None:
    links = [msgspec.structs.replace(PATH[1], ends_ms=90_000), PATH[2]]
    links += [msgspec.structs.replace(PATH[3], ends_ms=70_000), PATH[4]]
    reason = ring_reason(Ring(tuple(links)), "c1")
    assert reason.until_ms == 70_000
    assert reason.text.endswith(f"; the timeout of p2 ends that at {date(70_000)}")


def test_a_long_ring_is_told_within_a_bound() -> None:
    names = [f"r{n}" for n in range(30)]
    links = [
        Link(run=run, on=on, lane="x", requested_ms=1)
        for run, on in zip(names, [*names[1:], names[0]], strict=True)
    ]
    text = ring_reason(Ring(tuple(links)), "r3").text
    assert text.count("which") == LINKS_SHOWN_MAX
    assert text.endswith("which waits, as 18 more do")
