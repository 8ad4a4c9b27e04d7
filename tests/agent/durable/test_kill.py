"""An agent's worker is killed with -9 in every window of a turn; another one goes on.

The agent takes three turns with two parallel tools in each of the first two. The fake model
answers by what it is shown, so a repeated call would be seen as one request more.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.agent.durable import member
from tests.agent.durable.stand import PATIENCE_S, Stand, stand

from treadle.sdk import Workflow
from treadle.sdk.settings import Settings
from treadle.worker.agent.testing import RecordedRequest, Turn, text, tool_use, turn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]
RECORDS_OF_A_TURN = 5
"""The answer; the start of the payment with the judgements; two results; the end of the turn."""
WINDOWS = [
    *(f"worker.record-before=kill@{number + 1}" for number in range(RECORDS_OF_A_TURN + 2)),
    *(f"worker.record-stored=kill@{number + 1}" for number in range(RECORDS_OF_A_TURN + 2)),
    "test.look-up=kill@1",
    "test.pay-before=kill@1",
    "test.pay-after=kill@1",
    "test.pay-after=kill@2",
    "worker.settle-before=kill@1",
    "worker.settle-stored=kill@1",
    "worker.acked=kill@1",
    "worker.settle-before=kill@3",
    "worker.settle-stored=kill@3",
]


def play(request: RecordedRequest) -> Turn:
    """Answer by how many answers the conversation holds."""
    answers = sum(message["role"] == "assistant" for message in request.messages)
    if answers < 2:
        return turn(
            text(f"Turn {answers}."),
            tool_use("look_up", {"order": f"O-{answers}"}, id=f"look{answers}"),
            tool_use("pay", {"cents": 100 + answers}, id=f"pay{answers}"),
        )
    return turn(tool_use("final_output", {"paid": 201}, id="final"))


def payer(**options: Any) -> Any:
    """Return the workflow: one loop that the agent serves."""
    workflow = Workflow("payments")
    workflow.agent_loop("pay", "pay-agent", max_iterations=20, **options)
    return workflow.build()


def payments(place: Stand) -> list[dict[str, Any]]:
    """Return what was paid."""
    member.LEDGER = place.ledger
    return member.payments()


@pytest.mark.parametrize("window", WINDOWS)
def test_a_killed_worker_repeats_no_stored_answer_and_no_payment(
    settings: Settings, tmp_path: Path, window: str
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path, play) as place:
            run = await place.client.start(payer(), "Pay order O-0.", id="run")
            doomed = place.worker(window, PAY_FINDS="yes")
            assert await place.ended(doomed) == -9
            stored_before = place.fake.count
            place.worker(PAY_FINDS="yes")
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == {"paid": 201}
            assert [paid["cents"] for paid in payments(place)] == [100, 101]
            assert len({paid["key"] for paid in payments(place)}) == 2
            lost_an_answer = window.startswith("worker.record-before=kill@2")
            lost_an_answer |= window.startswith("worker.record-before=kill@7")
            assert place.fake.count == 3 + lost_an_answer, (stored_before, place.fake.count)
            assert not place.fake.failures
            view = await run.get()
            spent = view.step("pay").spent
            assert spent.tool_calls == 4
            assert spent.output_tokens > 0

    asyncio.run(story())


def test_what_may_have_been_paid_waits_for_a_person(settings: Settings, tmp_path: Path) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path, play) as place:
            run = await place.client.start(payer(), "Pay order O-0.", id="run")
            assert await place.ended(place.worker("test.pay-after=kill@1")) == -9
            place.worker()
            async with asyncio.timeout(PATIENCE_S):
                while (view := await run.get()).status != "parked":
                    await asyncio.sleep(0.02)
            assert any("asks has pay(" in note.text for note in view.notes), view.notes
            answer = {"call_id": "pay0", "verdict": "answer", "text": "It was paid: 100."}
            await run.send("pay", answer, kind="reply", id="answer-1")
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == {"paid": 201}
            assert [paid["cents"] for paid in payments(place)] == [100, 101]

    asyncio.run(story())
