"""The server is killed with -9 while an engine or a worker stands in one exact window.

The process stops itself there by a failpoint; the server dies and returns on its store; the
process goes on as if nothing had happened. Then the audit walks the whole history.
"""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

pytestmark = pytest.mark.slow

ITERATIONS = 4


@pytest.mark.parametrize(
    "window",
    [
        "worker.received",
        "worker.checkpoint-before",
        "worker.checkpoint-stored",
        "worker.settle-before",
        "worker.settle-stored",
        "worker.acked",
    ],
)
def test_a_loop_survives_the_server_killed_while_its_worker_is_at(
    play_alone: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        worker = stage.worker(f"{window}=stop@2")
        await stage.start(iterations=ITERATIONS)
        await worker.stopped()
        await stage.kill_server()
        worker.go_on()
        await stage.ended()

    play_alone(story)


@pytest.mark.parametrize(
    "window",
    [
        "engine.events-taken=stop@3",
        "engine.document-stored=stop@1",
        "engine.register-stored=stop@2",
        "engine.document-stored=stop@2",
        "engine.effects-driven=stop@1",
        "engine.before-ack=stop@3",
    ],
)
def test_a_loop_survives_the_server_killed_while_its_engine_is_at(
    play_alone: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        engine = stage.engine(window)
        stage.worker()
        await stage.start(iterations=ITERATIONS)
        await engine.stopped()
        await stage.kill_server()
        engine.go_on()
        await stage.ended()

    play_alone(story)


def test_twenty_loops_survive_a_server_killed_five_times(play_alone: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        stage.engine()
        stage.worker()
        stage.worker()
        for number in range(20):
            await stage.start(f"run{number}", iterations=10, work_ms=20)
        for killed in range(5):
            await stage.reached(killed, f"run{killed}")
            await stage.kill_server()
        for number in range(20):
            await stage.ended(f"run{number}")
        await stage.settled()

    play_alone(story)
