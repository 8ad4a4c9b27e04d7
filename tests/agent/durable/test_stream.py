"""What an agent says reaches those who watch while it is said, and stands after a crash.

Against a strict fake of the Messages API, with a real server and an engine. Workers that are
killed are processes; the others live in the test.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.agent.durable.stand import stand
from tests.agent.durable.test_kill import payer
from tests.agent.durable.test_kill import play as pay

from treadle.sdk import Client, Retry, Workflow, chunks
from treadle.sdk.chunks import Chunk, Superseded, Text, Thinking
from treadle.sdk.client import RunHandle, StreamItem, Transcript
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import Worker
from treadle.worker.agent import Agent, ToolContext, tool
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.models.retrying import RetryPolicy
from treadle.worker.agent.testing import (
    FakeAnthropic,
    Gate,
    RecordedRequest,
    Turn,
    cut_after,
    error_after,
    stall_after,
    text,
    thinking,
    tool_use,
    turn,
)
from treadle.worker.agent.testing.script import Responder

pytestmark = pytest.mark.slow

WITHIN_S = 50
KILLED_WITHIN_S = 110
"""Two processes are started, one after the other."""
ANSWER = "It is three weeks late, so the refund is due."


@tool(idempotent=True)
async def read_order(ctx: ToolContext[None], order: str) -> str:
    """Read an order."""
    ctx.report({"order": order, "share": 0.5})
    return "three weeks late"


@contextlib.asynccontextmanager
async def talking(
    settings: Settings, turns: Sequence[Turn] | Responder, **options: Any
) -> AsyncIterator[tuple[Client, FakeAnthropic]]:
    """Serve an agent that is answered with these turns."""
    workflow = Workflow("orders")
    retry = Retry(max_attempts=5, delay_s=0.01)
    workflow.agent_loop("answer", "order-agent", max_iterations=20, retry=retry)
    with FakeAnthropic(turns) as fake:
        model = AnthropicModel("claude-test", base_url=fake.base_url, api_key="none")
        agent = Agent("orders", model=model, **{"tools": [read_order]} | options)
        worker = Worker("w")
        worker.agent("order-agent", agent)
        place = {"url": settings.url, "namespace": settings.namespace}
        try:
            async with asyncio.timeout(WITHIN_S), local(worker, workflows=[workflow], **place) as c:
                yield c, fake
        finally:
            await model.close()


async def heard(run: RunHandle, **options: Any) -> list[StreamItem]:
    return [item async for item in run.stream(**options)]


def standing(items: list[StreamItem]) -> tuple[str, list[Chunk]]:
    """Return the text that stands, and the chunks that were not late."""
    transcript = Transcript()
    chunks_ = [item.chunk for item in items if transcript.add(item)]
    return transcript.text(items[0].step), chunks_


def kinds(found: list[Chunk]) -> list[str]:
    """Return the kinds of chunks, texts that follow each other as one."""
    names = [str(chunk.__struct_config__.tag) for chunk in found]
    return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]


def test_the_text_of_an_answer_arrives_before_the_answer_is_complete(settings: Settings) -> None:
    gate = Gate()
    slow = turn(text(ANSWER), fault=stall_after("content_block_delta", gate=gate))

    async def story() -> None:
        async with talking(settings, [slow]) as (client, _):
            run = await client.start("orders", "Is it late?", id="r1")
            transcript = Transcript()
            async for item in run.stream():
                transcript.add(item)
                said = transcript.text("answer")
                if said and not gate.is_open:
                    assert ANSWER.startswith(said) and said != ANSWER
                    gate.open()
            assert transcript.text("answer") == await run.result() == ANSWER

    asyncio.run(story())


def test_turns_tools_thinking_and_the_stop_are_told_in_their_order(settings: Settings) -> None:
    turns = [
        turn(
            thinking("An order first."),
            text("Let me look."),
            tool_use("read_order", {"order": "O-1"}, id="c1"),
        ),
        turn(text("It is"), text("late.")),
    ]

    async def story() -> None:
        async with talking(settings, turns) as (client, fake):
            run = await client.start("orders", "Is it late?", id="r1")
            assert await run.result() == "It is\nlate."
            items = await heard(run)
            said, found = standing(items)
            assert said == "Let me look.It is\nlate."
            thought = "".join(chunk.text for chunk in found if isinstance(chunk, Thinking))
            assert thought == "An order first."
            assert kinds(found) == [
                *("attempt.began", "turn.started", "thinking", "text"),
                *("tool.started", "progress", "tool.ended", "turn.ended"),
                *("attempt.began", "turn.started", "text", "stopped"),
            ]
            (progress,) = [chunk for chunk in found if isinstance(chunk, chunks.Progress)]
            assert (progress.call, bytes(progress.value)) == ("c1", b'{"order":"O-1","share":0.5}')
            ended = next(chunk for chunk in found if isinstance(chunk, chunks.ToolEnded))
            assert (ended.id, ended.name, ended.status) == ("c1", "read_order", "ok")
            assert isinstance(found[-1], chunks.Stopped) and found[-1].reason == "completed"
            assert {chunk.iteration for chunk in found} == {0, 1}
            assert not fake.failures

    asyncio.run(story())


def test_an_agent_that_is_not_streamed_says_its_answers_whole(settings: Settings) -> None:
    async def story() -> None:
        async with talking(settings, [turn(text(ANSWER))], stream=False) as (client, _):
            run = await client.start("orders", "Is it late?", id="r1")
            assert await run.result() == ANSWER
            assert standing(await heard(run))[0] == ANSWER

    asyncio.run(story())


@pytest.mark.parametrize("fault", [cut_after("content_block_delta"), error_after(4)])
def test_an_answer_that_breaks_off_is_taken_back_and_the_next_one_stands(
    settings: Settings, fault: Any
) -> None:
    """The model is asked three times by one attempt, and then by the next."""
    broken = turn(text("It is, as far as I can see,"), text("not late at all."), fault=fault)
    policy = RetryPolicy(first_delay_s=0.01)

    async def story() -> None:
        async with talking(
            settings, [*[broken] * 3, turn(text("It is"), text("late."))], model_retry=policy
        ) as (client, _):
            run = await client.start("orders", "Is it late?", id="r1")
            assert await run.result() == "It is\nlate."
            items = await heard(run)
            said, found = standing(items)
            assert said == "It is\nlate."
            words = [c.attempt for c in found if isinstance(c, Text)]
            assert words.count(1) >= 3, "the broken texts are there to be replayed"
            assert [c.attempt for c in found if isinstance(c, Superseded)] == [1, 1, 1, 2]
            # Without the second attempt the first has already taken its words back.
            first = [item for item in items if item.chunk.attempt == 1]
            assert standing(first)[0] == ""

    asyncio.run(story())


def test_a_question_to_people_is_told(settings: Settings) -> None:
    turns = [
        turn(tool_use("ask_human", {"question": "May I?"}, id="q")),
        turn(text("Thank you.")),
    ]

    async def story() -> None:
        async with talking(settings, turns, ask_human=True) as (client, _):
            run = await client.start("orders", "Is it late?", id="r1")
            found: list[Chunk] = []
            async for item in run.stream():
                found.append(item.chunk)
                if isinstance(item.chunk, chunks.Waiting):
                    answer = {"call_id": "q", "verdict": "answer", "text": "You may."}
                    await run.send("answer", answer, kind="reply", id="a1")
            assert [c.calls for c in found if isinstance(c, chunks.Waiting)] == [("ask_human",)]
            assert standing(await heard(run))[0] == await run.result() == "Thank you."

    asyncio.run(story())


# ------------------------------------------------------------------ kill -9


def _slow_play(gates: list[Gate], words: list[str]) -> Any:
    """Answer each request with the next words, and stop in the middle of all but the last."""

    def play(request: RecordedRequest) -> Turn:
        said = words.pop(0)
        fault = stall_after("content_block_delta", gate=gates.pop(0)) if gates else None
        return turn(text(said), tool_use("final_output", {"paid": 0}, id="final"), fault=fault)

    return play


@pytest.mark.timeout(120)
def test_a_worker_killed_in_mid_stream_leaves_the_words_of_the_next_attempt(
    settings: Settings, tmp_path: Path
) -> None:
    gate = Gate()
    play = _slow_play([gate], ["It is, I would say, never late.", ANSWER])

    async def story() -> None:
        async with stand(settings, tmp_path, play) as place:
            run = await place.client.start(payer(), "Pay order O-0.", id="run")
            doomed = place.worker(PAY_FINDS="yes")
            transcript = Transcript()
            items: list[StreamItem] = []
            async for item in run.stream():
                transcript.add(item)
                items.append(item)
                if transcript.text("pay") and doomed.poll() is None:
                    assert transcript.text("pay") in "It is, I would say, never late."
                    doomed.kill()
                    await place.ended(doomed)
                    place.worker(PAY_FINDS="yes")
            assert transcript.text("pay") == ANSWER
            of_first = [n for n, item in enumerate(items) if item.chunk.attempt == 1]
            second = next(n for n, item in enumerate(items) if item.chunk.attempt == 2)
            assert isinstance(items[second].chunk, Superseded)
            assert max(of_first) < second
            # One that comes now, or in the middle, comes to the same.
            assert standing(await heard(run))[0] == ANSWER
            assert await heard(run, after=items[second - 1].sequence) == items[second:]
            assert await run.result() == {"paid": 0}

    try:
        asyncio.run(asyncio.wait_for(story(), KILLED_WITHIN_S))
    finally:
        gate.open()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "window",
    [
        "worker.record-before=kill@2",  # The answer was said, and is not stored.
        "worker.record-stored=kill@2",
        "test.pay-after=kill@2",
        "worker.record-stored=kill@6",  # The turn has ended.
        "worker.settle-stored=kill@1",
        "worker.settle-before=kill@3",  # The run has stopped.
    ],
)
def test_words_of_a_stored_answer_stand_also_when_its_worker_dies_later_in_the_turn(
    settings: Settings, tmp_path: Path, window: str
) -> None:
    """The answer is not asked for again, so nobody else will say it."""

    async def story() -> None:
        async with stand(settings, tmp_path, pay) as place:
            run = await place.client.start(payer(), "Pay order O-0.", id="run")
            assert await place.ended(place.worker(window, PAY_FINDS="yes")) == -9
            place.worker(PAY_FINDS="yes")
            assert await run.result(timeout_s=KILLED_WITHIN_S) == {"paid": 201}
            items = await heard(run)
            said, found = standing(items)
            assert said == "Turn 0.Turn 1.", (said, found)
            assert isinstance(found[-1], chunks.Stopped)

    asyncio.run(asyncio.wait_for(story(), KILLED_WITHIN_S))
