"""What of a run goes back to the API: pairs, ids, thinking, cut answers, odd stop reasons.

The fake answers 400 to whatever the API would; ``Stage.run`` fails on any.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import msgspec
import pytest
from tests.agent.run.stage import Log, Stage, blocks, kinds, play

from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.entries import Answered, Opened
from treadle.worker.agent.core.state import State
from treadle.worker.agent.models.prices import Price, PriceTable
from treadle.worker.agent.ports import MemoryInbox
from treadle.worker.agent.testing import (
    block,
    malformed_tool_use,
    redacted_thinking,
    text,
    thinking,
    tool_use,
    turn,
)
from treadle.worker.agent.tools.declaring import tool


def doing(log: Log, *, idempotent: bool = True) -> Any:
    @tool(idempotent=idempotent)
    async def do(n: int) -> str:
        """Do the n-th thing."""
        log(n)
        return f"did {n}"

    return do


def do(n: int, id: str | None = None) -> Any:
    return tool_use("do", {"n": n}, id)


def test_all_results_of_a_batch_come_in_one_message_results_first_and_in_order() -> None:
    played = play([turn(*(do(n) for n in range(3))), turn(text("ok"))], tools=[doing(Log())])
    last = played.requests[1].messages[-1]["content"]
    assert [each["type"] for each in last] == ["tool_result"] * 3
    assert [each["content"] for each in last] == [f"did {n}" for n in range(3)]
    assert len(played.requests[1].messages) == 3


def test_a_text_the_runtime_adds_stands_after_the_results() -> None:
    played = play(
        [turn(do(0), do(1)), turn(text("ok"))],
        tools=[doing(Log())],
        budget=Budget(max_steps=2),
    )
    content = played.requests[1].messages[-1]["content"]
    assert [each["type"] for each in content][:2] == ["tool_result", "tool_result"]


def test_after_going_on_every_earlier_pair_is_sent_byte_for_byte_again() -> None:
    async def go() -> None:
        async with Stage([turn(do(1)), turn(text("one"))]) as stage:
            agent = stage.agent(tools=[doing(Log())])
            first = await stage.run(agent)
            saved = msgspec.json.decode(msgspec.json.encode(first.state), type=State)
            stage.fake.extend(turn(text("two")))
            await stage.run(agent, "Again.", state=saved)
            before, after = stage.fake.requests[1], stage.fake.requests[2]
            for kind in ("tool_use", "tool_result"):
                assert blocks(before, kind) == blocks(after, kind) != []

    asyncio.run(go())


def test_an_id_that_was_used_before_is_renamed_and_both_calls_have_their_results() -> None:
    log = Log()
    played = play([turn(do(1, "same")), turn(do(2, "same")), turn(text("ok"))], tools=[doing(log)])
    assert log.lines == [1, 2]
    assert {each["content"] for each in blocks(played.requests[2], "tool_result")} == {
        "did 1",
        "did 2",
    }
    from treadle.worker.agent.core.state import fold

    assert fold(State(), played.stage.entries) == played.result.state


def test_one_id_for_two_different_calls_runs_both_and_shows_both_results() -> None:
    log = Log()
    played = play([turn(do(1, "same"), do(2, "same")), turn(text("ok"))], tools=[doing(log)])
    assert sorted(log.lines) == [1, 2]
    assert list(played.results(1).values()) == ["did 1", "did 2"]


def test_the_same_call_sent_twice_with_one_id_runs_once() -> None:
    log = Log()
    played = play([turn(do(1, "same"), do(1, "same")), turn(text("ok"))], tools=[doing(log)])
    assert log.lines == [1]
    assert list(played.results(1).values()) == ["did 1"]


def test_two_equal_calls_with_ids_of_their_own_both_run() -> None:
    log = Log()
    play([turn(do(1), do(1)), turn(text("ok"))], tools=[doing(log)])
    assert log.lines == [1, 1]


def test_an_empty_text_of_an_answer_is_not_sent_back() -> None:
    played = play([turn(text(""), do(1)), turn(text("ok"))], tools=[doing(Log())])
    assert [each["type"] for each in played.requests[1].messages[1]["content"]] == ["tool_use"]


def test_an_answer_of_nothing_but_blank_text_leaves_no_message_behind() -> None:
    played = play([turn(text(" ")), turn(text("ok"))])
    assert played.reason == "completed"
    assert [each["role"] for each in played.requests[1].messages] == ["user"]


def test_two_tools_of_one_name_are_refused_when_the_agent_is_made() -> None:
    from treadle.worker.agent.tools.errors import InvalidTool

    with pytest.raises(InvalidTool, match="2 tools have this name"):
        play([], tools=[doing(Log()), doing(Log())])


# ------------------------------------------------------------------ thinking


@pytest.mark.parametrize("stream", [True, False])
def test_thinking_goes_back_byte_for_byte_with_its_signature(stream: bool) -> None:
    played = play(
        [
            turn(thinking("let me see"), redacted_thinking("x"), thinking(""), do(1)),
            turn(text("ok")),
        ],
        tools=[doing(Log())],
        thinking="medium",
        max_output_tokens=8_000,
        stream=stream,
    )
    assert played.reason == "completed"
    back = played.requests[1].messages[1]["content"]
    assert [each["type"] for each in back] == [
        "thinking",
        "redacted_thinking",
        "thinking",
        "tool_use",
    ]
    assert back[2]["thinking"] == "" and back[2]["signature"]


def test_thinking_survives_a_saved_state() -> None:
    async def go() -> None:
        turns = [turn(thinking("hm"), do(1)), turn(text("ok"))]
        async with Stage(turns) as stage:
            agent = stage.agent(tools=[doing(Log())], thinking="low", max_output_tokens=8_000)
            first = await stage.run(agent)
            saved = msgspec.json.decode(msgspec.json.encode(first.state), type=State)
            stage.fake.extend(turn(text("more")))
            await stage.run(agent, "More.", state=saved)
            sent = [blocks(request, "thinking") for request in stage.fake.requests[1:]]
            assert sent[0] == sent[1] != []

    asyncio.run(go())


# ------------------------------------------------------------------ cut answers


def test_no_call_of_a_cut_answer_runs_and_its_result_names_the_cut() -> None:
    log = Log()
    played = play(
        [turn(do(1), do(2), stop_reason="max_tokens"), turn(do(3)), turn(text("ok"))],
        tools=[doing(log)],
    )
    assert log.lines == [3]
    for result in played.results(1).values():
        assert "cut off" in result and "max_tokens" in result and "missing" not in result


def test_after_a_cut_answer_the_next_may_be_longer_once() -> None:
    played = play([turn(text("a long st"), stop_reason="max_tokens"), turn(text("short"))])
    assert played.reason == "completed"
    first, second = (each.body["max_tokens"] for each in played.requests)
    assert second == 2 * first


def test_a_second_cut_answer_in_a_row_ends_the_run() -> None:
    played = play(lambda _: turn(text("for ever"), stop_reason="max_tokens"))
    assert played.reason == "output_truncated"
    assert len(played.requests) == 2


def test_arguments_that_are_no_json_get_another_try_and_then_end_the_run() -> None:
    log = Log()
    played = play(
        [turn(malformed_tool_use("do", '{"n": 1')), turn(do(2)), turn(text("ok"))],
        tools=[doing(log)],
    )
    assert played.reason == "completed"
    assert log.lines == [2]
    assert "no valid JSON" in played.said(1)
    always = play(lambda _: turn(malformed_tool_use("do", '{"n": 1')), tools=[doing(log)])
    assert always.reason == "failed"
    assert len(always.requests) <= 4
    assert log.lines == [2]


def test_the_input_of_a_malformed_answer_is_counted() -> None:
    played = play(
        [turn(malformed_tool_use("do", '{"n": 1')), turn(text("ok"))],
        tools=[doing(Log())],
        prices=PriceTable({"claude": Price(input=1, output=1)}),
    )
    spent = [
        each["usage"] for each in [e.fields for e in played.stage.named("agent.message.ended")]
    ]
    whole = played.result.used.usage
    assert whole.context_tokens > sum(sum(each.values()) for each in spent)


# ------------------------------------------------------------------ stop reasons


def test_a_refusal_is_terminal_and_never_repeated() -> None:
    played = play([turn(text("I can't help with that."), stop_reason="refusal")])
    assert played.reason == "refused"
    assert played.result.text == "I can't help with that."
    assert len(played.requests) == 1


def test_a_refusal_without_content_is_a_refusal_too() -> None:
    played = play([turn(stop_reason="refusal")])
    assert played.reason == "refused"
    assert len(played.requests) == 1


def test_a_refusal_with_calls_runs_none_of_them() -> None:
    log = Log()
    played = play([turn(do(1), stop_reason="refusal")], tools=[doing(log)])
    assert played.reason == "refused"
    assert log.lines == []


SEARCHING = block(
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"q": "x"}}
)


@pytest.mark.parametrize("content", [(SEARCHING,), (text("I look for"),)])
def test_a_paused_answer_goes_back_as_it_is_and_its_usage_counts(content: Any) -> None:
    played = play(
        [turn(*content, stop_reason="pause_turn"), turn(text("found it"))],
        # Notices are due in each turn here, and must not come between.
        budget=Budget(max_steps=3),
        run={"inbox": None},
    )
    assert played.reason == "completed"
    first, second = (each.messages for each in played.requests)
    assert [each["role"] for each in second] == ["user", "assistant"]
    assert blocks(played.requests[1], "text")[:1] == blocks(played.requests[0], "text")
    sent = [{k: v for k, v in b.items() if k != "cache_control"} for b in second[1]["content"]]
    (answered, *_) = [each for each in played.stage.entries if isinstance(each, Answered)]
    assert sent == answered.content, "as it came, block for block"
    assert len(first) == 1
    assert played.result.used.steps == 2
    ended = played.stage.named("agent.message.ended")
    total = sum(sum(each.fields["usage"].values()) for each in ended)
    assert played.result.used.usage.context_tokens == total


def test_words_that_arrive_while_an_answer_is_paused_are_heard_after_it() -> None:
    inbox = MemoryInbox()
    played = play(
        [turn(SEARCHING, stop_reason="pause_turn"), turn(text("found")), turn(text("and y"))],
        run={"inbox": inbox},
        fake={"before_response": lambda request, _: request.index or inbox.steer("Also y.")},
    )
    assert [each["role"] for each in played.requests[1].messages] == ["user", "assistant"]
    assert "Also y." in played.said(2)
    assert played.result.output == "and y"


def test_an_answer_that_is_paused_for_ever_ends_the_run() -> None:
    played = play(lambda _: turn(SEARCHING, stop_reason="pause_turn"))
    assert played.reason == "failed"
    assert len(played.requests) == 7
    for request in played.requests:
        assert [m["role"] for m in request.messages if m["role"] == "user"] == ["user"]
        assert len(blocks(request, "server_tool_use")) == request.index


def test_a_bound_that_is_reached_while_an_answer_is_paused_ends_the_run_at_once() -> None:
    played = play(lambda _: turn(SEARCHING, stop_reason="pause_turn"), budget=Budget(max_steps=2))
    assert played.reason == "max_steps"
    assert len(played.requests) == 2


def test_an_unknown_stop_reason_with_text_is_decided_by_its_content() -> None:
    played = play([turn(text("42"), stop_reason="brand_new")])
    assert played.reason == "completed"
    assert played.result.output == "42"


def test_an_unknown_stop_reason_with_calls_runs_none_and_says_so() -> None:
    log = Log()
    played = play([turn(do(1), stop_reason="brand_new"), turn(text("ok"))], tools=[doing(log)])
    assert log.lines == []
    assert "brand_new" in played.said(1)


def test_an_unknown_stop_reason_without_content_never_completes() -> None:
    played = play(lambda _: turn(stop_reason="brand_new"))
    assert played.reason == "empty_turn"


def test_calls_in_an_answer_that_ended_by_itself_run() -> None:
    log = Log()
    play([turn(do(1), stop_reason="end_turn"), turn(text("ok"))], tools=[doing(log)])
    assert log.lines == [1]


def test_the_end_of_the_window_leads_to_a_compaction_and_another_try() -> None:
    history = [turn(do(n)) for n in range(8)]
    full = turn(text("I was just"), stop_reason="model_context_window_exceeded")
    summary = turn(text("## Goal\nGo\n## Done\nSeven things"))
    played = play([*history, full, summary, turn(text("ok"))], tools=[doing(Log())])
    assert played.reason == "completed"
    assert played.stage.named("agent.compaction.run")
    assert played.result.output == "ok"


def test_the_end_of_the_window_again_stops_the_run_as_what_it_is() -> None:
    played = play(
        lambda _: turn(text("I was"), stop_reason="model_context_window_exceeded"),
        budget=Budget(max_steps=10),
    )
    assert played.reason == "context_exceeded"
    assert len(played.requests) <= 3


def test_every_stop_reason_of_an_answer_is_told_to_those_who_count() -> None:
    played = play([turn(SEARCHING, stop_reason="pause_turn"), turn(text("ok"))])
    told = [each.fields["stop_reason"] for each in played.stage.named("agent.message.ended")]
    assert told == ["pause_turn", "end_turn"]


# ------------------------------------------------------------------ unicode


def test_half_a_character_never_reaches_the_api_or_the_journal() -> None:
    half = json.loads('"\\ud83d"')

    inbox, asked = MemoryInbox(), []

    @tool
    def look(q: str) -> str:
        """Look."""
        asked.append(q)
        inbox.steer(f"there {half}")
        inbox.follow_up(f"then {half}")
        return f"found {half}"

    played = play(
        [
            turn(malformed_tool_use("look", '{"q": "x\\ud83d"}')),
            turn(text("ok")),
            turn(text("done")),
        ],
        goal=f"Look at {half}",
        tools=[look],
        run={"inbox": inbox},
    )
    assert played.reason == "completed" and played.result.output == "done"
    assert asked == ["x\ufffd"]
    stored = msgspec.json.encode(played.stage.entries).decode()
    assert kinds(played.stage.entries)[0] == Opened.__name__
    words = played.requests[-1].raw.decode()
    for each in ("Look at", "there", "then", "found"):
        assert f"{each} \ufffd" in stored
        assert f"{each} \ufffd" in json.dumps(json.loads(words), ensure_ascii=False)
    (use,) = blocks(played.requests[-1], "tool_use")
    assert use["input"] == {"q": "x\ufffd"}


def test_the_prefix_stays_the_same_from_turn_to_turn_and_is_read_from_the_cache() -> None:
    played = play(
        [*(turn(do(n)) for n in range(4)), turn(text("ok"))],
        tools=[doing(Log())],
        instructions="Be good. " * 50,
    )
    reads = [
        each.fields["usage"].get("cache_read_tokens", 0)
        for each in played.stage.named("agent.message.ended")
    ]
    assert reads[0] == 0
    assert all(now > before for before, now in itertools.pairwise(reads))
    bodies = [each.body for each in played.requests]
    assert all(json.dumps(body).count("cache_control") <= 4 for body in bodies)
    assert bodies[0]["system"] == bodies[-1]["system"]
    assert bodies[0]["tools"] == bodies[-1]["tools"]
