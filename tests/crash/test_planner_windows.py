"""A run has one plan, whoever dies while it is made: in each window of it.

Real processes; the window is hit by a failpoint. The planner plans something else each time it is
executed, so a second plan that anybody believed would show in what is executed.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

from treadle.sdk import Workflow
from treadle.sdk.messages import Ended

pytestmark = pytest.mark.slow

WINDOWS = [
    # The verdict of the planner: taken, stored in its register, told to the document, driven.
    "engine.events-taken=kill@2",
    "engine.register-stored=kill@1",
    "engine.document-stored=kill@2",
    "engine.register-created=kill@2",
    "engine.register-created=kill@3",
    "engine.effects-driven=kill@2",
    "engine.before-ack=kill@2",
    # The verdict of the first step that was planned.
    "engine.register-stored=kill@2",
    "engine.document-stored=kill@3",
    "engine.before-ack=kill@3",
]


async def _one_plan(stage: Stage) -> None:
    """Assert that the run did what the one plan says that stands, all of it and nothing else."""
    await stage.ended()
    held = await stage.register("run", "plan", "plan")
    assert held is not None
    assert isinstance(held.register, Ended)
    plan = msgspec.json.decode(held.register.output)
    wanted = {f"plan--{step['id']}" for step in plan["steps"]}
    view = await stage.client.get("run")
    assert (view.status, {step.id for step in view.steps}) == ("completed", {"plan", *wanted})
    assert {each["step"] for each in stage.effects() if each["kind"] == "planned"} == wanted
    result = await stage.client.result("run")
    assert set(result.values()) == wanted


@pytest.mark.parametrize("window", WINDOWS)
def test_an_engine_that_dies_while_a_plan_is_taken_leaves_one_plan(play: Play, window: str) -> None:
    workflow = Workflow("w")
    workflow.planner("plan")

    async def story(stage: Stage) -> None:
        doomed = stage.engine(window)
        stage.worker()
        await stage.client.start(workflow, id="run")
        await doomed.died()
        stage.engine()
        await _one_plan(stage)

    play(story)


def test_two_engines_of_which_one_dies_come_to_one_plan(play: Play) -> None:
    workflow = Workflow("w")
    workflow.planner("plan")

    async def story(stage: Stage) -> None:
        doomed = stage.engine("engine.register-stored=kill@1")
        stage.worker()
        await stage.client.start(workflow, id="run")
        await doomed.died()
        stage.engine()
        stage.engine()
        await _one_plan(stage)

    play(story)


@pytest.mark.parametrize(
    "window", ["worker.settle-before=kill@1", "worker.settle-stored=kill@1", "worker.acked=kill@1"]
)
def test_a_worker_that_dies_while_it_plans_leaves_one_plan(play: Play, window: str) -> None:
    workflow = Workflow("w")
    workflow.planner("plan")

    async def story(stage: Stage) -> None:
        stage.engine()
        doomed = stage.worker(window)
        await stage.client.start(workflow, id="run")
        await doomed.died()
        stage.worker()
        await _one_plan(stage)

    play(story)


def test_a_server_that_dies_keeps_the_plan(play_alone: Play) -> None:
    workflow = Workflow("w")
    plan = workflow.planner("plan")
    workflow.wait_for_signal("go", after=plan)

    async def story(stage: Stage) -> None:
        stage.engine()
        stage.worker()
        run = await stage.client.start(workflow, id="run")
        await stage.until(
            "the plan is done",
            lambda: stage.client.get("run"),
            lambda view: view.step("go").status == "active",
        )
        await stage.kill_server()
        await run.signal("go", "done")
        assert await run.result(timeout_s=30) == "done"

    play_alone(story)
