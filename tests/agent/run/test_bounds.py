"""Budgets, empty answers, circles: when software says that it is enough, and what it says before.

Scripts that never end are functions; the number of requests shows where a run was stopped.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pytest
from tests.agent.run.stage import Log, Stage, play, said

from treadle.sdk.errors import UserError
from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.entries import Settled, TurnEnded
from treadle.worker.agent.models.prices import Price, PriceTable
from treadle.worker.agent.ports import MemoryInbox, Reply
from treadle.worker.agent.testing import text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool

PRICES = PriceTable({"claude": Price(input=10, output=10)})


@tool(idempotent=True)
async def look(n: int) -> str:
    """Look at the n-th."""
    return f"seen {n}"


def looking(request: Any) -> Any:
    """Look for ever; give a text when no tool may run."""
    if request.body.get("tool_choice") == {"type": "none"}:
        return turn(text("so far"))
    return turn(tool_use("look", {"n": request.index}))


BOUNDS: list[tuple[str, Budget, int]] = [
    ("max_steps", Budget(max_steps=2), 2),
    ("max_tool_calls", Budget(max_tool_calls=2), 2),
    ("max_tokens", Budget(max_input_tokens=1), 1),
    ("max_tokens", Budget(max_output_tokens=1), 1),
    ("max_tokens", Budget(max_total_tokens=1), 1),
    ("max_cost", Budget(max_cost_usd=0.000_001), 1),
]


@pytest.mark.parametrize(("reason", "budget", "turns"), BOUNDS)
def test_at_each_bound_the_last_answer_is_asked_for_without_tools(
    reason: str, budget: Budget, turns: int
) -> None:
    played = play(looking, tools=[look], budget=budget, prices=PRICES)
    assert played.reason == reason
    assert played.result.output == "so far"
    assert len(played.requests) == turns + 1
    assert "This is your last answer" in played.said(turns)
    assert played.requests[-1].body["tool_choice"] == {"type": "none"}
    assert played.stage.named("agent.exhaustion.soft")


@pytest.mark.parametrize(("reason", "budget", "turns"), BOUNDS)
def test_at_each_bound_a_run_that_has_to_fail_makes_no_further_call(
    reason: str, budget: Budget, turns: int
) -> None:
    played = play(looking, tools=[look], budget=budget, prices=PRICES, on_limit="fail")
    assert played.reason == reason
    assert played.result.output is None
    assert len(played.requests) == turns


def test_at_the_soft_time_limit_the_last_answer_is_asked_for() -> None:
    now = [1_000_000]

    @tool(idempotent=True)
    async def wait() -> str:
        """Wait."""
        now[0] += 76_000
        return "waited"

    def next_turn(request: Any) -> Any:
        last = request.body.get("tool_choice") is not None
        return turn(text("so far") if last else tool_use("wait", {}))

    played = play(
        next_turn,
        tools=[wait],
        budget=Budget(max_duration=datetime.timedelta(seconds=100)),
        run={"clock": lambda: now[0]},
    )
    assert played.reason == "timeout"
    assert played.result.output == "so far"
    assert len(played.requests) == 2


def test_what_follows_the_last_answer_is_nothing_even_if_it_proposes_more() -> None:
    log = Log()

    @tool(idempotent=True)
    async def act() -> str:
        """Act."""
        log("acted")
        return "acted"

    async def go() -> None:
        # The answer ignores that no tool may be chosen.
        async with Stage(lambda _: turn(text("more!"), tool_use("act", {}))) as stage:
            result = await stage.run(stage.agent(tools=[act], budget=Budget(max_steps=1)))
            assert result.stop_reason == "max_steps"
            assert stage.fake.count == 2
            assert result.text == "more!"
        assert log.lines == ["acted"]

    asyncio.run(go())


def test_a_typed_result_is_validated_at_the_bound_too() -> None:
    for given, output in ((7, 7), ("seven", None)):

        def next_turn(request: Any, given: Any = given) -> Any:
            if request.index == 0:
                return turn(tool_use("look", {"n": 0}))
            return turn(tool_use("final_output", {"result": given}))

        played = play(next_turn, tools=[look], output_type=int, budget=Budget(max_steps=1))
        assert played.reason == "max_steps"
        assert played.result.output == output
        assert played.requests[1].body["tool_choice"]["name"] == "final_output"


def test_the_result_is_no_tool_call_that_could_be_one_too_many() -> None:
    def next_turn(request: Any) -> Any:
        if request.index == 0:
            return turn(tool_use("look", {"n": 0}))
        return turn(tool_use("final_output", {"result": 7}))

    played = play(next_turn, tools=[look], output_type=int, budget=Budget(max_tool_calls=1))
    assert played.reason == "max_tool_calls"
    assert played.result.output == 7


def test_the_run_journal_and_questions_use_up_no_budget_of_tool_calls() -> None:
    note = {"section": "decisions", "entry": "look first"}
    script = [
        turn(
            tool_use("append_run_journal_entry", note),
            tool_use("get_run_journal", {}),
            tool_use("look", {"n": 0}),
            tool_use("update_run_journal", {"objective": "see"}),
        ),
        turn(tool_use("ask_human", {"question": "More?"}, id="q")),
    ]

    async def go() -> None:
        async with Stage(script) as stage:
            agent = stage.agent(tools=[look], budget=Budget(max_tool_calls=2), ask_human=True)
            asked = await stage.run(agent)
            assert asked.stop_reason == "needs_human"
            inbox = MemoryInbox()
            inbox.reply(Reply(call_id="q", verdict="answer", text="Yes."))
            stage.fake.extend(turn(tool_use("look", {"n": 1}), tool_use("get_run_journal", {})))
            stage.fake.extend(turn(text("enough")))
            result = await stage.run(agent, "", state=asked.state, inbox=inbox)
            assert (result.stop_reason, result.used.tool_calls) == ("max_tool_calls", 2)
            assert [r.status for r in settled(stage)] == ["ok"] * 7
            assert result.state.executed["get_run_journal"] == 2

    asyncio.run(go())


def settled(stage: Stage) -> list[Any]:
    return [entry.result for entry in stage.entries if isinstance(entry, Settled)]


def test_a_question_beside_the_result_in_the_last_answer_is_not_asked() -> None:
    def next_turn(request: Any) -> Any:
        if request.index == 0:
            return turn(tool_use("look", {"n": 0}))
        question = tool_use("ask_human", {"question": "Shall I?"})
        return turn(question, tool_use("final_output", {"result": 7}))

    played = play(
        next_turn, tools=[look], output_type=int, budget=Budget(max_steps=1), ask_human=True
    )
    assert (played.reason, played.result.output) == ("max_steps", 7)


def test_a_result_and_a_call_in_the_last_answer_give_the_result_alone() -> None:
    log = Log()

    @tool(idempotent=True)
    async def act() -> str:
        """Act."""
        log("acted")
        return "acted"

    def next_turn(request: Any) -> Any:
        calls = [tool_use("act", {})]
        if request.index:
            calls.append(tool_use("final_output", {"result": 7}))
        return turn(*calls)

    played = play(next_turn, tools=[act], output_type=int, budget=Budget(max_steps=1))
    assert played.result.output == 7
    assert log.lines == ["acted"]


def test_one_turn_with_many_calls_is_bounded_inside_the_batch() -> None:
    log = Log()

    @tool(idempotent=True)
    async def act(n: int) -> str:
        """Act."""
        log(n)
        return "acted"

    played = play(
        [turn(*(tool_use("act", {"n": n}) for n in range(50))), turn(text("enough"))],
        tools=[act],
        budget=Budget(max_tool_calls=3),
    )
    assert sorted(log.lines) == [0, 1, 2]
    results = list(played.results(1).values())
    assert len(results) == 50
    assert all("budget of 3 tool calls is used up" in each for each in results[3:])


def test_a_bound_on_one_tool_holds_inside_a_batch() -> None:
    from treadle.worker.agent.tools.policy import Policy

    log = Log()

    @tool(idempotent=True)
    async def search(q: str) -> str:
        """Search."""
        log(q)
        return "found"

    played = play(
        [
            turn(*(tool_use("search", {"q": q}) for q in "abc")),
            turn(tool_use("search", {"q": "d"})),
            turn(text("ok")),
        ],
        tools=[search],
        policy=Policy(max_calls_per_tool={"search": 2}),
    )
    assert sorted(log.lines) == ["a", "b"]
    assert "may be called 2 times" in played.said(1)
    assert "may be called 2 times" in played.said(2)


def test_the_model_is_told_at_60_and_85_percent_of_its_turns_what_is_left() -> None:
    played = play(looking, tools=[look], budget=Budget(max_steps=20))
    told = [
        said(request.messages[-1])
        for request in played.requests
        if "turns are used" in said(request.messages[-1])
    ]
    assert len(told) == 2
    assert "12 of 20 turns are used; 8 are left" in told[0]
    assert "17 of 20 turns are used; 3 are left" in told[1]


def test_money_needs_a_price_table() -> None:
    with pytest.raises(UserError, match="price table"):
        play([], budget=Budget(max_cost_usd=1))


def test_a_bound_is_counted_over_all_runs_that_went_on_from_one_another() -> None:
    async def go() -> None:
        async with Stage(looking) as stage:
            agent = stage.agent(tools=[look], budget=Budget(max_steps=2))
            first = await stage.run(agent)
            second = await stage.run(agent, "More!", state=first.state)
            assert (first.stop_reason, second.stop_reason) == ("max_steps", "max_steps")
            assert second.used.steps == first.used.steps + 1

    asyncio.run(go())


# ------------------------------------------------------------------ empty answers


def test_one_empty_answer_is_nudged_and_forgiven() -> None:
    played = play([turn(), turn(text("here I am"))])
    assert played.reason == "completed"
    assert "neither text nor a tool call" in played.said(1)


def test_two_empty_answers_in_a_row_end_the_run() -> None:
    played = play(lambda _: turn(text("  ")))
    assert played.reason == "empty_turn"
    assert len(played.requests) == 2


def test_an_empty_answer_after_a_useful_one_counts_anew() -> None:
    empty, useful = turn(), turn(tool_use("look", {"n": 1}))
    played = play([empty, useful, empty, turn(text("ok"))], tools=[look])
    assert played.reason == "completed"


def test_a_text_instead_of_the_typed_result_is_asked_for_again_and_bounded() -> None:
    played = play(
        [turn(text("seven")), turn(tool_use("final_output", {"result": 7}))], output_type=int
    )
    assert played.result.output == 7
    assert "by calling final_output" in played.said(1)
    always = play(lambda _: turn(text("seven")), output_type=int)
    assert always.reason == "failed"
    assert len(always.requests) == 4


def test_a_plain_text_ends_a_run_with_tools_and_a_text_as_output() -> None:
    played = play([turn(text("all done"))], tools=[look])
    assert played.reason == "completed"
    assert len(played.requests) == 1


def test_a_result_that_does_not_fit_is_explained_three_times_and_then_fails() -> None:
    played = play(lambda _: turn(tool_use("final_output", {"result": "x"})), output_type=int)
    assert played.reason == "failed"
    assert len(played.requests) == 4
    assert "integer" in played.said(1)
    assert "integer" in played.result.detail


def test_an_empty_result_of_a_tool_is_stated_as_a_fact() -> None:
    @tool(idempotent=True)
    async def nothing() -> str:
        """Find nothing."""
        return ""

    played = play([turn(tool_use("nothing", {})), turn(text("ok"))], tools=[nothing])
    (result,) = played.results(1).values()
    assert result.strip()


# ------------------------------------------------------------------ circles


def getter(log: Log, **options: Any) -> Any:
    @tool(**{"idempotent": True} | options)
    async def get(q: str) -> str:
        """Get."""
        log(q)
        return "nothing found"

    return get


def test_the_third_identical_call_does_not_run_and_the_model_is_made_to_reflect() -> None:
    log = Log()
    same = turn(tool_use("get", {"q": "x"}))
    played = play([same, same, same, turn(text("I see"))], tools=[getter(log)])
    assert played.reason == "completed"
    assert log.lines == ["x", "x"]
    assert "Name the assumption" in played.said(3)
    (detected,) = played.stage.named("agent.loop.detected")
    assert detected.fields == {"tier": "identical", "tool": "get", "level": 1}


def test_a_model_that_goes_on_repeating_climbs_the_ladder_and_is_stopped() -> None:
    log = Log()
    played = play(lambda _: turn(tool_use("get", {"q": "x"})), tools=[getter(log)])
    assert played.reason in ("loop_detected", "needs_human")
    assert log.lines == ["x", "x"]
    assert len(played.requests) <= 5


def test_the_ladder_goes_from_a_nudge_over_taking_the_tool_away_to_a_person() -> None:
    """Beside each repeated call one that is new, so that no turn is all suppressed."""
    log = Log()

    def next_turn(request: Any) -> Any:
        return turn(tool_use("get", {"q": "x"}), tool_use("look", {"n": 1_000 + 7 * request.index}))

    played = play(next_turn, tools=[getter(log), look])
    assert played.reason == "needs_human"
    levels = [each.fields["level"] for each in played.stage.named("agent.loop.detected")]
    assert levels[:2] == [1, 2]
    assert played.stage.named("agent.guardrail.escalated")
    assert log.lines == ["x", "x"]
    ended = [e.detection for e in played.stage.entries if isinstance(e, TurnEnded) and e.detection]
    assert [each.level for each in ended] == levels


def test_differing_arguments_that_find_nothing_are_a_circle_too() -> None:
    log = Log()
    played = play(
        lambda request: turn(tool_use("get", {"q": f"try {request.index}"})),
        tools=[getter(log)],
        budget=Budget(max_steps=15),
    )
    assert played.reason == "needs_human"
    tiers = {each.fields["tier"] for each in played.stage.named("agent.loop.detected")}
    assert tiers == {"pattern"}
    assert len(played.requests) < 15


def test_an_identical_change_is_not_made_a_third_time() -> None:
    log = Log()
    played = play(
        lambda request: (
            turn(tool_use("get", {"q": "insert"})) if request.index < 3 else turn(text("stopped"))
        ),
        tools=[getter(log, idempotent=False)],
    )
    assert played.reason == "completed"
    assert log.lines == ["insert", "insert"]


def test_reading_again_after_a_change_is_no_circle() -> None:
    log = Log()

    @tool
    async def edit(n: int) -> str:
        """Edit."""
        return f"edited {n}"

    turns: list[Any] = []
    for n in range(4):
        turns += [turn(tool_use("get", {"q": "file"})), turn(tool_use("edit", {"n": n}))]
    played = play([*turns, turn(text("ok"))], tools=[getter(log), edit])
    assert played.reason == "completed"
    assert log.lines == ["file"] * 4


def test_refused_calls_count_for_circles_as_well() -> None:
    played = play(lambda _: turn(tool_use("no_such_tool", {"q": 1})), budget=Budget(max_steps=12))
    assert played.reason in ("needs_human", "loop_detected")
    assert len(played.requests) < 12
