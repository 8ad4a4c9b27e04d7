"""Runs of pydantic-ai agents over attempts that fail: what is repeated, and what is refused.

Method: the in-memory runner with the engine's own core; models are functions that are counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable
from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from treadle.sdk import Retry, RunFailed, Workflow
from treadle.sdk.errors import UserError
from treadle.sdk.testing import Message, SimulatedRun, simulate
from treadle.worker import LoopContext, Worker
from treadle.worker.agent.pydantic_ai import (
    IDEMPOTENT,
    TreadleDurability,
    UnfinishedTool,
    durable,
    serve,
)
from treadle.worker.agent.pydantic_ai.scope import Call

pytestmark = pytest.mark.timeout(120)
Handler = Callable[[LoopContext[Any]], Any]


class Asked:
    """A model that calls the tools of its list, one per turn, then says what it was told."""

    def __init__(self, *tools: str) -> None:
        self.count = 0
        self._tools = tools

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.count += 1
        answers = sum(isinstance(message, ModelResponse) for message in messages)
        if answers < len(self._tools):
            call = ToolCallPart(self._tools[answers], {}, tool_call_id=f"call{answers}")
            return ModelResponse(parts=[call])
        told = [getattr(part, "content", "") for part in messages[-1].parts]
        return ModelResponse(parts=[TextPart(f"told {told[-1]}")])


def agent(model: Any, **options: Any) -> Agent[None, str]:
    if isinstance(model, Asked):
        model = FunctionModel(model)
    return Agent(model, name="clerk", capabilities=[TreadleDurability[None](**options)])


def play(handler: Handler, **options: Any) -> SimulatedRun:
    worker = Worker()
    worker.handler("clerk-agent")(handler)
    workflow = Workflow("w")
    workflow.agent_loop("clerk", "clerk-agent", max_iterations=9, retry=Retry(max_attempts=3))
    return asyncio.run(simulate(workflow, "Go.", worker, **options))


def test_an_attempt_that_fails_repeats_nothing_that_was_stored() -> None:
    model, ran = Asked("first", "second"), list[str]()
    clerk = agent(model)

    @clerk.tool_plain
    async def first() -> str:
        ran.append("first")
        return "one"

    @clerk.tool_plain(metadata=IDEMPOTENT)
    async def second() -> str:
        ran.append("second")
        if ran.count("second") == 1:
            raise OSError("away")
        return "two"

    assert play(serve(clerk)).result() == "told two"
    assert ran == ["first", "second", "second"]
    assert model.count == 3


def test_a_call_that_raised_waits_for_a_person_and_each_decision_counts_once() -> None:
    model, ran = Asked("pay"), list[str]()
    clerk = agent(model)

    @clerk.tool_plain
    async def pay() -> str:
        ran.append("pay")
        raise OSError("away")

    def reply(verdict: str, at_s: float) -> Message:
        payload = {"call_id": "call0", "verdict": verdict, "text": "It was paid."}
        return Message("clerk", payload, kind="reply", after_s=at_s)

    messages = [reply("approve", 60), reply("answer", 120)]
    assert play(serve(clerk), messages=messages).result() == "told It was paid."
    assert ran == ["pay", "pay"], "once of itself, once agreed to"
    assert model.count == 2


def test_a_run_waits_as_long_as_nobody_decides() -> None:
    clerk = agent(Asked("pay"))

    @clerk.tool_plain
    async def pay() -> str:
        raise OSError("away")

    steer = Message("clerk", "Hurry.", after_s=60)
    run = play(serve(clerk), messages=[steer])
    assert run.step("clerk").status == "parked"


def test_without_a_scope_an_agent_runs_as_it_always_did() -> None:
    model = Asked("first")
    clerk = agent(model)

    @clerk.tool_plain
    async def first() -> str:
        return "one"

    assert asyncio.run(clerk.run("Go.")).output == "told one"


def test_a_handler_of_ones_own_runs_agents_one_after_the_other() -> None:
    model, tries = Asked(), list[int]()
    clerk = agent(model)

    async def handler(ctx: LoopContext[str]) -> Any:
        tries.append(1)
        async with durable(ctx):
            first = await clerk.run("One.")
            second = await clerk.run("Two.")
            if len(tries) == 1:
                raise OSError("away")
        assert first.run_id != second.run_id
        return ctx.complete([first.output, second.output])

    assert play(handler).result() == ["told One.", "told Two."]
    assert model.count == 2


@pytest.mark.slow
def test_an_own_handler_sees_a_call_that_may_have_happened() -> None:
    clerk = agent(Asked("pay"))
    seen: list[UnfinishedTool] = []

    @clerk.tool_plain
    async def pay() -> str:
        raise OSError("away")

    async def handler(ctx: LoopContext[str]) -> Any:
        async with durable(ctx):
            try:
                return (await clerk.run("Go.")).output
            except UnfinishedTool as exc:
                seen.append(exc)
                raise

    with pytest.raises(RunFailed, match="must not happen twice"):
        play(handler).result()
    assert [(exc.tool, exc.call_id) for exc in seen] == [("pay", "call0")]


def test_events_are_handled_once_over_a_failed_attempt() -> None:
    handled: list[str] = []
    tries = list[int]()

    async def handle(ctx: RunContext[None], events: AsyncIterable[Any]) -> None:
        async for event in events:
            handled.append(type(event).__name__)

    clerk = agent(TestModel(), event_stream_handler=handle)

    @clerk.tool_plain(metadata=IDEMPOTENT)
    async def look() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("away")
        return "seen"

    assert play(serve(clerk)).result() == '{"look":"seen"}'
    assert handled.count("FunctionToolCallEvent") == 1
    assert handled.count("FunctionToolResultEvent") == 1


async def away() -> str:
    return "away"


def refused(use: Callable[[Agent[None, str]], Any]) -> str:
    clerk = agent(Asked())

    async def handler(ctx: LoopContext[str]) -> Any:
        async with durable(ctx):
            await use(clerk)

    with pytest.raises(RunFailed) as caught:
        play(handler).result()
    return str(caught.value)


def test_a_toolset_that_is_added_at_run_time_is_refused() -> None:
    late = FunctionToolset[None]([away], id="late")
    assert "cannot be added at runtime with Treadle" in refused(
        lambda clerk: clerk.run("Go.", toolsets=[late])
    )


def test_two_runs_of_one_name_side_by_side_are_refused() -> None:
    clerk = Agent(FunctionModel(slow), name="clerk", capabilities=[TreadleDurability[None]()])
    assert "run side by side" in refused(
        lambda _: asyncio.gather(clerk.run("One."), clerk.run("Two."))
    )


async def slow(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    await asyncio.sleep(1)
    return ModelResponse(parts=[TextPart("Done.")])


@pytest.mark.parametrize("metadata", [{"idempotent": "yes"}, {"idempotnt": True}, False])
def test_metadata_that_is_not_understood_is_refused(metadata: Any) -> None:
    clerk = agent(Asked("first"))
    clerk.tool_plain(metadata={"treadle": metadata})(away)

    async def first() -> str:
        return "one"

    clerk.tool_plain(first, metadata={"treadle": metadata})
    with pytest.raises(RunFailed, match="is not understood"):
        play(serve(clerk)).result()


def test_a_result_without_a_json_form_is_not_tried_again() -> None:
    model, ran = Asked("first"), list[int]()
    clerk = agent(model)

    @clerk.tool_plain(metadata=IDEMPOTENT)
    async def first() -> Any:
        ran.append(1)
        return object()

    with pytest.raises(RunFailed, match="has no JSON form"):
        play(serve(clerk)).result()
    assert len(ran) == 1


def test_a_run_that_does_something_else_than_its_journal_says_is_not_believed() -> None:
    tries = list[int]()

    async def handler(ctx: LoopContext[str]) -> Any:
        tries.append(1)
        async with durable(ctx) as scope:
            call = Call(tool="pay", call_id="c", args_hash=str(len(tries)))
            await scope.perform("pay", away, call=call, once=True)
        raise OSError("away")

    with pytest.raises(RunFailed, match="with other arguments than its journal says"):
        play(handler).result()
    assert len(tries) == 2


def test_an_agent_without_the_capability_is_refused() -> None:
    with pytest.raises(UserError, match="no TreadleDurability"):
        serve(Agent(TestModel(), name="clerk"))
