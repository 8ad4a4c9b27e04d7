"""Sub-agents on a real server: killed with -9 in every window of their rounds, cancelled, asked.

The lead hands two tasks on; each clerk pays once and says so. Every answer of the fake costs 10 and
5 tokens, so what the engine has counted tells how many answers it counted.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.agent.durable.family_member import payments
from tests.agent.durable.stand import PATIENCE_S, Stand, stand
from tests.agent.run.family import ask, family, name_of, priced

from treadle.sdk import RunFailed, Workflow
from treadle.sdk.client import RunHandle
from treadle.sdk.errors import UserError
from treadle.sdk.settings import Settings
from treadle.worker.agent.core.entries import Answered, Entry, Nested
from treadle.worker.agent.evals.fetching import fetch
from treadle.worker.agent.testing import stall_after, text, tool_use

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]
ANSWERS = 6
"""Two of the lead, two of each clerk."""
WINDOWS = [
    *(f"worker.record-before=kill@{n}" for n in range(1, 14)),
    *(f"worker.record-stored=kill@{n}" for n in range(1, 14)),
    "test.paid=kill@1",
    "test.paid=kill@2",
    *(f"worker.settle-before=kill@{n}" for n in range(1, 5)),
    *(f"worker.settle-stored=kill@{n}" for n in range(1, 5)),
    *(f"worker.acked=kill@{n}" for n in range(1, 4)),
]


def lead(request: Any, n: int) -> Any:
    calls = (ask("clerk", f"Pay {cents}.", f"call{cents}") for cents in (1, 2))
    return priced(*calls) if n == 0 else priced(text("All is paid."))


def clerk(request: Any, n: int) -> Any:
    cents = int(request.messages[0]["content"][0]["text"].strip("Pay ."))
    return priced(tool_use("pay", {"cents": cents}, "pay")) if n == 0 else priced(text("Paid."))


def workflow(**options: Any) -> Any:
    made = Workflow("payments")
    made.agent_loop("pay", "lead", **({"max_iterations": 20} | options))
    return made.build()


def answers_in(entries: list[Entry]) -> int:
    """How many answers of models are stored, sub-agents' too."""

    def innermost(entry: Entry) -> Entry:
        return innermost(entry.entry) if isinstance(entry, Nested) else entry

    return sum(isinstance(innermost(entry), Answered) for entry in entries)


async def stored_answers(place: Stand) -> int:
    try:
        return answers_in((await fetch("run", "pay", place.settings)).entries)
    except UserError:
        return 0  # It died before the first record.


async def spent_tokens(run: RunHandle) -> tuple[int, int]:
    spent = (await run.get()).step("pay").spent
    return spent.input_tokens, spent.output_tokens


@pytest.mark.parametrize("window", WINDOWS)
def test_a_killed_worker_repeats_no_stored_answer_of_a_sub_agent_and_no_payment(
    settings: Settings, tmp_path: Path, window: str
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path, family(lead=lead, clerk=clerk)) as place:
            run = await place.client.start(workflow(), "Pay both.", id="run")
            doomed = place.worker(window, "family_member", PAY_STEPS="30")
            assert await place.ended(doomed) == -9
            known, requested = await stored_answers(place), place.fake.count
            place.worker("", "family_member", PAY_STEPS="30")
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == "All is paid."
            assert place.fake.count - requested == ANSWERS - known
            assert sorted(paid["cents"] for paid in payments(place.ledger)) == [1, 2]
            assert not place.fake.failures
            assert [request.error for request in place.fake.requests if request.error] == []
            view = (await run.get()).step("pay")
            assert view.spent.tool_calls == 2 + 2
            assert await spent_tokens(run) == (10 * ANSWERS, 5 * ANSWERS)
            # The lead's answer; two rounds; the lead's last answer.
            assert view.iterations == 4

    asyncio.run(story())


def test_the_bound_of_the_agent_holds_over_its_sub_agents_and_a_kill(
    settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path, family(lead=lead, clerk=clerk)) as place:
            run = await place.client.start(workflow(), "Pay both.", id="run")
            doomed = place.worker("worker.settle-before=kill@2", "family_member", PAY_STEPS="4")
            assert await place.ended(doomed) == -9
            place.worker("", "family_member", PAY_STEPS="4")
            with pytest.raises(RunFailed) as caught:
                await asyncio.wait_for(run.result(), PATIENCE_S)
            assert caught.value.failure.type == "max_steps"
            # Of the two, one alone had the last turn.
            assert place.fake.count == 4
            assert await spent_tokens(run) == (40, 20)

    asyncio.run(story())


def test_the_last_iteration_of_the_step_closes_the_sub_agents_and_gives_the_last_answer(
    settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path, family(lead=lead, clerk=clerk)) as place:
            bounded = workflow(max_iterations=2, on_limit="wrap_up")
            run = await place.client.start(bounded, "Pay both.", id="run")
            place.worker("", "family_member", PAY_STEPS="30", PAY_WRAPS_UP="yes")
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == "All is paid."
            # The lead, a round of two clerks, and the lead's last answer.
            assert place.fake.count == 4
            results = place.fake.requests[3].tool_results
            assert all("stopped with max_steps" in each for each in results.values())

    asyncio.run(story())


def test_a_question_of_a_sub_agent_waits_without_a_worker_and_its_answer_reaches_it(
    settings: Settings, tmp_path: Path
) -> None:
    def asking(request: Any, n: int) -> Any:
        if "Pay 1." in str(request.messages[0]) and n == 0:
            return priced(tool_use("ask_human", {"question": "From which account?"}, "q"))
        return priced(text(str(request.tool_results)))

    async def story() -> None:
        async with stand(settings, tmp_path, family(lead=lead, clerk=asking)) as place:
            run = await place.client.start(workflow(), "Pay both.", id="run")
            first = place.worker("", "family_member", PAY_STEPS="30")
            async with asyncio.timeout(PATIENCE_S):
                while (view := await run.get()).status != "parked":
                    await asyncio.sleep(0.02)
            assert any("asks From which account?" in note.text for note in view.notes), view.notes
            first.kill()
            await place.ended(first)
            reply = {"call_id": "q", "verdict": "answer", "text": "None."}
            await run.send("pay", reply, kind="reply", id="astray")
            reply = {"call_id": "call1/q", "verdict": "answer", "text": "The blue one."}
            await run.send("pay", reply, kind="reply", id="answer")
            place.worker("", "family_member", PAY_STEPS="30")
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == "All is paid."
            said = [
                str(request.tool_results)
                for request in place.fake.requests
                if name_of(request) == "clerk" and request.tool_results
            ]
            assert said == ["{'q': 'The blue one.'}"]

    asyncio.run(story())


def test_cancelling_the_run_closes_the_sockets_of_all_sub_agents(
    settings: Settings, tmp_path: Path
) -> None:
    def stalling(request: Any, n: int) -> Any:
        return priced(text("a long answer"), fault=stall_after("content_block_delta"))

    async def story() -> None:
        async with stand(settings, tmp_path, family(lead=lead, clerk=stalling)) as place:
            run = await place.client.start(workflow(), "Pay both.", id="run")
            place.worker("", "family_member", PAY_STEPS="30")
            await asyncio.to_thread(place.fake.wait_arrived, 3, PATIENCE_S)
            at = time.monotonic()
            await run.cancel()
            for request in (2, 3):
                closed = await asyncio.to_thread(place.fake.wait_client_closed, request, 10)
                assert closed.client_closed_at is not None
                print("closed after", closed.client_closed_at - at)
            async with asyncio.timeout(PATIENCE_S):
                while (await run.get()).status != "cancelled":
                    await asyncio.sleep(0.02)
            assert place.fake.count == 3

    asyncio.run(story())
