"""Every option of every kind of step is asked for by what runs that kind: none does nothing.
Method: runs with a step of each kind on a real server, with engine, worker and gateway in this
process; each read of a field is noted with the kind of step that it was read of."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, get_args

import msgspec
import pytest
from tests.gateway.stage import Stage, open_stage

from treadle.sdk import Retry, RunFailed, Workflow
from treadle.sdk.client import Http
from treadle.sdk.definition import Step, WorkflowDefinition
from treadle.sdk.flow import Concurrency, RateLimit
from treadle.sdk.settings import Settings
from treadle.worker import LoopContext, TaskContext, Worker

KINDS: tuple[type[Any], ...] = get_args(Step)
#: Where an option is written down or judged, not done.
DECLARING = frozenset(
    (
        *("builder.py", "building.py", "definition.py", "graph.py", "schema.py"),
        *("structure.py", "validation.py"),
    )
)
#: What is asked of a step there by those who run it.
ASKING = frozenset(("wakes_ms", "expires_ms"))
LIMITED: dict[str, Any] = {
    "concurrency": Concurrency(5),
    "rate_limits": RateLimit(100, 1.0),
    "priority": "7",
    "fair_by": '"all"',
    "weights": {"all": 2.0},
}


class Reads(set[tuple[str, str]]):
    """Which options were read, each with the kind of step."""

    def note(self, kind: str, name: str, by: CodeType) -> None:
        path = Path(by.co_filename)
        is_declaring = path.name in DECLARING or "_check" in path.name
        if "treadle" in path.parts and (not is_declaring or by.co_name in ASKING):
            self.add((kind, name))


@pytest.fixture
def reads() -> Iterator[Reads]:
    found = Reads()

    def noting(step: Any, name: str) -> Any:
        value = object.__getattribute__(step, name)
        if not name.startswith("_"):
            found.note(type(step).__name__, name, sys._getframe(1).f_code)
        return value

    for kind in KINDS:
        kind.__getattribute__ = noting
    yield found
    for kind in KINDS:
        del kind.__getattribute__


def flow() -> WorkflowDefinition:
    """A workflow of every kind of step; what is only asked when it happens, happens."""
    workflow = Workflow[Any]("all")
    schemas: dict[str, Any] = {"input": {}, "output": {}}
    workflow.task("task", "echo", **schemas, **LIMITED)
    workflow.task("failing", "break", on_failure="told")
    workflow.task("told", "echo")
    workflow.planner("planner", "plan")
    workflow.planner("too-deep", "plan-planners", on_failure="told-too")
    workflow.task("told-too", "echo")
    again = Retry(max_attempts=2, delay_s=0.01)
    workflow.agent_loop("loop", "loop", max_iterations=3, retry=again, **schemas, **LIMITED)
    workflow.agent_loop("endless", "endless", max_iterations=1, on_failure="told-last")
    workflow.task("told-last", "echo")
    signal = workflow.wait_for_signal("signal", timeout=0.05, on_timeout="complete")
    event = workflow.wait_for_event("event", "e", match="true", timeout=0.05, on_timeout="complete")
    asked = workflow.approval("approval", timeout=20, on_timeout="complete")
    workflow.approval("unanswered", timeout=0.05, on_timeout="complete")
    workflow.choice("choice", {"a": "true"}, default="b")
    workflow.respond("respond", after=[signal, event])
    workflow.map("map", "item", over="items", **LIMITED)
    workflow.map("flaky", "break", over="items", on_failure="told-most")
    workflow.task("told-most", "echo")
    workflow.sub_workflow("sub", "child", after=asked)
    workflow.sub_workflow("broken", "broken", on_failure="told-less")
    workflow.task("told-less", "echo")
    for name, how in (("sleep", {"duration": 0.01}), ("until", {"until": "2020-01-01T00:00:00Z"})):
        workflow.sleep(name, **how)
    workflow.sleep("told-when", expression="0.01")
    definition = workflow.build()
    steps = [_limited(each) if each.id == "planner" else each for each in definition.steps]
    return msgspec.structs.replace(definition, steps=tuple(steps))


def _limited(step: Step) -> Step:
    """Return a planner under limits, as a document may have it."""
    limits = {name: LIMITED[name] for name in ("priority", "fair_by", "weights")}
    concurrency, rate_limits = (LIMITED["concurrency"],), (LIMITED["rate_limits"],)
    return msgspec.structs.replace(
        step, concurrency=concurrency, rate_limits=rate_limits, input_schema={}, **limits
    )


def working() -> Worker:
    worker = Worker()

    @worker.handler("echo")
    @worker.handler("item")
    async def echo(ctx: TaskContext[Any]) -> Any:
        return 1

    @worker.handler("break")
    async def break_(ctx: TaskContext[Any]) -> None:
        raise ValueError("broken")

    @worker.handler("plan")
    async def plan(ctx: TaskContext[Any]) -> Any:
        return {"steps": []}

    @worker.handler("plan-planners")
    async def plan_planners(ctx: TaskContext[Any]) -> Any:
        return {"steps": [{"kind": "planner", "id": "p", "type": "plan"}]}

    @worker.handler("loop")
    async def loop(ctx: LoopContext[Any]) -> Any:
        if ctx.attempt == 1 and ctx.iteration:
            raise ValueError("once")
        return ctx.complete() if ctx.iteration else ctx.continue_()

    @worker.handler("endless")
    async def endless(ctx: LoopContext[Any]) -> Any:
        return ctx.continue_()

    return worker


@pytest.mark.slow
def test_every_option_of_every_kind_of_step_is_asked_for(settings: Settings, reads: Reads) -> None:
    child, broken, sleeper = Workflow("child"), Workflow("broken"), Workflow("sleeper")
    child.task("step", "echo")
    broken.task("step", "break")
    sleeper.sleep("until-leap-day", cron="0 0 29 2 *", zone="Europe/Rome")

    async def story(stage: Stage) -> None:
        for each in (child, broken):
            await stage.client.register(each)
        await stage.client.triggers.create("ask", flow(), Http())
        told = await stage.post("/api/ask", {"items": [1, 2]})
        run = told.headers["treadle-run-id"]
        await stage.until("it is asked", stage.client.approvals, bool)
        await stage.client.approve(run, "approval", "approval", by="me")
        ended = await stage.ended(run)
        assert ended.status == "completed"
        run = (await stage.client.start(sleeper)).id
        await stage.until(
            "it sleeps", lambda: stage.document(run), lambda it: it is not None and bool(it.steps)
        )
        await stage.client.cancel(run)
        # A run that is undone asks for what undoes each step.
        undone = Workflow("undone")
        undone.task("last", "break", after=undone.task("first", "echo"))
        with pytest.raises(RunFailed):
            await (await stage.client.start(undone)).result(timeout_s=10)

    async def on_stage() -> None:
        async with open_stage(settings, working()) as stage:
            await story(stage)

    asyncio.run(on_stage())
    declared = {(kind.__name__, name) for kind in KINDS for name in kind.__struct_fields__}
    assert sorted(declared - reads) == [], "an option that nobody asks for does nothing"
