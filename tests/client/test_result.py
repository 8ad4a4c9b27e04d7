"""The result of a run: what it is, and the errors that stand in its place.

A real server and the client; documents and registers are written by hand.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tests.client.stage import Stage, chain, done, ended, play, raw

from treadle.sdk import InvalidPayload, RunCancelled, RunFailed, Workflow
from treadle.sdk.client import waiter
from treadle.sdk.messages import Failure, SignalReceived
from treadle.sdk.run import StepEntry
from treadle.sdk.settings import Settings


@dataclass
class Report:
    lines: int


def test_the_result_is_the_output_of_the_only_sink_as_the_type_asked_for(
    settings: Settings,
) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        await stage.register("r1", "first", "work", ended({"lines": 1}))
        await stage.register("r1", "loop", "think", ended({"lines": 2}))
        steps = {"first": done(), "loop": done()}
        await stage.document("r1", definition=version, status="completed", steps=steps)
        assert await stage.client.result("r1") == {"lines": 2}
        assert await stage.client.handle("r1").result(Report) == Report(2)
        with pytest.raises(InvalidPayload, match="result of run 'r1'"):
            await stage.client.result("r1", int)

    play(settings, story)


def test_the_result_of_several_sinks_is_an_object_by_step_and_a_signal_gives_its_payload(
    settings: Settings,
) -> None:
    async def story(stage: Stage) -> None:
        forked = Workflow("flow")
        root = forked.task("root", "work")
        forked.task("left", "work", after=[root])
        forked.wait_for_signal("approval", after=[root])
        version = await stage.client.register(forked)
        sequence = await stage.event("r1", SignalReceived(name="approval", payload=raw("yes")))
        await stage.register("r1", "left", "work", ended([1]))
        steps = {"root": done(), "left": done(), "approval": done(f"e{sequence}")}
        await stage.document("r1", definition=version, status="completed", steps=steps)
        assert await stage.client.result("r1") == {"left": [1], "approval": "yes"}

    play(settings, story)


def test_a_failed_run_raises_where_and_why_it_failed_and_what_to_do(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        failure = Failure("max_iterations", "the loop took all of its 5 iterations", False)
        entry = StepEntry("failed", 5, failure=failure)
        await stage.document(
            "r1", status="failed", failure=failure, failed_step="loop", steps={"loop": entry}
        )
        with pytest.raises(RunFailed) as caught:
            await stage.client.result("r1")
        error = caught.value
        # The bound was reached between two iterations: none has failed.
        assert (error.step, error.iteration, error.failure) == ("loop", None, failure)
        assert "failed at step 'loop': max_iterations" in str(error)
        assert "treadle run history r1" in str(error) and 'on_limit="park"' in str(error)

    play(settings, story)


def test_a_cancelled_run_raises_with_its_reason(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await stage.document("r1", status="cancelled", failure=Failure("cancelled", "too late"))
        with pytest.raises(RunCancelled, match="too late"):
            await stage.client.result("r1")

    play(settings, story)


def test_a_wait_that_is_too_long_says_what_the_run_waits_for(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await stage.present("engine")
        version = await stage.client.register(chain())
        await stage.document("r1", definition=version, steps={"first": StepEntry("active")})
        with pytest.raises(TimeoutError) as caught:
            await stage.client.result("r1", timeout_s=0.05)
        text = str(caught.value)
        assert "no worker serves task type 'work'" in text and "`treadle worker FILE.py`" in text
        assert "no engine" not in text

    play(settings, story)


@pytest.fixture
def rare_polls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only the ring can wake a waiter in the time of a test."""
    monkeypatch.setattr(waiter, "POLL_S", 60.0)
    yield


@pytest.mark.usefixtures("rare_polls")
def test_a_waiter_is_woken_by_the_end_of_the_run(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        await stage.register("r1", "loop", "think", ended("done"))
        steps = {"first": done(), "loop": done()}
        await stage.document("r1", definition=version, steps=steps)
        waiting = asyncio.create_task(stage.client.result("r1", timeout_s=20))
        # The waiter listens once the server knows its subscription.
        while not await _listens(stage, "r1"):
            await asyncio.sleep(0.005)
        started = time.monotonic()
        await stage.document("r1", definition=version, status="completed", steps=steps)
        assert await waiting == "done"
        assert time.monotonic() - started < 5

    play(settings, story)


async def _listens(stage: Stage, run: str) -> bool:
    connection = stage.client._store.js.connection  # pyright: ignore[reportPrivateUsage]
    subjects = connection._subscriptions.values()  # pyright: ignore[reportPrivateUsage]
    await connection.flush()
    return stage.subjects.run_document(run) in subjects
