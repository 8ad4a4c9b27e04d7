"""A task has the metadata of its run and of its step, through all that becomes of it.
Method: first tasks of every kind of step, and simulated runs that fail, iterate and map."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.core.walks import RunWalk, plan_of

from treadle.engine.core.effects import first_task
from treadle.sdk import Retry, Workflow
from treadle.sdk.definition import AgentLoopStep, MapStep, Step, TaskStep
from treadle.sdk.errors import InvalidPayload
from treadle.sdk.messages import Inline, MapChunk, Task
from treadle.sdk.subjects import chunk_id
from treadle.sdk.testing import simulate
from treadle.sdk.versions import under
from treadle.worker import LoopContext, SyncTaskContext, TaskContext, Worker

IN = Inline(msgspec.Raw(b"null"))
OF_RUN = {"customer": "acme", "amount": 3}
OF_STEP = {"team": "north"}


def _task(step: Step, name: str = "a", of_run: dict[str, Any] | None = None) -> Task:
    walk = RunWalk(plan_of(step))
    run = msgspec.structs.replace(walk.run, metadata=of_run or {})
    chunk = MapChunk(first=0, count=1) if isinstance(step, MapStep) else None
    return first_task(walk.plan, run, walk.plan.work(name), IN, chunk)


@pytest.mark.parametrize(
    ("step", "name"),
    [
        (TaskStep(id="a", type="t", metadata=OF_STEP), "a"),
        (AgentLoopStep(id="a", type="t", max_iterations=2, metadata=OF_STEP), "a"),
        (MapStep(id="a", type="t", metadata=OF_STEP), chunk_id("a", 0)),
    ],
)
def test_each_first_task_has_that_of_its_run_and_of_its_step(step: Step, name: str) -> None:
    task = _task(step, name, OF_RUN)
    assert (task.metadata, task.step_metadata) == (OF_RUN, OF_STEP)
    stored = msgspec.json.decode(msgspec.json.encode(task), type=Task)
    assert (stored.metadata, stored.step_metadata) == (OF_RUN, OF_STEP)


def test_an_iteration_under_another_version_has_the_texts_of_that_one() -> None:
    old = AgentLoopStep(id="a", type="t", max_iterations=2, metadata=OF_STEP)
    new = msgspec.structs.replace(old, metadata={"team": "south"})
    task = under(_task(old, of_run=OF_RUN), old, new, "v2")
    assert (task.metadata, task.step_metadata) == (OF_RUN, {"team": "south"})


def test_a_task_without_any_has_no_byte_for_it() -> None:
    assert b"metadata" not in msgspec.json.encode(_task(TaskStep(id="a", type="t")))


def test_every_attempt_iteration_and_item_reads_the_same() -> None:
    seen: list[tuple[Any, Any]] = []
    workflow, worker = Workflow("w", input=list), Worker()
    again = Retry(max_attempts=2, delay_s=60)
    a = workflow.map("a", "item", metadata={"team": "a"}, retry=again)
    b = workflow.agent_loop("b", max_iterations=3, loop_delay=60, metadata={"team": "b"}, after=a)
    workflow.task("c", after=b)

    @worker.handler("item")
    def item(ctx: SyncTaskContext[int]) -> None:
        seen.append((dict(ctx.metadata), dict(ctx.step_metadata)))
        if ctx.attempt == 1:
            raise ValueError("again")

    @worker.handler("b")
    async def loop(ctx: LoopContext[Any]) -> Any:
        seen.append((dict(ctx.metadata), dict(ctx.step_metadata)))
        return ctx.continue_() if ctx.iteration < 2 else ctx.complete()

    @worker.handler("c")
    async def last(ctx: TaskContext[Any]) -> None:
        seen.append((dict(ctx.metadata), dict(ctx.step_metadata)))
        with pytest.raises(TypeError):
            ctx.metadata["customer"] = "b"  # type: ignore[index]
        with pytest.raises(TypeError):
            ctx.step_metadata["team"] = "b"  # type: ignore[index]

    at = datetime(2027, 1, 31, 9, tzinfo=UTC)
    run = asyncio.run(simulate(workflow, [1], worker, metadata={"n": 1, "at": at}))
    assert run.status == "completed"
    of_run = {"n": 1, "at": "2027-01-31T09:00:00.000000Z"}
    teams: list[dict[str, str]] = [{"team": "a"}] * 2 + [{"team": "b"}] * 3 + [{}]
    assert seen == [(of_run, team) for team in teams]


def test_a_simulated_run_refuses_what_a_client_refuses() -> None:
    workflow = Workflow("w")
    workflow.sleep("nap", 1)
    with pytest.raises(InvalidPayload, match="values are texts, numbers, bools and times"):
        asyncio.run(simulate(workflow, metadata={"a": []}))  # type: ignore[dict-item]
