"""What ``treadle explain`` says of a run while an engine or a worker is in one exact window.

Real processes that a failpoint or a signal stops or kills; they go on, and every run ends well.
"""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

from treadle.cli.doctor_checks import examine
from treadle.sdk.client import Explanation
from treadle.sdk.client.explain import hearing

pytestmark = pytest.mark.slow

RUN = "run"


@pytest.fixture
def message_ids() -> bool:
    """Nothing here depends on message ids."""
    return True


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stands still is waited for half as long."""
    monkeypatch.setattr(hearing, "SILENT_S", 1.5)


async def explained(stage: Stage, kind: str, run: str = RUN) -> Explanation:
    """Ask until the main reason is of this kind."""
    return await stage.until(
        f"{run} is explained by {kind}",
        lambda: stage.client.explain(run),
        lambda told: told.main.kind == kind,
    )


def test_an_engine_that_stands_still_is_told_by_explain_and_by_doctor(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stuck = stage.engine("engine.document-stored=stop@1")
        stage.worker()
        await stage.until("both are there", stage.client.processes, lambda it: len(it) == 2)
        await stage.start(RUN, iterations=1)
        await stuck.stopped()
        told = await explained(stage, "engine_down")
        assert told.state == "stuck" and told.main.command == "treadle engine"
        assert "; engine 'engine-1' gives no sign of life: dead, stopped, or cut" in told.main.text
        assert "; one event waits, since 2" in told.main.text and told.main.since_ms
        kinds = {each.kind for each in told.reasons}
        assert kinds == {"engine_down", "moving"}, "no worker is missing"
        checks = await examine(stage.settings, "http://127.0.0.1:9")
        none, silent = [each for each in checks if each.name == "engines"]
        assert (none.status, none.remedy) == ("fail", "treadle engine")
        words = f"engine 'engine-1' (process {stuck.pid}) gives no sign of life"
        assert silent.status == "warn" and silent.text.startswith(words)
        stuck.go_on()
        await stage.ended(RUN)

    play(story)


def test_a_worker_that_died_over_an_iteration_is_told_while_another_one_executes_it(
    play: Play,
) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        doomed = stage.worker()
        await stage.start(RUN, iterations=1, wait_at=0)
        await stage.begun(1)
        left = stage.worker()
        await stage.heard(left)
        doomed.kill()
        told = await stage.until(
            "the other one executes it",
            lambda: stage.client.explain(RUN),
            lambda told: (
                [each.kind for each in told.reasons] == ["executing", "worker_lost"]
                and f"on worker '{left.name}'" in told.main.text
            ),
        )
        assert told.state == "healthy"
        lost = told.reasons[1]
        words = "step 'loop': its worker died or stopped once while executing iteration 0"
        assert lost.text.startswith(f"{words} (losses: 1 of at most 10)")
        assert (lost.level, lost.command) == ("note", f"treadle run history {RUN}")
        stage.open_gate()
        await stage.ended(RUN)

    play(story)


def test_a_worker_that_stands_still_with_a_task_is_named(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        frozen = stage.worker()
        await stage.start(RUN, iterations=1, wait_at=0)
        await stage.begun(1)
        frozen.stop()
        told = await explained(stage, "unserved")
        assert told.state == "stuck" and told.main.command == "treadle worker FILE.py"
        assert f"; worker '{frozen.name}' gives no sign of life: dead, stopped" in told.main.text
        assert "(since 2" in told.main.text
        frozen.go_on()
        await explained(stage, "executing")
        stage.open_gate()
        await stage.ended(RUN)

    play(story)
