"""A worker is killed with -9 while its agents implement and review, and between the two.

Method: two cycles of one call each; the model answers by what it is shown, so that a call made
again shows as one request more. The step is counted by a real engine on a real server.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.plan.stage import (
    answers_in,
    goal_in,
    phase_of,
    plan_workflow,
    playing,
    verdict,
)
from tests.nursery import Forked, agents

from treadle.sdk import Client, Workflow
from treadle.sdk.client import RunHandle
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import Worker
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn
from treadle.worker.agent.testing.script import Answer

pytestmark = pytest.mark.slow

RECORDS_OF_A_PHASE = 6
"""Its beginning; the answer with a call; the result; the end of the turn; the last answer; the
stop."""
ANSWERS = {RECORDS_OF_A_PHASE * phase + place for phase in range(4) for place in (2, 5)}
"""Numbers of the records that hold an answer: only what is lost before one is asked for again."""
ITERATIONS = 8
WINDOWS = [
    *(f"worker.record-before=kill@{number}" for number in (2, 5, 6, 7, 8, 13)),
    *(f"worker.record-stored=kill@{number}" for number in (2, 5, 6, 7, 8, 11, 12)),
    "test.write-after=kill@1",
    "test.run-tests=kill@1",
    # The second iteration ends the implementer's conversation, the fourth the reviewer's.
    *(f"worker.{place}=kill@2" for place in ("settle-before", "settle-stored", "acked")),
    *(f"worker.{place}=kill@4" for place in ("settle-before", "settle-stored")),
]
BRIEF = {"request": "Add a flag.", "findings": "FOUND it", "plan": "PLANNED it"}
USAGE = {"input_tokens": 100, "output_tokens": 10} | dict.fromkeys(
    ("cache_creation_input_tokens", "cache_read_input_tokens"), 0
)
calm = playing([verdict("NEEDS_FIX", "Not documented."), verdict("DONE")])


def play(request: RecordedRequest) -> Turn:
    """Answer as planned; each answer uses the same."""
    answer = calm(request)
    assert isinstance(answer, Answer)
    return replace(answer, usage=USAGE)


class Stand:
    """The fake model, a client, a worker process that is killed, and the one that follows it."""

    def __init__(self, settings: Settings, fake: FakeAnthropic, client: Client, logs: Path) -> None:
        self.fake = fake
        self.client = client
        self._settings = settings
        self._logs = logs
        self._doomed: Forked | None = None
        self._model = AnthropicModel("claude-test", base_url=fake.base_url, api_key="k")
        self._worker = Worker()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> RunHandle:
        """Start the last step of a plan alone, from what the others have left."""
        workflow = Workflow("build")
        workflow.agent_loop("build", "change-build", max_iterations=ITERATIONS + 2)
        return await self.client.start(workflow.build(), BRIEF, id="run")

    async def killed(self, failpoints: str) -> None:
        """Start a worker process, and wait until it has killed itself there."""
        env = {
            "TREADLE_NATS_URL": self._settings.url,
            "TREADLE_NAMESPACE": self._settings.namespace,
            "TREADLE_FAILPOINTS": failpoints,
            "ANTHROPIC_BASE_URL": self.fake.base_url,
        }
        log = self._logs / "worker.log"
        self._doomed = agents().start("tests.agent.plan.member", env=env, log=log)
        assert await asyncio.to_thread(self._doomed.wait, 45) == -9

    def follow(self, changed: str = "") -> None:
        """Let another worker serve; ``changed`` is a phase whose agent is another than before."""
        options = {changed: {"instructions": f"You are to {changed}. Be brief."}} if changed else {}
        plan_workflow(self._model, **options).register(self._worker)
        self._running = asyncio.create_task(self._worker.run(self._settings))

    async def close(self) -> None:
        """End the workers."""
        if self._doomed is not None:
            self._doomed.kill()
            self._doomed.wait()
        if self._running is not None:
            self._worker.stop()
            await self._running
        await self._model.close()


@asynccontextmanager
async def stand(settings: Settings, logs: Path) -> AsyncGenerator[Stand]:
    """Set everything up, and take it down."""
    async with local(url=settings.url, namespace=settings.namespace) as client:
        with FakeAnthropic(play) as fake:
            made = Stand(settings, fake, client, logs)
            try:
                yield made
            finally:
                await made.close()


def asked(fake: FakeAnthropic) -> Counter[tuple[str, int]]:
    """Return how often each question was asked."""
    return Counter((goal_in(each), answers_in(each)) for each in fake.requests)


async def done(run: RunHandle) -> dict[str, Any]:
    result: dict[str, Any] = await asyncio.wait_for(run.result(), 30)
    return result


@pytest.mark.parametrize("window", WINDOWS)
def test_a_killed_worker_asks_for_no_stored_answer_again_and_no_review_counts_twice(
    settings: Settings, tmp_path: Path, window: str
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path) as place:
            run = await place.start()
            await place.killed(window)
            place.follow()
            result = await done(run)
            assert (result["verdict"], result["reviews"]) == ("DONE", 2)
            assert result["work"] == "Account of cycle 2."
            lost = int(
                window.startswith("worker.record-before") and int(window.split("@")[1]) in ANSWERS
            )
            assert place.fake.count == ITERATIONS + lost
            assert max(asked(place.fake).values()) == 1 + lost
            step = (await run.get()).step("build")
            assert step.iterations == ITERATIONS
            assert (step.spent.tool_calls, step.spent.input_tokens) == (4, 8 * 100)
            assert step.spent.output_tokens == 8 * 10

    asyncio.run(story())


def test_a_reviewer_that_changed_during_its_review_waits_for_a_person(
    settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path) as place:
            run = await place.start()
            await place.killed(f"worker.record-stored=kill@{RECORDS_OF_A_PHASE + 2}")
            place.follow("review")
            async with asyncio.timeout(30):
                while (view := await run.get()).status != "parked":
                    await asyncio.sleep(0.02)
            assert any("prompt changed since" in note.text for note in view.notes), view.notes
            await run.send("build", "Go on.", id="go-on")
            assert (await done(run))["reviews"] == 2

    asyncio.run(story())


def test_another_implementer_serves_the_next_cycle_and_disturbs_no_review(
    settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path) as place:
            run = await place.start()
            await place.killed(f"worker.record-stored=kill@{RECORDS_OF_A_PHASE + 2}")
            place.follow("implement")
            assert (await done(run))["reviews"] == 2
            told = [
                "Be brief." in json.dumps(each.body["system"])
                for each in place.fake.requests
                if phase_of(each) == "implement"
            ]
            assert told == [False, False, True, True]

    asyncio.run(story())
