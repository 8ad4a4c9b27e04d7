"""Declared inputs and outputs on a real server, and the page about them.
Method: the page's own workflow; requests a client would refuse, stored by hand; large results."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand
from tests.pages import program_of

from treadle.sdk import InvalidPayload, RunFailed, Workflow
from treadle.sdk.definition import content_hash
from treadle.sdk.messages import RunRequested
from treadle.sdk.testing import simulate
from treadle.worker import FailedStep, TaskContext, Worker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "schemas.md"
BIG = "x" * 60_000


@pytest.fixture
def page() -> dict[str, Any]:
    return asyncio.run(program_of("schemas.md"))


@pytest.mark.parametrize(("items", "reason"), [(["a", "b"], ""), ([], "invalid_output")])
def test_the_page_runs(page: dict[str, Any], items: list[str], reason: str) -> None:
    order = {"id": 7, "items": items}
    run = asyncio.run(simulate(page["workflow"], order, page["worker"]))
    assert run.reason == reason
    if not reason:
        assert run.result() == {"order": 7, "cents": 200}


def test_an_input_that_does_not_fit_starts_nothing_and_fails_what_others_started(
    play: Play, page: dict[str, Any]
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = page["workflow"]
        await stand.client.register(workflow)
        with pytest.raises(InvalidPayload):
            await stand.client.start(workflow, {"id": 7}, id="refused")
        with pytest.raises(InvalidPayload, match="items is required"):
            await stand.client.start("checkout", {"id": 7}, id="refused")
        with pytest.raises(InvalidPayload, match="items is required"):
            await stand.client.start(workflow.build(), {"id": 7}, id="refused")
        assert await stand.events("refused") == []
        version = content_hash(workflow.build())
        bad = msgspec.Raw(b'{"id": 7}')
        await stand.publish(RunRequested(workflow="checkout", definition=version, input=bad))
        with pytest.raises(RunFailed, match=r"invalid_input.*items is required and not there"):
            await stand.client.result("run", timeout_s=10)

    play(story)


def test_a_step_that_puts_out_what_does_not_fit_is_handled_like_any_failure(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("w")
        workflow.task("a", output=int, on_failure="tell")
        workflow.task("tell", input={"required": ["step", "failure"]})
        worker = Worker()

        @worker.handler("a")
        async def a(ctx: TaskContext[Any]) -> Any:
            return {"not": "a number"}

        @worker.handler("tell")
        async def tell(ctx: TaskContext[FailedStep]) -> str:
            return ctx.input.failure.type

        stand.worker(worker)
        run = await stand.client.start(workflow)
        assert await run.result(timeout_s=10) == "invalid_output"

    play(story)


@pytest.mark.parametrize(("most", "status"), [(60_000, "completed"), (10, "failed")])
def test_a_result_of_several_large_outputs_is_held_to_its_schema(
    play: Play, most: int, status: str
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        text = {"type": "string", "maxLength": most}
        schema = {"type": "object", "properties": {"a": text, "b": text}, "required": ["a", "b"]}
        workflow = Workflow("w", output=schema)
        workflow.task("a", "big")
        workflow.task("b", "big", input={"type": "null"})
        worker = Worker()

        @worker.handler("big")
        async def big(ctx: TaskContext[Any]) -> str:
            return BIG

        stand.worker(worker)
        run = await stand.client.start(workflow)
        ended = await stand.ended(run.id)
        assert ended.status == status
        if ended.failure is not None:
            assert ended.failure.type == "invalid_output"
            assert "a is 60000 characters, and must be at most 10" in ended.failure.message

    play(story)
