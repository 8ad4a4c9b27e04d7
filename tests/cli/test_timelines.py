"""``treadle run timeline`` and ``treadle run diff`` over runs that took place.

A real server, an engine and a worker; the entry point once the runs have ended."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from tests.cli.conftest import Run
from tests.client.stage import Stage, chain, done, play, raw
from tests.engine.stand import Stand, loop, open_stand

from treadle.cli import differences, exits, output
from treadle.sdk import NonRetryable, Retry, Workflow
from treadle.sdk.approvals import rejection
from treadle.sdk.asks import Reply
from treadle.sdk.client.timeline.diffing import Cell, Difference, Row
from treadle.sdk.messages import (
    ChildEnded,
    EventMatched,
    MessageSent,
    PauseRequested,
    SignalReceived,
)
from treadle.sdk.run import StepEntry
from treadle.sdk.settings import Settings
from treadle.worker import LoopContext, TaskContext, Worker

FLOW = loop(loop_delay=0.05, retry=Retry(max_attempts=2, delay_s=0.05))


def counting() -> Worker:
    """Return a worker whose loop fails once at 1, waits at 2 and completes with its input."""
    worker = Worker("w")

    @worker.handler("link")
    async def count(ctx: LoopContext[Any]) -> Any:
        if ctx.iteration == 1 and ctx.attempt == 1:
            raise ValueError("not yet")
        if ctx.iteration == 2:
            return ctx.wait("a word")
        return ctx.complete(ctx.input) if ctx.iteration == 3 else ctx.continue_(ctx.run)

    return worker


def ran(settings: Settings, *runs: str) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(counting())
        for run in runs:
            handle = await stand.client.start(FLOW, None, id=run)
            await stand.status(run, "parked")
            await handle.send("loop", "go", id="m1")
            await handle.result(timeout_s=10)

    async def on_stand() -> None:
        async with open_stand(settings) as stand:
            await story(stand)

    asyncio.run(on_stand())


@pytest.mark.slow
def test_what_a_run_did_is_shown_in_order_and_compared_with_another(
    treadle: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(settings, "r1", "r2")
    spans = treadle("run", "timeline", "r1", "--json").lines
    assert [(span["kind"], span.get("outcome", "")) for span in spans] == [
        ("attempt", "continued"),
        ("pause", ""),
        ("attempt", "failed"),
        ("pause", ""),
        ("attempt", "continued"),
        ("pause", ""),
        ("attempt", "waiting"),
        ("wait", "steer m1"),
        ("attempt", "completed"),
    ]
    for one, next_ in pairwise(spans):
        assert one["end_ms"] == next_["begin_ms"], "no time is left out, and none is told twice"
    pauses = [span for span in spans if span["kind"] == "pause"]
    assert all(span["end_ms"] - span["begin_ms"] >= 40 for span in pauses)
    shown = treadle("run", "timeline", "r1").out
    assert "r1  one-loop  completed" in shown
    assert "iteration 1, attempt 2" in shown and "failed  ValueError: not yet" in shown
    assert "█" in shown and "░" in shown and "steer m1" in shown
    assert treadle("run", "timeline", "r1", "--step", "loop", "--json").lines == spans
    with monkeypatch.context() as patch:
        patch.setattr(output, "WIDTH_OFF_TERMINAL", 60)
        narrow = treadle("run", "timeline", "r1").out
    assert "█" not in narrow and "iteration 1, attempt 2" in narrow
    assert max(map(len, narrow.splitlines())) <= 72, "the last column wraps"

    found = treadle("run", "diff", "r1", "r2", "--json").json
    assert [row.get("changed", []) for row in found["rows"]] == [["output"], ["output"], [], []]
    assert "different" in treadle("run", "diff", "r1", "r2").out
    assert treadle("run", "diff", "r1", "r1").out.endswith("the same\n")
    told = treadle("run", "diff", "r1", "--iterations", "0", "1").out
    assert "r1#0" in told and "continued" in told and "attempts, failures" in told
    error = treadle("run", "diff", "r1", "--json", code=exits.USAGE).json["error"]
    assert "Give OTHER, or --iterations N M." in error["message"]
    treadle("run", "diff", "r1", "gone", code=exits.UNKNOWN)


@pytest.mark.slow
def test_a_retry_and_a_fork_are_compared_with_the_run_they_were_made_of(
    treadle: Run, settings: Settings
) -> None:
    workflow = Workflow("order")
    charge = workflow.task("charge")
    workflow.task("ship", after=[charge])
    worker, is_broken = Worker("w"), [True]

    @worker.handler("charge")
    async def charge_(ctx: TaskContext[Any]) -> str:
        return "charged"

    @worker.handler("ship")
    async def ship(ctx: TaskContext[Any]) -> Any:
        if is_broken.pop() if is_broken else False:
            raise NonRetryable("no van")
        return ctx.input

    async def story() -> None:
        async with open_stand(settings) as stand:
            await stand.engine()
            stand.worker(worker)
            run = await stand.client.start(workflow, {"n": 1}, id="r1")
            await stand.ended("r1")
            await (await run.retry()).result(timeout_s=10)
            fork = await run.fork(from_step="ship", input="else", id="r2")
            await fork.result(timeout_s=10)
            other = await run.fork(input={"n": 2}, id="r3")
            await other.result(timeout_s=10)

    asyncio.run(story())
    told = treadle("run", "diff", "r1", "r1-r1").out.splitlines()
    assert told[0] == "r1  order  failed  ship: NonRetryable: no van"
    assert told[1] == "r1-r1  order  completed  retry of r1"
    rows = {line.split()[0]: line for line in reversed(told[3:])}
    assert rows["charge"].endswith("taken over")
    assert rows["ship"].endswith("outcome, output, failures")
    found = treadle("run", "diff", "r1-r1", "r2", "--json").json
    assert [row.get("taken_over", "") for row in found["rows"]] == ["both", ""]
    assert (found["changed"], found["rows"][1]["changed"]) == ([], ["output"])
    assert "with another input" in treadle("run", "diff", "r1", "r2").out
    told = treadle("run", "diff", "r1-r1", "r3").out
    assert 'input  r1-r1  {"n":1}' in told and 'input  r3  {"n":2}' in told


@pytest.mark.slow
def test_a_step_that_is_not_there_is_an_error_and_not_the_same(
    treadle: Run, settings: Settings
) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        for run in ("r1", "r2"):
            await stage.document(run, definition=version, steps={"first": done()})

    play(settings, story)
    for arguments in (
        ("timeline", "r1"),
        ("diff", "r1", "r2"),
        ("diff", "r1", "--iterations", "0", "1"),
        ("logs", "r1"),
    ):
        error = treadle("run", *arguments, "--step", "no", "--json", code=exits.USAGE).json["error"]
        assert error["message"].startswith(
            "run 'r1' has no step 'no': workflow 'flow' has 'first', 'loop'."
        )
    told = treadle("run", "logs", "r1")
    assert told.out == "" and "no such line is kept" in told.err
    assert treadle("run", "logs", "r1", "--json").err == ""


def waiting_steps() -> Workflow[Any]:
    workflow = Workflow("waits")
    workflow.wait_for_signal("go", signal="go")
    workflow.wait_for_event("paid", "order.paid")
    workflow.sub_workflow("kid", chain())
    workflow.approval("gate", prompt="OK?")
    return workflow


def test_what_steps_that_no_worker_executes_were_given_is_compared(
    treadle: Run, settings: Settings
) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(waiting_steps())
        for run in ("r1", "r2"):
            payload, by = raw({"text": "a" * 80 + run}), f"ada of {run}"
            reply = Reply(call_id="gate", verdict="approve", by=by)
            events = {
                "go": SignalReceived(name="go", payload=payload),
                "paid": EventMatched(step="paid", published=1, request=1, payload=payload),
                "kid": ChildEnded(
                    step="kid", child=f"{run}-k", outcome="completed", output=raw(run)
                ),
                "gate": MessageSent(step="gate", id="m", kind="reply", payload=raw(reply)),
            }
            stored = {step: await stage.event(run, event) for step, event in events.items()}
            steps = {step: done(f"e{sequence}") for step, sequence in stored.items()}
            steps["kid"] = StepEntry("completed", 1, 1_000, 2_000, f"e{stored['kid']}", attempt=1)
            await stage.document(
                run, workflow="waits", definition=version, status="completed", steps=steps
            )
        no = Reply(call_id="gate", verdict="reject", by="bob", text="too dear")
        answer = MessageSent(step="gate", id="m", kind="reply", payload=raw(no))
        await stage.event("r3", PauseRequested(reason="the bank is closed"))
        gate = StepEntry("failed", 0, 1_000, 2_000, failure=rejection(answer))
        await stage.document("r3", workflow="waits", definition=version, steps={"gate": gate})

    play(settings, story)
    found = treadle("run", "diff", "r1", "r2", "--json").json
    assert [(row["step"], row["changed"]) for row in found["rows"]] == [
        (step, ["output"]) for step in ("go", "paid", "kid", "gate")
    ]
    told = treadle("run", "diff", "r1", "r2").out
    assert told.endswith("different\n") and 'aaar1"}' in told and 'aaar2"}' in told
    shown = treadle("run", "timeline", "r3").out
    assert "rejected by bob: too dear" in shown
    assert "paused" in shown and "the bank is closed" in shown


def test_long_texts_are_cut_around_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [
        Cell(outcome="failed", failures=(f"Boom: {'x' * 90} {side}",), output=raw("y" * 90 + side))
        for side in ("left", "right")
    ]
    row = Row(step="s", left=cells[0], right=cells[1], changed=("output", "failures"))
    differences.show(Difference(left="r1", right="r2", rows=(row,)))
    told = capsys.readouterr().out
    assert "…xxxxxxxxxxxxxxxxxxx left" in told and "…xxxxxxxxxxxxxxxxxxx right" in told
    assert 'yyyleft"' in told and 'yyyright"' in told
