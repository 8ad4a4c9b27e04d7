"""Signals end to end: kept until a step wants them, each counted and consumed once."""

from __future__ import annotations

import msgspec
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import Workflow
from treadle.sdk.messages import SignalReceived


def _waits(*steps: str) -> Workflow:
    workflow = Workflow("waits")
    after: list[str] = []
    for step in steps:
        workflow.wait_for_signal(step, signal="go", after=after)
        after = [step]
    return workflow


def test_a_signal_that_comes_before_the_wait_is_kept_for_it(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.publish(SignalReceived(name="go", payload=msgspec.Raw(b'"early"'), id="s1"))
        await stand.client.start(_waits("first"), id="run")
        await stand.engine()
        assert await stand.client.result("run", timeout_s=10) == "early"

    play(story)


def test_two_waits_need_two_signals(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(_waits("first", "second"), id="run")
        await stand.client.signal("run", "go", 1, id="one")
        await stand.client.signal("run", "go", 1, id="one")  # The same one again.
        await stand.quiet(0.3)
        document = await stand.status("run", "running")
        assert document.steps["first"].status == "completed"
        assert document.steps["second"].status == "active"
        await stand.client.signal("run", "go", 2)
        assert await stand.client.result("run", timeout_s=10) == 2
        assert (await stand.ended()).signals_received == 2

    play(story)


def test_a_signal_of_another_name_completes_nothing(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(_waits("first"), id="run")
        await stand.client.signal("run", "stop", 1)
        await stand.quiet(0.3)
        document = await stand.status("run", "running")
        assert document.steps["first"].status == "active"
        assert document.signals_received == 1

    play(story)


def test_a_wait_with_a_timeout_fails_the_run_when_nothing_comes(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("impatient")
        workflow.wait_for_signal("approval", timeout=0.4)
        await stand.client.start(workflow, id="run")
        ended = await stand.ended(timeout_s=5)
        assert ended.failed_step == "approval"
        assert ended.failure is not None
        assert ended.failure.type == "timeout"

    play(story)
