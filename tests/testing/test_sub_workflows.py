"""Steps that start runs, played in memory: results, failures, cancels, signals to what is below.
Method: whole simulated runs of several workflows, each judged by what it is at its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.sdk import Retry, RunConflict, RunFailed, UserError, Workflow
from treadle.sdk.testing import Signal, SimulatedRun, simulate
from treadle.worker import TaskContext, Worker

CALLS: list[object] = []


def worker() -> Worker:
    made = Worker()
    CALLS.clear()

    @made.handler("double")
    async def double(ctx: TaskContext[int]) -> int:
        CALLS.append(ctx.input)
        if len(CALLS) < 3 and ctx.input == 13:
            raise ValueError("unlucky")
        return ctx.input * 2

    return made


def child() -> Workflow[Any]:
    workflow = Workflow("child", input=int)
    workflow.task("double")
    return workflow


def waiting(timeout: float = 0) -> Workflow[Any]:
    workflow = Workflow("child")
    workflow.wait_for_signal("go", timeout=timeout)
    return workflow


def parent(**step: Any) -> Workflow[Any]:
    workflow = Workflow("parent")
    workflow.sub_workflow("sub", "child", **step)
    return workflow


def played(workflow: Workflow[Any], *others: Workflow[Any], **options: Any) -> SimulatedRun:
    options.setdefault("input", 21)
    return asyncio.run(simulate(workflow, worker=worker(), workflows=others, **options))


def test_a_step_completes_with_the_result_of_its_run() -> None:
    run = played(parent(), child())
    assert run.result() == 42
    below = run.child("sub")
    assert (below.status, below.result(), below.step("double").output) == ("completed", 42, 42)
    assert below.id.startswith("simulated-sub-")


def test_a_detached_run_is_played_to_its_end_and_not_waited_for() -> None:
    run = played(parent(detached=True), waiting(), signals=[Signal("go", 7, 60, child="sub")])
    assert run.result() == {"run_id": run.child("sub").id}
    assert run.elapsed_s == 0
    assert run.child("sub").result() == 7


def test_a_failed_run_is_started_again_and_the_last_one_counts() -> None:
    retry = Retry(max_attempts=3, delay_s=5, jitter=0, backoff="fixed")
    run = played(parent(retry=retry), child(), input=13)
    assert (run.result(), run.elapsed_s) == (26, 10)
    assert run.child("sub").status == "completed"


def test_a_failed_run_fails_the_step_with_its_cause() -> None:
    run = played(parent(), child(), input=13)
    with pytest.raises(RunFailed, match="failed in step 'double': ValueError: unlucky"):
        run.result()


def test_a_run_that_waits_says_so_through_its_parent() -> None:
    run = played(parent(), waiting())
    with pytest.raises(RunConflict, match="step 'sub' waits for a run of which step 'go' waits"):
        run.result()


def test_a_cancel_reaches_the_runs_below() -> None:
    middle = Workflow("middle")
    middle.sub_workflow("below", "child")
    top = Workflow("top")
    top.sub_workflow("middle")
    run = played(top, middle, waiting(), cancel_after_s=5)
    assert run.status == "cancelled"
    assert run.child("middle").status == "cancelled"
    assert run.child("middle").child("below").status == "cancelled"


def test_the_life_of_a_run_is_bounded_by_its_step() -> None:
    run = played(parent(timeout=60), waiting())
    assert (run.status, run.reason, run.elapsed_s) == ("failed", "timeout", 60)


def test_what_cannot_be_started_fails_the_step() -> None:
    assert played(parent()).reason == "unknown_workflow"
    assert played(parent(), child(), input=[]).reason == "InvalidPayload"
    again = Workflow("again")
    again.sub_workflow("again")
    assert "too_deeply_nested" in played(again).message


def test_a_signal_to_a_run_that_is_not_there_is_a_mistake_of_the_test() -> None:
    with pytest.raises(UserError, match="no run is started by step 'sub/below'"):
        played(parent(), waiting(), signals=[Signal("go", child="sub/below")])
