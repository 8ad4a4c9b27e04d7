"""Why a queued run waits: who holds its lane is asked, and runs that wait for each other are seen.
Method: engine and workers on a real server; what is suggested is done, and the runs go on."""

from __future__ import annotations

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import Workflow
from treadle.sdk.client import Explanation


def tree(name: str, other: str) -> Workflow[bool]:
    """Return a workflow of one run at a time, that waits and then for a run of another one.

    With the input false, as it gives it to that run, it does nothing.
    """
    workflow = Workflow(name, concurrency=1, input=bool)
    go = workflow.wait_for_signal("go", when="input")
    workflow.sub_workflow("sub", other, after=go, when="input")
    return workflow


async def explained(stand: Stand, run: str, kind: str, says: str = "") -> Explanation:
    return await stand.until(
        f"{run} is explained by {kind}",
        lambda: stand.client.explain(run),
        lambda told: told.main.kind == kind and says in told.main.text,
    )


@pytest.mark.slow
def test_trees_of_runs_that_wait_for_each_others_lane_are_a_deadlock_that_one_cancel_ends(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.register(tree("right", "left"))
        await stand.client.start(tree("left", "right"), True, id="p1")
        await stand.client.start("right", True, id="p2")
        await stand.client.start("left", False, id="behind")
        for run in ("p1", "p2"):
            await explained(stand, run, "signal_wait")
            await stand.client.signal(run, "go", False)
        told = await explained(stand, "p1", "deadlock")
        assert told.is_stuck
        (c1,), (c2,) = await stand.client.children("p1"), await stand.client.children("p2")
        assert told.main.text == (
            f"runs wait for each other, and none gets on: p1 waits in step 'sub' for its child "
            f"{c1.id}, which waits in lane 'right' for p2, which waits in step 'sub' for its child "
            f"{c2.id}, which waits in lane 'left' for p1"
        )
        assert told.main.command in [f"treadle run cancel {each.id}" for each in (c1, c2)]
        for run in ("p2", c1.id, c2.id):
            other = await explained(stand, run, "deadlock")
            assert other.main.command == told.main.command
        outside = await explained(stand, "behind", "lane_queued", "wait for each other")
        assert (outside.state, outside.main.command) == ("stuck", told.main.command)

        victim = told.main.command.split()[-1]
        await stand.client.cancel(victim, "deadlock")
        is_first = victim == c1.id
        parent, left = ("p1", "p2") if is_first else ("p2", "p1")
        assert (await stand.ended(parent)).status == "failed"
        assert (await stand.ended(left)).status == "completed"

    play(story)


@pytest.mark.slow
@pytest.mark.parametrize("others", ["all wait", "one works"])
def test_a_lane_of_several_places_is_stuck_only_if_every_holder_is(play: Play, others: str) -> None:
    timed = Workflow("many", concurrency=3, input=bool)
    timed.wait_for_signal("go", when="input")
    timed.sleep("nap", 3600, when="not input")

    async def story(stand: Stand) -> None:
        await stand.engine()
        for index in range(3):
            is_gated = others == "all wait" or index != 2
            await stand.client.start(timed, is_gated, id=f"r{index}")
        await stand.client.start(timed, True, id="run")
        if others == "all wait":
            told = await explained(stand, "run", "lane_queued", "3 are stuck")
            assert told.state == "stuck"
            assert "held by r0, r1, r2, of which 3 are stuck: run r0 of many is stuck" in (
                told.main.text
            )
            assert told.main.command == "treadle run signal r0 go"
            await stand.client.signal("r1", "go", None)
            await stand.ended("r1")
            await stand.status("run", "running")
        else:
            told = await explained(stand, "run", "lane_queued", "step 'nap' sleeps")
            assert told.state == "healthy", "r2 wakes by itself"
            assert "held by r0, r1, r2: run r2 of many is getting on" in told.main.text

    play(story)
