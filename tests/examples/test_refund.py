"""The refund investigation on a real server, by what becomes of what the model proposes.

Method: the example's worker as a process, a strict fake of the Messages API, a client that asks.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.nursery import agents

from treadle.sdk.client import Client, RunHandle
from treadle.sdk.errors import RunFailed
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker.agent.testing import Block, FakeAnthropic, Turn, tool_use, turn

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "refund.py"
MODEL = "TREADLE_REFUND_MODEL"
TIMEOUT_S = 30
INPUT = {"order_id": "O-104", "complaint": "It came three weeks late."}

Play = Callable[[RunHandle], Awaitable[Any]]


def read(name: str, order_id: str = "O-104") -> Block:
    return tool_use(name, {"order_id": order_id})


def recommend(decision: str = "refund", cents: int = 4_900) -> Turn:
    given = {"order_id": "O-104", "decision": decision, "amount_cents": cents}
    return turn(tool_use("final_output", {**given, "reasons": ["It was 21 days late."]}, id="end"))


EVIDENCE = [
    turn(read("read_order"), read("read_delivery_status")),
    turn(tool_use("search_refund_policy", {"words": "late delivery"})),
]


def environment(**changes: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != MODEL}
    return {**kept, **changes}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():
            await asyncio.sleep(0.02)


def investigated(
    settings: Settings, log: Path, turns: Sequence[Turn], play: Play | None = None
) -> tuple[Any, FakeAnthropic]:
    """Run one investigation with these answers of the model; return the result, and the fake."""

    async def story(fake: FakeAnthropic) -> Any:
        given = environment(
            **fake.env,
            TREADLE_NATS_URL=settings.url,
            TREADLE_NAMESPACE=settings.namespace,
            TREADLE_REFUND_MODEL="anthropic:claude-test",
            NO_PROXY="127.0.0.1",
        )
        async with local(url=settings.url, namespace=settings.namespace) as client:
            process = agents().start(
                "treadle.cli", "worker", str(EXAMPLE), env=given, log=log, is_alone=True
            )
            try:
                await until(lambda: is_registered(client))
                run = await client.start("refund-investigation", INPUT)
                async with asyncio.timeout(TIMEOUT_S):
                    return await (play(run) if play else run.result())
            finally:
                process.terminate()
                process.wait(10)
                print(log.read_text())

    with FakeAnthropic(turns) as fake:
        result = asyncio.run(story(fake))
    assert [request.error for request in fake.requests if request.status != 200] == []
    return result, fake


async def is_registered(client: Client) -> bool:
    return "refund-investigation" in await client.workflows()


def test_an_investigation_with_evidence_recommends_and_pays_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    result, fake = investigated(settings, tmp_path / "log", [*EVIDENCE, recommend()])
    assert (result["queue"], result["amount_cents"]) == ("refund-approval", 4_900)
    offered = set(fake.requests[0].tool_names)
    assert {"read_order", "read_delivery_status", "search_refund_policy"} <= offered
    assert not offered & {"issue_refund", "change_payment_method", "update_policy"}
    assert "O-104" in fake.requests[0].last_text
    assert "desk lamp" in str(fake.requests[1].tool_results)


def test_a_forbidden_action_is_refused_and_the_investigation_goes_on(
    settings: Settings, tmp_path: Path
) -> None:
    pay = turn(tool_use("issue_refund", {"order_id": "O-104"}, id="pay"))
    result, fake = investigated(settings, tmp_path / "log", [pay, *EVIDENCE, recommend()])
    assert "forbidden" in str(fake.requests[1].tool_results["pay"])
    assert result["queue"] == "refund-approval"


def test_an_agent_that_insists_on_a_forbidden_action_is_stopped(
    settings: Settings, tmp_path: Path
) -> None:
    names = ("issue_refund", "update_policy", "change_payment_method")
    turns = [turn(tool_use(name, {"order_id": "O-104"})) for name in names]
    with pytest.raises(RunFailed) as caught:
        investigated(settings, tmp_path / "log", turns)
    assert (caught.value.step, caught.value.failure.type) == ("investigate", "policy_blocked")


def test_a_claim_without_evidence_is_not_accepted(settings: Settings, tmp_path: Path) -> None:
    turns = [recommend(), *EVIDENCE, recommend(cents=490_000), recommend()]
    result, fake = investigated(settings, tmp_path / "log", turns)
    assert "read_order, read_delivery_status, search_refund_policy found nothing" in str(
        fake.requests[1].tool_results["end"]
    )
    # What was read does not make every claim true.
    assert "4900 at most" in str(fake.requests[4].tool_results)
    assert result["amount_cents"] == 4_900


def test_a_reading_that_found_nothing_is_no_evidence(settings: Settings, tmp_path: Path) -> None:
    astray = turn(read("read_order", "O-401"), read("read_delivery_status", "O-401"))
    turns = [astray, recommend(), recommend("evidence_missing", 0)]
    result, fake = investigated(settings, tmp_path / "log", turns)
    assert "no order 'O-401'" in str(fake.requests[1].tool_results)
    assert "read_order" in str(fake.requests[2].tool_results)
    assert (result["queue"], result["decision"]) == ("customer-service", "evidence_missing")


def test_a_question_waits_for_its_answer(settings: Settings, tmp_path: Path) -> None:
    question = {"question": "Was the parcel left with a neighbour?"}
    turns = [turn(tool_use("ask_human", question, id="ask")), *EVIDENCE, recommend()]

    async def play(run: RunHandle) -> Any:
        async def is_parked() -> bool:
            return (await run.get()).status == "parked"

        await until(is_parked)
        answer = {"call_id": "ask", "verdict": "answer", "text": "No, it came to my door."}
        await run.send("investigate", answer, kind="reply", id="answer-1")
        return await run.result()

    result, fake = investigated(settings, tmp_path / "log", turns, play)
    assert fake.requests[1].tool_results == {"ask": "No, it came to my door."}
    assert result["queue"] == "refund-approval"


def test_without_the_name_of_a_model_the_worker_says_what_to_set() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "treadle.cli", "worker", str(EXAMPLE)],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    said = " ".join(done.stderr.split())
    assert f"{MODEL} is not set" in said and "anthropic:NAME" in said
    assert "Traceback" not in said


def test_the_example_run_by_python_says_how_to_try_it() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "treadle dev examples/refund.py" in done.stdout
