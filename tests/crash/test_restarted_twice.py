"""Engine and worker are restarted twice in a row over the same names, and go on each time.
Method: real processes, killed with -9 or asked to end; the audit walks the whole history."""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.process import Process
from tests.crash.stage import Stage

pytestmark = pytest.mark.slow

ITERATIONS = 30


@pytest.mark.parametrize("how", ["kill", "terminate"])
@pytest.mark.parametrize("role", ["engine", "worker", "both"])
def test_a_loop_goes_on_although_its_processes_are_restarted_twice(
    play: Play, role: str, how: str
) -> None:
    async def story(stage: Stage) -> None:
        running = {each: stage.process(each) for each in ("engine", "worker")}
        roles = ("engine", "worker") if role == "both" else (role,)
        await stage.start(iterations=ITERATIONS, work_ms=20)
        await stage.reached(2)
        for again in range(2):
            for each in roles:
                getattr(running[each], how)()
            for each in roles:
                await running[each].died()
                running[each] = stage.process(each)
                await running[each].said(f"{each}.ready")
            # It moves after each restart, not only after the last.
            await stage.reached(2 + 5 * (again + 1))
        await stage.ended()
        await _are_alive(stage, running)
        restarted = [each.log.read_text() for each in stage.processes]
        assert not [text for text in restarted if "Traceback" in text]

    play(story)


async def _are_alive(stage: Stage, running: dict[str, Process]) -> None:
    """Whoever asks is shown the processes that live, and none of those before them."""

    async def alive() -> set[int]:
        return {each.pid for each in await stage.client.processes()}

    expected = {each.pid for each in running.values()}
    await stage.until("the living are shown", alive, lambda found: found == expected)
    await stage.heard(*running.values())
