"""A loop that follows its workflow takes a newer version once, and never goes back, whoever dies.

Real processes; the window is hit by a failpoint. The audit counts the iterations; from every value
of the register that was stored the test reads under which version each was.
"""

from __future__ import annotations

import pytest
from tests.crash.chain import TASK_TYPE
from tests.crash.conftest import Play
from tests.crash.namespace import task_of
from tests.crash.stage import Stage

from treadle.sdk import Workflow, WorkflowDefinition
from treadle.sdk.definition import content_hash
from treadle.sdk.messages import Ended

pytestmark = pytest.mark.slow

ITERATIONS = 5


def version(most: int) -> WorkflowDefinition:
    workflow = Workflow("chain", version_policy="latest")
    workflow.agent_loop("loop", TASK_TYPE, max_iterations=most)
    return workflow.build()


@pytest.mark.parametrize(
    "window",
    [
        "engine.events-taken=kill@1",
        "engine.register-stored=kill@1",
        "engine.before-ack=kill@1",
        "engine.register-stored=kill@2",
    ],
)
def test_a_newer_version_is_taken_once_although_the_engine_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        old, new = version(100), version(200)
        first = stage.engine()
        stage.worker()
        await stage.start(workflow=old, iterations=ITERATIONS, wait_at=1)
        await stage.begun(2)
        await stage.settled()
        first.kill()
        await stage.client.register(new)
        doomed = stage.engine(window)
        stage.open_gate()
        await doomed.died()
        stage.engine()
        await stage.ended()
        found = await stage.recorder.collect()
        registers = [kept.register for kept in found.registers["run", "loop"]]
        tasks = [task_of(each) for each in registers if not isinstance(each, Ended)]
        under = dict.fromkeys((task.iteration, task.definition) for task in tasks)
        expected = [content_hash(old)] * 2 + [content_hash(new)] * (ITERATIONS - 2)
        assert list(under) == list(enumerate(expected)), "each iteration is under one version"
        assert {task.max_iterations for task in tasks} == {100, 200}

    play(story)
