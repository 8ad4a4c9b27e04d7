"""People in a run: steering, follow-ups, questions and approvals, at any moment, in any order.

What is said while the model answers is put in by the fake, in the moment it answers.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
from typing import Any

import msgspec
import pytest
from tests.agent.run.stage import Log, Played, Stage, blocks, play

from treadle.sdk.asks import Reply
from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.entries import Replied
from treadle.worker.agent.core.state import State
from treadle.worker.agent.ports import MemoryInbox
from treadle.worker.agent.testing import text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool
from treadle.worker.agent.tools.policy import Policy


def paying(log: Log, **options: Any) -> Any:
    @tool(**{"requires_approval": True} | options)
    async def pay(to: str, cents: int) -> str:
        """Pay somebody."""
        log((to, cents))
        return f"paid {cents} to {to}"

    return pay


def pay(to: str, cents: int = 100, id: str | None = None) -> Any:
    return tool_use("pay", {"to": to, "cents": cents}, id)


# ------------------------------------------------------------------ steering and follow-ups


def test_steering_is_heard_before_the_next_model_call_as_guidance() -> None:
    inbox = MemoryInbox()

    @tool(idempotent=True)
    def look() -> str:
        """Look."""
        inbox.steer("Look under the table.")
        return "nothing"

    played = play(
        [turn(tool_use("look", {})), turn(text("found"))], tools=[look], run={"inbox": inbox}
    )
    last = played.requests[1].messages[-1]["content"]
    assert [each["type"] for each in last] == ["tool_result", "text"]
    assert "guidance" in last[1]["text"] and "Look under the table." in last[1]["text"]


@pytest.mark.parametrize("how", ["steer", "follow_up"])
def test_words_that_arrive_during_the_final_answer_reopen_the_run(how: str) -> None:
    inbox = MemoryInbox()

    def meanwhile(request: Any, _: Any) -> None:
        if request.index == 0:
            getattr(inbox, how)("And what about y?")

    played = play(
        [turn(text("x is 1")), turn(text("y is 2"))],
        run={"inbox": inbox},
        fake={"before_response": meanwhile},
    )
    assert played.result.output == "y is 2"
    assert "And what about y?" in played.said(1)
    assert played.stage.named("agent_run.reopened")
    assert len(played.stage.named("agent_run.completed")) == 1


def test_words_that_arrive_during_a_typed_final_answer_reopen_the_run_too() -> None:
    inbox = MemoryInbox()

    def meanwhile(request: Any, _: Any) -> None:
        if request.index == 0:
            inbox.steer("Say 2.")

    played = play(
        [turn(tool_use("final_output", {"result": n})) for n in (1, 2)],
        output_type=int,
        run={"inbox": inbox},
        fake={"before_response": meanwhile},
    )
    assert played.result.output == 2
    assert "accepted" in played.said(1)


def test_steering_comes_before_a_follow_up_and_both_are_heard() -> None:
    inbox = MemoryInbox()
    inbox.follow_up("Then z.")

    def meanwhile(request: Any, _: Any) -> None:
        if request.index == 0:
            inbox.steer("First y.")

    played = play(
        [turn(text("x")), turn(text("y, z"))],
        run={"inbox": inbox},
        fake={"before_response": meanwhile},
    )
    heard = played.said(1)
    assert heard.index("First y.") < heard.index("Then z.")


def test_calls_that_have_not_begun_are_skipped_once_somebody_steers() -> None:
    inbox, log = MemoryInbox(), Log()

    @tool
    def write(n: int) -> str:
        """Write."""
        log(n)
        if n == 0:
            inbox.steer("Stop writing.")
        return "written"

    played = play(
        [turn(*(tool_use("write", {"n": n}) for n in range(3))), turn(text("stopped"))],
        tools=[write],
        run={"inbox": inbox},
    )
    assert log.lines == [0]
    first, second, third = played.results(1).values()
    assert first == "written"
    assert "a person has said something" in second and second == third
    assert "Stop writing." in played.said(1)
    assert played.result.used.tool_calls == 1


def test_words_for_a_run_that_has_stopped_at_its_bound_are_heard_when_it_goes_on() -> None:
    async def go() -> None:
        inbox = MemoryInbox()
        turns = [turn(tool_use("get_run_journal", {})), turn(text("so far"))]

        def meanwhile(request: Any, _: Any) -> None:
            if request.index == 1:
                inbox.steer("Mind the gap.")

        async with Stage(turns, before_response=meanwhile) as stage:
            agent = stage.agent(budget=Budget(max_steps=1))
            first = await stage.run(agent, inbox=inbox)
            assert first.stop_reason == "max_steps"
            stage.fake.extend(turn(text("done")))
            longer = stage.agent(budget=Budget(max_steps=5))
            second = await stage.run(longer, "Go on.", state=first.state, inbox=inbox)
            assert second.stop_reason == "completed"
            words = "\n".join(b["text"] for b in blocks(stage.fake.requests[2], "text"))
            assert "Go on." in words and "Mind the gap." in words

    asyncio.run(go())


def test_every_word_is_heard_exactly_once_whatever_moment_it_comes_in() -> None:
    inbox = MemoryInbox()
    numbers = itertools.count()

    def meanwhile(request: Any, _: Any) -> None:
        if request.index < 4:
            inbox.steer(f"word-{next(numbers)};")
            inbox.follow_up(f"word-{next(numbers)};")

    def answer(request: Any) -> Any:
        return turn(tool_use("get_run_journal", {})) if request.index < 2 else turn(text("x"))

    played = play(answer, run={"inbox": inbox}, fake={"before_response": meanwhile})
    assert played.reason == "completed"
    words = str(played.result.state.messages)
    assert [words.count(f"word-{n};") for n in range(8)] == [1] * 8


def test_what_a_person_says_begins_a_new_watch_and_a_new_recovery() -> None:
    async def go() -> None:
        same = turn(tool_use("get", {"q": "x"}))

        @tool(idempotent=True)
        def get(q: str) -> str:
            """Get."""
            return "same"

        async with Stage([same, same, turn(text("1"))]) as stage:
            agent = stage.agent(tools=[get])
            first = await stage.run(agent)
            stage.fake.extend(same, same, turn(text("2")))
            second = await stage.run(agent, "Once more.", state=first.state)
            assert second.stop_reason == "completed"
            assert not stage.named("agent.loop.detected")

    asyncio.run(go())


def test_a_follow_up_to_a_run_that_waits_for_an_approval_is_heard_after_the_result() -> None:
    async def go() -> None:
        log, inbox = Log(), MemoryInbox()
        async with Stage([turn(pay("ann"))]) as stage:
            agent = stage.agent(tools=[paying(log)])
            first = await stage.run(agent)
            still = await stage.run(agent, "And be quick.", state=first.state)
            assert still.stop_reason == "needs_human"
            (call,) = still.waiting_for
            inbox.reply(Reply(call_id=call.id, verdict="approve", args_hash=call.args_hash))
            stage.fake.extend(turn(text("ok")))
            await stage.run(agent, "", state=still.state, inbox=inbox)
            content = stage.fake.requests[1].messages[-1]["content"]
            assert [each["type"] for each in content] == ["tool_result", "text"]
            assert content[1]["text"] == "And be quick."

    asyncio.run(go())


# ------------------------------------------------------------------ approvals


class Waiting:
    """A run that waits for approvals; ``reply`` and ``go_on`` as a person and a process would."""

    def __init__(self, stage: Stage, agent: Any, first: Any) -> None:
        self.stage, self.agent, self.result = stage, agent, first
        self.calls = {call.input.get("to", ""): call for call in first.waiting_for}

    async def go_on(self, *replies: Reply, **options: Any) -> Any:
        """Go on in another process: the state through JSON, an inbox of its own."""
        inbox = MemoryInbox()
        for reply in replies:
            inbox.reply(reply)
        raw = msgspec.json.encode(self.result.state)
        saved = msgspec.json.decode(raw, type=State)
        self.result = await self.stage.run(self.agent, "", state=saved, inbox=inbox, **options)
        return self.result

    def approve(self, to: str, **fields: Any) -> Reply:
        call = self.calls[to]
        given = {"args_hash": call.args_hash, "verdict": "approve"} | fields
        return Reply(call_id=call.id, **given)


def waiting(test: Any, *calls: Any, log: Log | None = None, **options: Any) -> None:
    async def go() -> None:
        async with Stage([turn(*calls), turn(text("all done"))], allow_exhausted=True) as stage:
            tools = options.pop("tools", None) or [paying(log or Log())]
            agent = stage.agent(tools=tools, **options)
            first = await stage.run(agent)
            await test(Waiting(stage, agent, first))

    asyncio.run(go())


def test_a_call_that_needs_approval_waits_and_names_what_is_asked() -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        assert run.result.stop_reason == "needs_human"
        assert run.calls["ann"].input == {"to": "ann", "cents": 100}
        assert run.result.state.stopped is None
        assert log.lines == []
        assert run.stage.named("agent_run.waiting")

    waiting(test, pay("ann"), log=log)


@pytest.mark.parametrize("order", list(itertools.permutations(["ann", "bob", "cid"])))
def test_parallel_approvals_are_answered_in_any_order_one_process_each(order: Any) -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        for index, to in enumerate(order):
            result = await run.go_on(run.approve(to))
            assert len(result.waiting_for) == (2 - index)
            assert log.lines[-1] == (to, 100)
        assert result.stop_reason == "completed"
        contents = list(run.stage.fake.requests[1].tool_results.values())
        assert contents == [f"paid 100 to {to}" for to in ("ann", "bob", "cid")]
        assert len(log.lines) == 3

    waiting(test, pay("ann"), pay("bob"), pay("cid"), log=log)


def test_an_approval_of_other_arguments_does_not_count() -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        wrong = run.approve("ann", args_hash=run.calls["bob"].args_hash)
        result = await run.go_on(wrong, run.approve("bob"))
        assert [call.input["to"] for call in result.waiting_for] == ["ann"]
        assert log.lines == [("bob", 100)]
        result = await run.go_on(Reply(call_id=run.calls["ann"].id, verdict="approve"))
        assert result.stop_reason == "needs_human"
        assert log.lines == [("bob", 100)]

    waiting(test, pay("ann"), pay("bob"), log=log)


def test_an_approval_may_edit_the_arguments_and_what_ran_is_recorded() -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        edited = {"to": "ann", "cents": 5}
        result = await run.go_on(run.approve("ann", input=edited, by="eve"))
        assert result.stop_reason == "completed"
        assert log.lines == [("ann", 5)]
        replied = [each for each in run.stage.entries if isinstance(each, Replied)]
        assert replied[0].by == "eve" and replied[0].input == edited
        assert replied[0].args_hash == run.calls["ann"].args_hash != replied[0].input_hash

    waiting(test, pay("ann"), log=log)


def test_a_rejection_says_why_and_the_call_does_not_run() -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        result = await run.go_on(run.approve("ann", verdict="reject", text="Too much."))
        assert result.stop_reason == "completed"
        assert log.lines == []
        assert "Too much." in str(run.stage.fake.requests[1].tool_results)
        assert result.used.tool_calls == 0

    waiting(test, pay("ann"), log=log)


@pytest.mark.parametrize(("default", "paid"), [("expired", 0), ("reject", 0), ("approve", 1)])
def test_an_approval_nobody_gives_falls_to_its_default(default: Any, paid: int) -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        result = await run.go_on()
        assert result.stop_reason == "needs_human"
        (ask,) = result.asks
        due_ms = ask.due_ms
        late = await run.go_on(clock=lambda: due_ms)
        assert late.stop_reason == "completed"
        assert len(log.lines) == paid

    day = datetime.timedelta(days=1)
    waiting(test, pay("ann"), log=log, approval_timeout=day, approval_default=default)


def test_an_approval_that_stands_is_used_once_and_survives_a_failure_after_it() -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        # No turn is left: the run fails after the approved call has run.
        run.stage.fake._script._turns.clear()
        failed = await run.go_on(run.approve("ann"))
        assert failed.stop_reason == "failed"
        assert log.lines == [("ann", 100)]
        run.stage.fake.extend(turn(text("ok")))
        again = await run.stage.run(run.agent, "Go on.", state=failed.state)
        assert again.stop_reason == "completed"
        assert log.lines == [("ann", 100)]

    waiting(test, pay("ann"), log=log)


def test_an_answer_to_another_call_or_of_another_kind_resolves_nothing() -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        result = await run.go_on(Reply(call_id="toolu_other", verdict="approve"))
        assert result.stop_reason == "needs_human"
        assert log.lines == []

    waiting(test, pay("ann"), log=log)


def test_calls_beside_one_that_waits_run_meanwhile() -> None:
    log = Log()

    @tool(idempotent=True)
    def look() -> str:
        """Look."""
        log("looked")
        return "seen"

    async def test(run: Waiting) -> None:
        assert log.lines == ["looked"]
        result = await run.go_on(run.approve("ann"))
        assert result.stop_reason == "completed"
        assert log.lines == ["looked", ("ann", 100)]

    waiting(test, pay("ann"), tool_use("look", {}), tools=[paying(log), look])


def test_a_rule_of_the_tool_or_of_the_policy_decides_what_needs_approval() -> None:
    from treadle.worker.agent.tools.policy import Ask

    log = Log()
    for options in (
        {"tools": [paying(log, requires_approval=lambda args: args["cents"] > 100)]},
        {
            "tools": [paying(log, requires_approval=False)],
            "policy": Policy(
                rule=lambda call, _: Ask("much") if call.input["cents"] > 100 else None
            ),
        },
    ):
        log.lines.clear()

        async def test(run: Waiting) -> None:
            assert log.lines == [("ann", 100)]
            assert list(run.calls) == ["bob"]

        waiting(test, pay("ann", 100), pay("bob", 101), **options)


def test_a_hook_that_changes_the_arguments_cannot_get_round_the_approval() -> None:
    from treadle.worker.agent.hooks import Hooks
    from treadle.worker.agent.tools.canonical import args_hash

    log = Log()

    async def test(run: Waiting) -> None:
        assert log.lines == []
        call = run.calls["ann"]
        assert call.input == {"to": "ann", "cents": 900}
        assert call.args_hash == args_hash(call.input)

    waiting(
        test,
        pay("ann", 1),
        tools=[paying(log, requires_approval=lambda args: args["cents"] > 100)],
        hooks=Hooks(before_tool_call=lambda call: {**call.input, "cents": 900}),
    )


# ------------------------------------------------------------------ questions


def test_the_answer_to_a_question_is_its_result() -> None:
    async def go() -> None:
        inbox = MemoryInbox()
        ask = tool_use("ask_human", {"question": "Blue or red?", "options": ["blue", "red"]})
        async with Stage([turn(ask), turn(text("blue it is"))]) as stage:
            agent = stage.agent(ask_human=True)
            first = await stage.run(agent)
            assert first.stop_reason == "needs_human"
            (call,) = first.waiting_for
            assert call.input["question"] == "Blue or red?"
            inbox.reply(Reply(call_id=call.id, verdict="answer", text="blue"))
            second = await stage.run(agent, "", state=first.state, inbox=inbox)
            assert second.stop_reason == "completed"
            assert list(stage.fake.requests[1].tool_results.values()) == ["blue"]

    asyncio.run(go())


def test_a_question_that_asks_nothing_goes_back_to_the_model() -> None:
    played: Played = play(
        [turn(tool_use("ask_human", {"question": " "})), turn(text("never mind"))], ask_human=True
    )
    assert played.reason == "completed"
    assert "asked nothing" in played.said(1)
