"""Conditions, quorums, handled failures and sleeps on a real server, and the page about them.
Method: the page's own workflow with its worker; large outputs; a sleep over a restarted engine."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand
from tests.pages import program_of

from treadle.sdk import RunCancelled, RunFailed, Workflow
from treadle.sdk.messages import CancelRequested
from treadle.sdk.testing import simulate
from treadle.worker import TaskContext, Worker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "control-flow.md"
BIG = "x" * 50_000


def _block(fence: str, holding: str) -> dict[str, Any]:
    fenced = rf"^```{fence}\n(.*?)^```$"
    found = re.findall(fenced, PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = (each for each in found if holding in each)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, str(PAGE), "exec"), names)
    return names


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    return _block("python", 'Workflow("order"')


@pytest.fixture
def trip() -> dict[str, Any]:
    return _block("python run", 'Workflow("trip"')


def test_the_page_runs_as_one_program() -> None:
    asyncio.run(program_of("control-flow.md"))


@pytest.mark.parametrize(("cents", "taken"), [(-1, "refuse"), (500, "pay"), (20_000, "review")])
def test_the_choice_on_the_page_takes_each_of_its_branches(cents: int, taken: str) -> None:
    claim = _block("python run", 'Workflow("claim"')
    run = asyncio.run(simulate(claim["workflow"], {"cents": cents}, claim["worker"]))
    assert run.result() == taken
    paid = "skipped" if taken == "refuse" else "completed"
    assert (run.step("pay").status, run.step("file").status) == (paid, "completed")


@pytest.mark.parametrize(
    ("order", "result", "skipped"),
    [
        (
            {"total": 500, "gift": True},
            {"ship": "ship", "wrap": "wrap", "return-window": None},
            {"apologise"},
        ),
        (
            {"total": 5, "gift": False},
            {"ship": "ship", "wrap": None, "return-window": None},
            {"apologise", "ask-airline", "wrap"},
        ),
        (
            {"total": -1, "gift": True},
            "sorry: charge failed with nothing to charge",
            {"wrap", "ask-airline", "ask-haulier", "ship", "return-window", "close"},
        ),
    ],
    ids=["by-air", "by-road", "apologised"],
)
def test_the_page_runs(
    page: dict[str, Any], order: dict[str, Any], result: object, skipped: set[str]
) -> None:
    run = asyncio.run(simulate(page["workflow"], order, page["worker"]))
    assert run.result() == result
    steps = page["workflow"].build().steps
    assert {step.id for step in steps if run.step(step.id).status == "skipped"} == skipped


def test_an_engine_decides_the_same(play: Play, page: dict[str, Any]) -> None:
    workflow = page["workflow"]

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(page["worker"])
        await stand.client.start(workflow, {"total": -1, "gift": True}, id="r1")
        result = await stand.client.result("r1", timeout_s=15)
        assert result == "sorry: charge failed with nothing to charge"
        view = await stand.client.get("r1")
        assert (view.status, view.failure) == ("completed", None)
        assert view.step("charge").status == "failed"
        assert view.step("close").status == "skipped"

    play(story)


def test_what_is_too_large_for_a_task_is_referred_to_with_null_for_what_was_skipped(
    play: Play,
) -> None:
    workflow = Workflow("large")
    a = workflow.task("a", "big")
    b = workflow.task("b", "big", after=a, when='len(steps["a"]) > 1')
    c = workflow.task("c", "big", after=a, when='len(steps["a"]) < 1')
    nap = workflow.sleep("nap", 0.05, after=a)
    workflow.task("d", "sizes", after=[a, b, c, nap])
    worker = Worker()

    @worker.handler("big")
    async def big(ctx: TaskContext[Any]) -> str:
        return BIG

    @worker.handler("sizes")
    async def sizes(ctx: TaskContext[dict[str, str | None]]) -> dict[str, int | None]:
        return {step: None if value is None else len(value) for step, value in ctx.input.items()}

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        await stand.client.start(workflow, None, id="r1")
        found = await stand.client.result("r1", timeout_s=15)
        assert found == {"a": len(BIG), "b": len(BIG), "c": None, "nap": None}

    play(story)


def test_a_condition_that_cannot_be_asked_says_so(play: Play) -> None:
    workflow = Workflow("broken")
    workflow.task("a", when='input["n"] > 3')

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(workflow, {}, id="r1")
        with pytest.raises(RunFailed, match=r'input\["n"\] > 3 cannot be evaluated'):
            await stand.client.result("r1", timeout_s=15)

    play(story)


def test_a_sleep_outlives_the_engine_and_is_seen(play: Play) -> None:
    workflow = Workflow("naps")
    workflow.sleep("nap", 1.5)
    workflow.sleep("until", until=datetime.now(UTC) - timedelta(days=1), after="nap")

    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        await stand.client.start(workflow, None, id="r1")
        await stand.status("r1", "running")
        view = await stand.client.get("r1")
        assert (view.step("nap").doing, view.step("nap").kind) == ("sleeping", "sleep")
        assert view.step("nap").due_ms == view.step("nap").started_ms + 1_500
        told = await stand.client.explain("r1")
        assert "step 'nap' sleeps until" in str(told)
        await stand.stop(engine)
        await stand.engine()
        assert await stand.client.result("r1", timeout_s=15) is None

    play(story)


def test_a_trip_that_cannot_be_paid_is_undone(trip: dict[str, Any]) -> None:
    run = asyncio.run(simulate(trip["workflow"], None, trip["worker"]))
    with pytest.raises(RunFailed, match="the card was refused"):
        run.result()
    assert trip["undone"] == ["room-7", "flight-7"]


def test_a_run_undoes_what_has_completed_and_stops_what_has_not(play: Play) -> None:
    workflow = Workflow("undoes")
    workflow.task("book", compensate="unbook")
    workflow.task("stay", after="book")
    workflow.task("unbook")
    worker = Worker()
    go_on = asyncio.Event()
    stopped: list[bool] = []

    @worker.handler("book")
    async def book(ctx: TaskContext[Any]) -> str:
        return BIG + BIG

    @worker.handler("stay")
    async def stay(ctx: TaskContext[Any]) -> None:
        try:
            await asyncio.sleep(30)
        finally:
            stopped.append(ctx.cancelled.is_set())

    @worker.handler("unbook")
    async def unbook(ctx: TaskContext[str]) -> int:
        await go_on.wait()
        return len(ctx.input)

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        await stand.client.start(workflow, None, id="r1")
        await stand.until(
            "it stays",
            lambda: stand.client.get("r1"),
            lambda view: view.step("stay").status == "active",
        )
        await stand.client.cancel("r1", "changed my mind")
        view = await stand.until(
            "it undoes",
            lambda: stand.client.get("r1"),
            lambda view: view.step("unbook").status == "active",
        )
        assert (view.status, view.step("stay").status) == ("running", "cancelled")
        told = await stand.client.explain("r1")
        assert "undoes what has completed, and ends cancelled then" in str(told.reasons)
        assert not told.is_stuck
        go_on.set()
        with pytest.raises(RunCancelled, match="changed my mind"):
            await stand.client.result("r1", timeout_s=15)
        assert (await stand.client.get("r1")).step("unbook").status == "completed"
        assert stopped == [True]

    play(story)


def test_a_second_cancel_takes_nothing_back_unless_it_says_now(play: Play) -> None:
    workflow = Workflow("hurried")
    workflow.task("book", "quick", compensate="unbook")
    workflow.wait_for_signal("never", after="book")
    workflow.task("unbook", "nobody-serves-this")
    worker = Worker()

    @worker.handler("quick")
    async def quick(ctx: TaskContext[Any]) -> str:
        return "done"

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        await stand.client.start(workflow, None, id="r1")
        for status in ("waiting", "active"):
            await stand.until(
                f"unbook is {status}",
                lambda: stand.client.get("r1"),
                lambda view, status=status: (
                    view.step("book").status == "completed" and view.step("unbook").status == status
                ),
            )
            is_asked = await stand.client.cancel("r1")
            assert is_asked is (status == "waiting")
        report = await stand.client.bulk.cancel(workflow="hurried")
        assert report.counts == {"unchanged": 1}
        # As two clients that ask at the same moment do: it is stored after all.
        await stand.publish(CancelRequested(reason="me too"), "r1")
        assert await stand.client.cancel("r1", "leave it", now=True)
        with pytest.raises(RunCancelled, match="leave it"):
            await stand.client.result("r1", timeout_s=15)
        assert (await stand.client.get("r1")).step("unbook").status == "cancelled"

    play(story)
