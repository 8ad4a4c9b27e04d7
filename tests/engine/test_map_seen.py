"""What people see of a map: how far it is, why it waits, its chunks in the timeline and the trace.
Method: a real map held half-way by its handlers, looked at by a client; then to its end."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.stage import raw
from tests.engine.conftest import Play
from tests.engine.stand import Stand
from tests.engine.test_map import Items, mapping

from treadle.sdk import Retry
from treadle.sdk.client.explain.reason import Explanation
from treadle.sdk.client.timeline.span import MapCounts
from treadle.sdk.tracing import names
from treadle.sdk.wording import items_text

COUNT = 6


def test_a_map_says_how_far_it_is_and_each_chunk_is_a_span(play: Play) -> None:
    items = Items()
    items.broken, items.flaky, items.gate = {5}, {0}, asyncio.Event()
    workflow = mapping(chunk=2, max_parallel=2, tolerated_failures=1)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(workflow, list(range(COUNT)), id="run")
        await stand.status("run", "running")
        told = await stand.client.explain("run")
        assert "unserved" in {reason.kind for reason in told.reasons}
        stand.worker(items.worker)

        async def at_once() -> int:
            return items.at_once

        await stand.until("two are at work", at_once, lambda count: count == 2)
        told = await stand.client.explain("run")
        assert (told.state, told.reasons[0].kind) == ("healthy", "mapping")
        assert f"has done {items_text(0, COUNT, 0)}" in told.reasons[0].text
        assert {span.name for span in (await stand.client.trace("run")).open} >= {"map double"}
        watching = asyncio.create_task(_watched(stand))
        assert items.gate is not None
        items.gate.set()
        await stand.client.result("run", timeout_s=15)
        view = (await stand.client.get("run")).step("double")
        assert (view.items, view.items_done, view.items_failed, view.chunks) == (COUNT, COUNT, 1, 3)
        detail = await stand.client.get_step("run", "double")
        (failed,) = detail.failed_items
        assert str(failed) == "item 5: NonRetryable: 5 is broken"
        assert detail.output == (await stand.client.outputs("run"))["double"].value
        assert detail.input == raw(list(range(COUNT)))
        progress, ended = await watching
        assert progress
        assert set(progress) <= {items_text(n, COUNT, failed) for n in (2, 4) for failed in (0, 1)}
        assert ended == "", "the output of its last chunk is not the output of the map"
        await _spans(stand)

    play(story)


async def _watched(stand: Stand) -> tuple[list[str], str]:
    progress: list[str] = []
    async for event in stand.client.watch("run"):
        if event.kind == "map.progress":
            progress.append(event.detail)
        if event.kind == "step.ended":
            value = bytes(event.value)
    return progress, "" if value == b"null" else value.decode()


async def _spans(stand: Stand) -> None:
    timeline = (await stand.client.timeline("run")).of_step("double")
    attempts = [
        (span.step, span.attempt, span.outcome) for span in timeline.spans if span.kind == "attempt"
    ]
    assert sorted(attempts) == [
        ("double=0", 1, "failed"),
        ("double=0", 2, "completed"),
        ("double=1", 1, "completed"),
        ("double=2", 1, "completed"),
    ]
    (whole,) = timeline.without_chunks().spans
    assert (whole.kind, whole.step, whole.outcome) == ("map", "double", "completed")
    assert whole.detail == "6 of 6 items, 1 failed; 3 chunks, 1 tried again"
    assert whole.counts == MapCounts(items=COUNT, done=COUNT, failed=1, chunks=3, retried=1)
    trace = await stand.client.trace("run")
    chunks = {span.name: span for span in trace.spans if names.CHUNK in span.attributes}
    assert {"chunk 0", "chunk 0 (attempt 2)", "chunk 1", "chunk 2"} <= set(chunks)
    (step,) = (span for span in trace.spans if span.name == "map double")
    assert all(
        span.parent_id == step.span_id for name, span in chunks.items() if name.startswith("chunk")
    )
    assert chunks["chunk 0"].error == "ValueError"
    assert "item 0: 0 is flaky" in chunks["chunk 0"].error_text
    last = chunks["chunk 2"].attributes
    assert (last[names.ITEM_FIRST], last[names.ITEMS], last[names.ITEMS_FAILED]) == (4, 2, 1)
    assert last[names.ITEM_FAILURE] == "item 5: NonRetryable: 5 is broken"


@pytest.mark.slow
def test_a_map_of_a_paused_run_waits_for_the_resume_once_its_chunks_are_over(play: Play) -> None:
    items = Items()
    items.gate = asyncio.Event()

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(items.worker)
        await stand.client.start(mapping(chunk=1, max_parallel=2), list(range(COUNT)), id="run")

        async def at_once() -> int:
            return items.at_once

        await stand.until("two are at work", at_once, lambda count: count == 2)
        await stand.client.pause("run", "look")
        await stand.status("run", "paused")
        told = await stand.client.explain("run")
        assert (told.state, told.main.kind) == ("healthy", "mapping"), "they are allowed to finish"
        assert items.gate is not None
        items.gate.set()

        async def explained() -> Explanation:
            return await stand.client.explain("run")

        told = await stand.until("it is stuck", explained, lambda each: each.is_stuck)
        assert [reason.kind for reason in told.reasons] == ["paused"]
        assert told.main.command == "treadle run resume run"
        await stand.client.resume("run")
        assert await stand.client.result("run", timeout_s=15) == [n * 2 for n in range(COUNT)]

    play(story)


@pytest.mark.slow
def test_a_map_whose_items_all_wait_says_why(play: Play) -> None:
    items = Items()
    items.flaky = {0}

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(items.worker)
        slow = mapping(retry=Retry(max_attempts=3, delay_s=40, jitter=0))
        await stand.client.start(slow, [0], id="run")

        async def explained() -> Explanation:
            return await stand.client.explain("run")

        told = await stand.until(
            "it waits", explained, lambda each: each.main.kind == "retry_delay"
        )
        assert (told.state, told.main.kind, told.main.step) == ("healthy", "retry_delay", "double")
        assert f"step 'double' has done {items_text(0, 1, 0)}" in told.main.text
        assert "; chunk 0 waits before it tries attempt 2 (" in told.main.text
        assert "ValueError: item 0: 0 is flaky" in told.main.text

    play(story)
