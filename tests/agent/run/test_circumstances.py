"""Hooks, switches, the run journal, histories: what an embedder sees and shapes.

Each hook is a plain function; the fake shows what it made of the requests.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.agent.run.stage import Log, Stage, play

from treadle.sdk.errors import UserError
from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.hooks import Block, Hooks, NextTurn
from treadle.worker.agent.testing import text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool


def adder(log: Log) -> Any:
    @tool(idempotent=True)
    async def add(a: int, b: int) -> int:
        """Add."""
        log((a, b))
        return a + b

    return add


ADD = tool_use("add", {"a": 1, "b": 2})


# ------------------------------------------------------------------ hooks


def test_the_context_may_be_transformed_before_each_call_and_stays_as_it_was_after() -> None:
    def transform(request: Any) -> Any:
        extra = {"type": "text", "text": "Today is Friday."}
        return msgspec.structs.replace(request, system=[extra])

    played = play(
        [turn(ADD), turn(text("3"))],
        tools=[adder(Log())],
        hooks=Hooks(transform_context=transform),
    )
    for request in played.requests:
        assert [each["text"] for each in request.body["system"]] == ["Today is Friday."]


def test_messages_may_be_converted_for_the_model_and_what_breaks_the_rules_is_healed() -> None:
    async def convert(messages: list[Any]) -> list[Any]:
        if len(messages) < 5:
            return messages
        return messages[:1] + messages[2:]  # An old call is gone, its result is not.

    played = play(
        [turn(ADD), turn(ADD), turn(text("3"))],
        tools=[adder(Log())],
        hooks=Hooks(convert_to_llm=convert),
    )
    assert played.reason == "completed"
    assert played.stage.named("agent.transcript.healed")
    assert len(played.result.state.messages) == 6


def test_a_hook_that_leaves_nothing_of_the_conversation_ends_the_run_unsent() -> None:
    played = play([], hooks=Hooks(convert_to_llm=lambda _: []))
    assert played.reason == "failed"
    assert "messages" in played.result.detail
    assert played.requests == []


def test_a_call_may_be_passed_changed_or_blocked_before_it_runs() -> None:
    log = Log()

    def before(call: Any) -> Any:
        match call.input["a"]:
            case 1:
                return None
            case 2:
                return {"a": 20, "b": 0}
            case _:
                return Block("three is bad luck")

    calls = [tool_use("add", {"a": a, "b": 0}) for a in (1, 2, 3)]
    played = play(
        [turn(*calls), turn(text("ok"))],
        tools=[adder(log)],
        hooks=Hooks(before_tool_call=before),
    )
    assert log.lines == [(1, 0), (20, 0)]
    assert list(played.results(1).values()) == ["1", "20", "three is bad luck"]


def test_a_result_may_be_replaced_after_the_call() -> None:
    async def after(call: Any, result: Any) -> Any:
        return msgspec.structs.replace(result, content=f"{call.name} said {result.content}")

    played = play(
        [turn(ADD), turn(text("ok"))], tools=[adder(Log())], hooks=Hooks(after_tool_call=after)
    )
    assert list(played.results(1).values()) == ["add said 3"]


def test_a_hook_on_results_may_end_the_run_with_the_turn() -> None:
    def after(_: Any, result: Any) -> Any:
        return msgspec.structs.replace(result, terminate=True)

    played = play([turn(ADD)], tools=[adder(Log())], hooks=Hooks(after_tool_call=after))
    assert played.reason == "completed"
    assert played.result.output == "3"


def test_the_model_and_the_thinking_level_may_be_switched_between_turns() -> None:
    async def go() -> None:
        async with Stage([turn(ADD), turn(ADD), turn(text("3"))]) as stage:
            following = [NextTurn(model="strong"), NextTurn(thinking="low")]
            agent = stage.agent(
                tools=[adder(Log())],
                models={"strong": stage.model("claude-strong")},
                hooks=Hooks(prepare_next_turn=lambda _: following.pop(0) if following else None),
                max_output_tokens=4_000,
            )
            result = await stage.run(agent)
            assert result.stop_reason == "completed"
            bodies = [each.body for each in stage.fake.requests]
            assert [each["model"] for each in bodies] == [
                "claude-test",
                "claude-strong",
                "claude-strong",
            ]
            asked = [
                each.get("thinking", {}).get("type", "disabled") != "disabled" for each in bodies
            ]
            assert asked == [False, False, True]

    asyncio.run(go())


def test_a_switch_to_a_model_the_agent_does_not_have_says_which_it_has() -> None:
    with pytest.raises(UserError, match="claude-test"):
        play(
            [turn(ADD)],
            tools=[adder(Log())],
            hooks=Hooks(prepare_next_turn=lambda _: NextTurn(model="other")),
        )


def test_a_hook_may_end_the_run_after_any_turn() -> None:
    stops: list[str] = []
    played = play(
        [turn(text("on it"), ADD)],
        tools=[adder(Log())],
        hooks=Hooks(
            should_stop_after_turn=lambda state: state.turn == 1,
            on_stop=lambda stop: stops.append(stop.reason),
        ),
    )
    assert played.reason == "completed"
    assert "should_stop_after_turn" in played.result.detail
    assert stops == ["completed"]


def test_steering_may_come_from_a_hook_at_every_boundary() -> None:
    said = [[], ["Faster."], []]
    played = play(
        [turn(ADD), turn(text("3"))],
        tools=[adder(Log())],
        hooks=Hooks(get_steering_messages=lambda: said.pop(0)),
    )
    assert "Faster." in played.said(1)


def test_follow_ups_from_a_hook_reopen_the_run_until_there_are_none() -> None:
    said = [["And then?"], ["And then?"], []]
    played = play(
        [turn(text("1")), turn(text("2")), turn(text("3"))],
        hooks=Hooks(get_followup_messages=lambda: said.pop(0)),
    )
    assert played.result.output == "3"
    assert said == []


def test_a_key_may_be_given_per_call() -> None:
    played = play(
        [turn(text("ok"))],
        hooks=Hooks(get_api_key=lambda provider: f"key-for-{provider}"),
        fake={"api_key": "key-for-anthropic"},
    )
    assert played.reason == "completed"


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([turn(text("ok"))], "completed"),
        ([turn(text("no"), stop_reason="refusal")], "refused"),
        ([turn(text("..."), stop_reason="max_tokens")] * 2, "output_truncated"),
    ],
)
def test_whatever_ends_the_run_is_told_once(turns: Any, reason: str) -> None:
    stops: list[str] = []
    play(turns, hooks=Hooks(on_stop=lambda stop: stops.append(stop.reason)))
    assert stops == [reason]


def test_a_failure_of_the_model_is_told_too() -> None:
    from treadle.worker.agent.testing import error

    stops: list[str] = []
    play([error(401)], hooks=Hooks(on_stop=lambda stop: stops.append(stop.reason)))
    assert stops == ["failed"]


# ------------------------------------------------------------------ the run journal


def test_the_run_journal_is_written_read_and_appended_to_by_its_tools() -> None:
    played = play(
        [
            turn(
                tool_use("update_run_journal", {"objective": "find x", "current_state": "began"}),
                tool_use(
                    "append_run_journal_entry",
                    {"section": "verified_findings", "entry": "x is odd"},
                ),
            ),
            turn(tool_use("get_run_journal", {})),
            turn(text("ok")),
        ]
    )
    (shown,) = played.results(2).values()
    assert "find x" in shown and "x is odd" in shown
    journal = played.result.state.journal
    assert journal.current_state == "began" and journal.verified_findings == ("x is odd",)
    assert played.stage.named("agent.journal.changed")


def test_wrong_use_of_the_journal_is_explained() -> None:
    played = play(
        [
            turn(
                tool_use("update_run_journal", {"mood": "fine"}),
                tool_use("append_run_journal_entry", {"section": "objective", "entry": "x"}),
            ),
            turn(text("ok")),
        ]
    )
    first, second = played.results(1).values()
    assert "objective" in first and "verified_findings" in second
    assert played.result.state.journal.is_empty


def test_an_agent_without_a_journal_is_not_offered_one() -> None:
    played = play([turn(text("ok"))], journal=False)
    assert "tools" not in played.requests[0].body


def test_listeners_that_raise_do_not_disturb_the_run() -> None:
    def listen(event: Any) -> None:
        raise RuntimeError("listener")

    played = play([turn(text("ok"))], budget=Budget(max_steps=1), run={"on_event": listen})
    assert played.reason == "completed"


def test_deltas_add_up_to_the_answer() -> None:
    words = "a rather long answer that comes in pieces, one after the other"
    played = play([turn(text(words))])
    deltas = [each.delta.text for each in played.stage.events if each.delta is not None]
    assert "".join(deltas) == words
    assert len(deltas) > 1


# ------------------------------------------------------------------ histories from elsewhere


def test_a_hook_cannot_hide_the_present_turn_from_the_model() -> None:
    played = play(
        [turn(ADD)],
        tools=[adder(Log())],
        hooks=Hooks(convert_to_llm=lambda messages: messages[:1]),
    )
    assert played.reason == "failed"
    assert "a hook left results of the present turn out" in played.result.detail
    assert len(played.requests) == 1


def test_a_broken_history_is_mended_alike_every_time_and_told() -> None:
    from treadle.worker.agent.core.state import State

    def said(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
        return {"role": role, "content": list(blocks)}

    use = {"type": "tool_use", "id": "a", "name": "add", "input": {"a": 1, "b": 2}}
    orphan = {"type": "tool_result", "tool_use_id": "gone", "content": "3"}
    broken = State(
        messages=(
            said("user", orphan, {"type": "text", "text": "Add."}),
            said("assistant", use),
        )
    )

    async def go() -> None:
        async with Stage([turn(text("ok"))] * 2) as stage:
            agent = stage.agent(tools=[adder(Log())])
            for _ in range(2):
                result = await agent.run("Go on.", state=broken, on_event=stage.events.append)
                assert result.stop_reason == "completed"
            one, two = stage.fake.requests
            assert one.messages == two.messages
            first, second = stage.named("agent.transcript.healed")
            assert first.fields == second.fields

    asyncio.run(go())


def test_a_run_that_is_over_stays_over_and_says_the_same_again() -> None:
    async def go() -> None:
        async with Stage([turn(text("ok"))]) as stage:
            agent = stage.agent()
            first = await stage.run(agent)
            second = await stage.run(agent, "", state=first.state)
            assert (second.stop_reason, second.output) == ("completed", "ok")
            assert second.used == first.used

    asyncio.run(go())


def test_unwrap_gives_the_output_or_says_why_there_is_none() -> None:
    from treadle.worker.agent.result import AgentStopped

    assert play([turn(text("ok"))]).result.unwrap() == "ok"
    refused = play([turn(text("no"), stop_reason="refusal")]).result
    with pytest.raises(AgentStopped, match="refused") as caught:
        refused.unwrap()
    assert caught.value.reason == "refused"
