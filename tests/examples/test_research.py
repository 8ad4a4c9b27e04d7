"""The research example on a real server: a lead, its sub-agents, and the budget they share.

Method: the example's worker as a process, a strict fake of the Messages API, a client that asks.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.nursery import agents

from treadle.sdk.client import Client, RunHandle
from treadle.sdk.errors import RunFailed
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "research.py"
MODEL = "TREADLE_RESEARCH_MODEL"
QUESTION = "Why did the mill burn down?"
TIMEOUT_S = 90
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * TIMEOUT_S)]
SOURCES = ("gazette-1887", "inquest-1887", "memoir-1921")


def role(request: RecordedRequest) -> str:
    offered = request.tool_names
    if "list_documents" in offered:
        return "lead"
    return "checker" if '"claim"' in str(request.messages[0]) else "reader"


def play(request: RecordedRequest) -> Turn:
    """Read all three documents at once, have the claim checked, report."""
    n = sum(message["role"] == "assistant" for message in request.messages)
    if role(request) != "lead":
        goal = str(request.messages[0])
        document = next(source for source in SOURCES if source in goal)
        if n == 0:
            return turn(tool_use("read_document", {"document": document}))
        return turn(text(f"It says: {next(iter(request.tool_results.values()))}"))
    claim = {"claim": "A dry bearing set the beams on fire.", "source": "inquest-1887"}
    report = {"answer": "A bearing ran dry.", "findings": [claim]}
    turns = [
        turn(tool_use("list_documents", {})),
        turn(
            *(tool_use("reader", {"task": f"{each}: why did it burn?"}, each) for each in SOURCES)
        ),
        turn(tool_use("checker", claim)),
        turn(tool_use("final_output", report)),
    ]
    return turns[n]


def researched(
    settings: Settings, log: Path, answer: Any = play
) -> tuple[Any, FakeAnthropic, RunHandle]:
    """Run the example with these answers of the model."""

    async def story(fake: FakeAnthropic) -> tuple[Any, Any]:
        given = {
            **os.environ,
            **fake.env,
            "TREADLE_NATS_URL": settings.url,
            "TREADLE_NAMESPACE": settings.namespace,
            MODEL: "anthropic:claude-test",
            "NO_PROXY": "127.0.0.1",
        }
        async with local(url=settings.url, namespace=settings.namespace) as client:
            process = agents().start(
                "treadle.cli", "worker", str(EXAMPLE), env=given, log=log, is_alone=True
            )
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    while not await is_registered(client):
                        await asyncio.sleep(0.02)
                    run = await client.start("research", QUESTION)
                    result = await run.result()
                    return result, await run.get()
            finally:
                process.terminate()
                process.wait(10)
                print(log.read_text())

    with FakeAnthropic(answer) as fake:
        result, view = asyncio.run(story(fake))
    assert [request.error for request in fake.requests if request.status != 200] == []
    return result, fake, view


async def is_registered(client: Client) -> bool:
    return "research" in await client.workflows()


def test_readers_work_side_by_side_and_the_report_rests_on_what_they_found(
    settings: Settings, tmp_path: Path
) -> None:
    result, fake, view = researched(settings, tmp_path / "log")
    assert result == {"answer": "A bearing ran dry.", "sources": ["inquest-1887"]}
    asked = [role(request) for request in fake.requests]
    assert (asked.count("lead"), asked.count("reader"), asked.count("checker")) == (4, 6, 2)
    lead = [request for request in fake.requests if role(request) == "lead"]
    assert set(lead[2].tool_results) == set(SOURCES)
    assert "had run dry for a week" in lead[2].tool_results["inquest-1887"]
    # The lead's four turns, two rounds of readers, two of the checker.
    step = view.step("research")
    assert step.iterations == 8
    # The list, four tasks handed on, four documents read.
    assert step.spent.tool_calls == 1 + 4 + 4


def test_a_reader_that_does_not_stop_is_ended_at_its_own_bound(
    settings: Settings, tmp_path: Path
) -> None:
    def endless(request: RecordedRequest) -> Turn:
        if role(request) == "reader" and "memoir" in str(request.messages[0]):
            if request.body.get("tool_choice") == {"type": "none"}:
                return turn(text("Only hearsay."))
            n = len(request.messages)
            return turn(tool_use("read_document", {"document": f"memoir-{n}"}))
        return play(request)

    result, fake, _ = researched(settings, tmp_path / "log", endless)
    assert result["answer"] == "A bearing ran dry."
    lead = [request for request in fake.requests if role(request) == "lead"]
    said = lead[2].tool_results["memoir-1921"]
    assert "Only hearsay." in said and "max_steps" in said


def test_a_run_that_hands_on_for_ever_ends_with_the_budget_of_all(
    settings: Settings, tmp_path: Path
) -> None:
    def endless(request: RecordedRequest) -> Turn:
        if role(request) != "lead":
            return play(request)
        n = len(request.messages)
        if (request.body.get("tool_choice") or {}).get("type") == "tool":
            return turn(tool_use("final_output", {"answer": "", "findings": []}))
        tasks = {each: f"{each}: question {n}" for each in SOURCES}
        return turn(*(tool_use("reader", {"task": task}) for task in tasks.values()))

    with pytest.raises(RunFailed) as caught:
        researched(settings, tmp_path / "log", endless)
    assert (caught.value.step, caught.value.failure.type) == ("research", "max_steps")


def test_without_the_name_of_a_model_the_worker_says_what_to_set() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "treadle.cli", "worker", str(EXAMPLE)],
        env={name: value for name, value in os.environ.items() if name != MODEL},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert f"{MODEL} is not set" in " ".join(done.stderr.split())


def test_the_example_run_by_python_says_how_to_try_it() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True
    )
    assert "treadle dev examples/research.py" in done.stdout
