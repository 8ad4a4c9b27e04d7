"""Right and wrong uses of the builder, for the type checkers; never run.

Each wrong use carries the error both checkers must find there. A marker that marks nothing is an
error itself, so this file is clean exactly when every wrong use is one.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from datetime import timedelta
from typing import Any, assert_type

import msgspec

from treadle.sdk import Retry, StepRef, Workflow, WorkflowDefinition


class Diff(msgspec.Struct):
    repo: str


def right_uses() -> None:
    workflow = Workflow("code-review", input=Diff, timeout=timedelta(hours=1))
    assert_type(workflow, Workflow[Diff])
    fetch = workflow.task("fetch", "fetch-diff", retry=Retry(max_attempts=5), timeout=30)
    assert_type(fetch, StepRef)
    review = workflow.agent_loop(
        "review",
        "llm-review",
        after=[fetch],
        max_iterations=10,
        max_duration=timedelta(minutes=5),
        loop_delay=0.5,
        on_limit="wrap_up",
    )
    approved = workflow.wait_for_signal("approved", after=review, timeout=timedelta(days=2))
    workflow.task("publish", after=[fetch, "review", approved])
    workflow.task("notify", after="publish")
    workflow.task("audit", after=(fetch, review))
    workflow.task("clean", after={fetch, review})
    assert_type(workflow.build(), WorkflowDefinition)
    assert_type(Workflow("no-input"), Workflow[Any])
    assert_type(Workflow("mapping", input=dict[str, int]), Workflow[dict[str, int]])


def wrong_uses(workflow: Workflow[Diff], definition: WorkflowDefinition) -> None:
    workflow.map("a", max_parallel="3")  # type: ignore[arg-type]
    workflow.map("a", tolerated_failures=0.5)  # type: ignore[arg-type]
    workflow.map("a", "t", "items")  # type: ignore[call-arg]
    workflow.agent_loop("a")  # type: ignore[call-arg]
    workflow.agent_loop("a", max_iterations=None)  # type: ignore[arg-type]
    workflow.agent_loop("a", max_iterations="10")  # type: ignore[arg-type]
    workflow.agent_loop("a", max_iterations=2.5)  # type: ignore[arg-type]
    workflow.agent_loop("a", max_iterations=1, on_limit="stop")  # type: ignore[arg-type]
    workflow.agent_loop("a", max_iterations=1, loop_delay="1s")  # type: ignore[arg-type]
    workflow.agent_loop("a", "t", 10)  # type: ignore[call-arg]
    workflow.task(5)  # type: ignore[arg-type]
    workflow.task("a", timeout="5m")  # type: ignore[arg-type]
    workflow.task("a", timeout_s=5)  # type: ignore[call-arg]
    workflow.task("a", retry=3)  # type: ignore[arg-type]
    workflow.task("a", after=[5])  # type: ignore[list-item]
    workflow.task("a", after=5)  # type: ignore[arg-type]
    workflow.task("a", after=[workflow])  # type: ignore[list-item]
    workflow.task("a", max_iterations=5)  # type: ignore[call-arg]
    workflow.wait_for_signal("a", signal=5)  # type: ignore[arg-type]
    Workflow()  # type: ignore[call-arg]
    Workflow("w", input=Diff("r"))  # type: ignore[arg-type]
    Retry(backoff="expo")  # type: ignore[arg-type]
    Retry(attempts=3)  # type: ignore[call-arg]
    definition.name = "other"  # type: ignore[misc]
