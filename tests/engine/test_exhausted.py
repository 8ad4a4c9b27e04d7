"""A run that parks when its attempts are used up, on a real server: what people are told, and the
attempts it has after a resume. Method: an engine and a worker whose handler fails until told."""

from __future__ import annotations

from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import Retry, Workflow
from treadle.worker import TaskContext, Worker


def test_a_run_parks_with_its_failure_and_a_resume_tries_again(play: Play) -> None:
    async def story(stand: Stand) -> None:
        attempts: list[int] = []
        is_mended = False
        worker = Worker()

        @worker.handler("charge")
        async def charge(ctx: TaskContext[object]) -> str:
            attempts.append(ctx.attempt)
            if not is_mended:
                raise ConnectionError("the bank does not answer")
            return "charged"

        retry = Retry(max_attempts=2, delay_s=0.01, max_delay_s=0.01, on_exhausted="park")
        workflow = Workflow("billing")
        workflow.task("charge", retry=retry)
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, id="run")
        await stand.status("run", "parked")
        explained = await run.explain()
        assert explained.is_stuck
        assert "the last failed with ConnectionError: the bank does not" in explained.main.text
        assert explained.main.command == "treadle run resume run"
        is_mended = True
        await run.resume()
        assert await run.result(timeout_s=10) == "charged"
        assert attempts == [1, 2, 3]
        assert await stand.letters() == []

    play(story)
