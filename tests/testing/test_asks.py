"""People in a simulated run: what is asked can be read, answered, and left unanswered.
Method: ``simulate`` with a handler that asks, and with an agent and its fake model."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from treadle.sdk import Workflow
from treadle.sdk.testing import simulate
from treadle.worker import Ask, LoopContext, Reply, Worker
from treadle.worker.agent import Agent, Escalation, Hooks, tool
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.testing import FakeAnthropic, text, tool_use, turn


def _loop() -> Workflow[Any]:
    workflow = Workflow("talk")
    workflow.agent_loop("talk", "talk", max_iterations=9)
    return workflow


def test_a_handler_asks_until_it_has_its_answers() -> None:
    worker = Worker()

    @worker.handler("talk")
    async def talk(ctx: LoopContext[Any]) -> Any:
        said = [message.decode(Reply).text for message in await ctx.messages()]
        names = [*(ctx.input or []), *said]
        if len(names) == 2:
            return ctx.complete(names)
        asks = [Ask(id=f"name-{len(names)}", text="Whose?")]
        return ctx.wait("a name", state=names, asks=asks)

    run = asyncio.run(simulate(_loop(), None, worker))
    assert [ask.id for ask in run.step("talk").asks] == ["name-0"]
    assert run.status == "parked"

    def answer(ask: Ask) -> Reply:
        return Reply(call_id=ask.id, verdict="answer", text=f"for {ask.id}")

    run = asyncio.run(simulate(_loop(), None, worker, answers=answer))
    assert run.result() == ["for name-0", "for name-1"]
    assert run.step("talk").asks == ()


def _agent(paid: list[int], fake: FakeAnthropic, levels: int) -> Worker:
    @tool(requires_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    model = AnthropicModel("any", base_url=fake.base_url, api_key="test")

    async def close(_: Any) -> None:
        await model.close()  # On the simulated loop, whose connections these are.

    agent = Agent(
        "payer",
        model=model,
        tools=[pay],
        hooks=Hooks(on_stop=close),
        approval_timeout=timedelta(days=30),
        approval_escalation=[
            Escalation(after=timedelta(days=n), to=f"level-{n}") for n in range(1, levels + 1)
        ],
    )
    worker = Worker()
    worker.agent("talk", agent)
    return worker


def _play(answers: Any, levels: int = 2) -> tuple[list[int], Any]:
    paid: list[int] = []

    async def go() -> Any:
        turns = [turn(tool_use("pay", {"cents": 5})), turn(text("Done."))]
        with FakeAnthropic(turns) as fake:
            worker = _agent(paid, fake, levels)
            return await simulate(_loop(), "Pay.", worker, answers=answers)

    return paid, asyncio.run(go())


def test_an_agent_is_approved_by_whom_it_was_escalated_to() -> None:
    asked: list[tuple[int, str]] = []

    def answer(ask: Ask) -> Reply | None:
        asked.append((ask.level, ask.to))
        if ask.level < 2:
            return None
        return Reply(call_id=ask.id, verdict="approve", args_hash=ask.args_hash)

    paid, run = _play(answer)
    assert run.result() == "Done."
    assert paid == [5]
    assert asked == [(0, ""), (1, "level-1"), (2, "level-2")]
    assert 2 * 86_400 <= run.elapsed_s < 2.1 * 86_400


def test_an_approval_that_nobody_gives_expires_after_its_virtual_month() -> None:
    paid, run = _play(lambda _: None)
    assert run.result() == "Done."
    assert paid == []
    assert 30 * 86_400 <= run.elapsed_s < 30.1 * 86_400
