"""What waits for its time: it comes once, not too soon, and not at all when it was cancelled.
Method: short delays on a real server, held by a worker or slept in the timers stream."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.engine.core.effects import SetTimer
from treadle.engine.timers import Timers
from treadle.sdk import Retry, ServerUnavailable, Workflow
from treadle.sdk.messages import Delayed, Ended, Failure, Parked, Sleeping, Task
from treadle.worker import LoopContext, Worker
from treadle.worker.verdict import Complete

pytestmark = pytest.mark.slow

DELAY_S = 0.8
PATIENT = Retry(max_attempts=3, backoff="fixed", delay_s=DELAY_S, jitter=0)


@pytest.fixture(params=["held-by-a-worker", "slept"])
def kind(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> type[Delayed] | type[Sleeping]:
    """What a register holds while its step waits."""
    if request.param != "slept":
        return Delayed
    module = sys.modules["treadle.engine.core.advance"]  # Its function has the same name.
    monkeypatch.setattr(module, "DELAY_BY_WORKER_MS_MAX", 0)
    return Sleeping


def failing_once(at_s: list[float]) -> Worker:
    """Return a worker whose first execution fails; it notes when each began."""
    worker = Worker()

    @worker.handler("link")
    async def fail_once(ctx: LoopContext[Any]) -> Complete:
        at_s.append(time.monotonic())
        if ctx.attempt == 1:
            raise OSError("busy")
        return ctx.complete(ctx.attempt)

    return worker


async def _past(at_s: float) -> None:
    await asyncio.sleep(max(0.0, at_s - time.monotonic()))


async def _timers(stand: Stand) -> int:
    return int((await stand.state(stand.subjects.timers_stream))["messages"])


def test_a_retry_waits_as_long_as_its_policy_says_and_comes_once(
    play: Play, kind: type[Delayed] | type[Sleeping]
) -> None:
    async def story(stand: Stand) -> None:
        at_s: list[float] = []
        await stand.engine()
        stand.worker(failing_once(at_s))
        await stand.client.start(loop(retry=PATIENT), None, id="run")
        await stand.holds(kind)
        assert await stand.client.result("run", timeout_s=10) == 2
        await stand.quiet(0.3)
        first, second = at_s
        assert DELAY_S - 0.02 <= second - first < DELAY_S + 3

    play(story)


def test_a_retry_that_is_pending_when_its_run_is_cancelled_never_comes(
    play: Play, kind: type[Delayed] | type[Sleeping]
) -> None:
    async def story(stand: Stand) -> None:
        at_s: list[float] = []
        await stand.engine()
        stand.worker(failing_once(at_s))
        await stand.client.start(loop(retry=PATIENT), None, id="run")
        await stand.holds(kind)
        await stand.client.cancel("run")
        await stand.holds(Ended)
        await _past(at_s[0] + DELAY_S + 0.5)  # Schedules fire up to 250 ms late.
        await stand.quiet(0.3)
        assert len(at_s) == 1
        assert (await stand.ended()).status == "cancelled"
        assert await _timers(stand) == 0

    play(story)


def test_a_verdict_that_comes_late_while_a_retry_is_pending_starts_nothing(
    play: Play, kind: type[Delayed] | type[Sleeping]
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(retry=PATIENT), None, id="run")
        token = (await stand.holds(Task)).token
        await stand.fails(token, Failure("timeout", "it was too slow"))
        pending = await stand.holds(kind)
        await stand.completes(token, "late")
        await stand.continues(token, "later")
        await stand.quiet(0.3)
        assert await stand.register() == pending

    play(story)


@pytest.mark.parametrize("first", ["retry", "deadline"])
def test_two_timers_of_one_step_both_fire_in_either_order(
    play: Play, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    module = sys.modules["treadle.engine.core.advance"]  # Its function has the same name.
    monkeypatch.setattr(module, "DELAY_BY_WORKER_MS_MAX", 0)
    retry_s, deadline_s = (0.5, 1.5) if first == "retry" else (1.5, 0.5)
    policy = Retry(max_attempts=3, backoff="fixed", delay_s=retry_s, jitter=0)
    definition = loop(retry=policy, max_duration=deadline_s, on_limit="park")

    async def story(stand: Stand) -> None:
        s = stand.subjects

        async def fired(timer: str) -> None:
            subject = s.fired("run", timer)
            await stand.until(
                f"{timer} has fired", lambda: stand.js.last(s.timers_stream, subject), bool
            )

        await stand.engine()
        await stand.client.start(definition, None, id="run")
        token = (await stand.holds(Task)).token
        await stand.fails(token, Failure("OSError", "busy"))
        asleep = await stand.holds(Sleeping)
        if first == "retry":
            again = await stand.holds(Task, since=asleep.token)
            assert isinstance(again.register, Task)
            assert again.register.attempt == 2
        parked = await stand.holds(Parked, since=asleep.token)
        await fired("w-loop")
        await fired("d-loop")
        await stand.quiet(0.3)
        assert await stand.register() == parked, "what fired last moved nothing that is parked"
        assert isinstance(parked.register, Parked)
        assert (parked.register.reason, parked.register.task.failures) == ("max_duration", 1)
        await stand.client.resume("run", add_duration=timedelta(minutes=1))
        again = await stand.holds(Task, since=parked.token)
        await stand.completes(again.token, "done")
        assert await stand.client.result("run", timeout_s=10) == "done"

    play(story)


def test_a_run_that_waits_for_a_signal_is_cancelled_and_leaves_no_timer(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("waits", timeout=DELAY_S)
        workflow.wait_for_signal("approval", timeout=DELAY_S)
        await stand.client.start(workflow, id="run")

        async def timers() -> int:
            return await _timers(stand)

        await stand.until("its timers are set", timers, lambda n: n == 2)
        await stand.client.cancel("run", "not wanted any more")
        ended = await stand.ended()
        assert ended.status == "cancelled"
        await stand.until("its timers are gone", timers, lambda n: n == 0)
        await _past(time.monotonic() + DELAY_S + 0.5)
        await stand.client.start(workflow, id="other")
        assert (await stand.ended("other")).status == "failed"  # Timers do fire.
        assert await stand.document() == ended
        assert [letter.run for letter in await stand.letters()] == ["other"]

    play(story)


def test_a_timer_whose_first_publish_fails_still_fires(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[str] = []
    publish = Timers.set

    async def fail_first(self: Timers, run: str, timer: SetTimer) -> None:
        tries.append(timer.id)
        if len(tries) == 1:
            raise ServerUnavailable("the schedule was not stored")
        await publish(self, run, timer)

    monkeypatch.setattr(Timers, "set", fail_first)

    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("impatient")
        workflow.wait_for_signal("approval", timeout=0.4)
        await stand.client.start(workflow, id="run")
        ended = await stand.ended()
        assert ended.failure is not None
        assert ended.failure.type == "timeout"
        assert len(tries) == 2

    play(story)
