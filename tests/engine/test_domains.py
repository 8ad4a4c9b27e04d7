"""A trust domain: its tasks go to its own workers, whatever happens to them.
Method: an engine and two workers of one task type in this process, on a real server."""

from __future__ import annotations

import time

import msgspec
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.engine.retention import Retention
from treadle.sdk import Retry, Workflow
from treadle.sdk.definition import content_hash
from treadle.sdk.messages import RunRequested
from treadle.worker import LoopContext, Worker


def test_a_domain_has_its_own_workers_for_all_that_a_loop_does(play: Play) -> None:
    async def story(stand: Stand) -> None:
        heard: list[tuple[str, int, int]] = []

        def worker_of(domain: str) -> Worker:
            worker = Worker(domain=domain)

            @worker.handler("link")
            async def link(ctx: LoopContext[int]):  # type: ignore[no-untyped-def]
                heard.append((domain, ctx.iteration, ctx.attempt))
                if (ctx.iteration, ctx.attempt) == (1, 1):
                    raise ValueError("once")
                count = (await ctx.load_checkpoint(int) or 0) + 1
                await ctx.checkpoint(count)
                if ctx.iteration == 3:
                    said = [message.payload for message in await ctx.messages()]
                    return ctx.complete([count, len(said)])
                if ctx.iteration == 2:
                    return ctx.wait("a word", state=0)
                return ctx.continue_(0, delay=0.05)

            return worker

        await stand.engine()
        stand.worker(worker_of("eu"))
        stand.worker(worker_of("main"))
        workflow = Workflow("far")
        workflow.agent_loop(
            "loop", "link", max_iterations=9, retry=Retry(max_attempts=2, delay_s=0)
        )
        definition = workflow.build()
        await stand.client.register(definition)
        requested = RunRequested(
            workflow="far", definition=content_hash(definition), input=msgspec.Raw(b"0")
        )
        subject = stand.subjects.event("far-run", "eu")
        await stand.js.store(subject, msgspec.json.encode(requested))
        await stand.status("far-run", "parked")
        await stand.client.send("far-run", "loop", "here")
        assert await stand.client.result("far-run", timeout_s=20) == [4, 1]
        assert {domain for domain, _, _ in heard} == {"eu"}
        assert [pair[1:] for pair in heard] == [(0, 1), (1, 1), (1, 2), (2, 1), (3, 1)]
        await stand.quiet(0.2)
        retention = Retention(stand.js, stand.subjects, keep_s=0.001)
        assert await retention.sweep(round(time.time() * 1000) + 50) == 1
        state = await stand.state(stand.subjects.steps_stream)
        assert int(state["messages"]) == 0

    play(story)
