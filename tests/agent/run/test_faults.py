"""Model calls that fail, and conversations that grow too long: what is tried, and what is left.

The fake counts the requests; the agent's retries are made quick.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.run.stage import QUICK, Log, Stage, play, said

from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.compaction import CompactionPolicy
from treadle.worker.agent.core.entries import Compacted
from treadle.worker.agent.models.prices import Price, PriceTable
from treadle.worker.agent.models.retrying import RetryPolicy
from treadle.worker.agent.testing import (
    cut_after,
    error,
    error_after,
    hang_up,
    no_message_stop,
    text,
    tool_use,
    turn,
)
from treadle.worker.agent.tools.declaring import tool

OK = turn(text("ok"))


@pytest.mark.parametrize("fault", [error(529), error(429), error(500), hang_up()])
def test_what_may_pass_is_tried_again_while_nothing_was_given_out(fault: Any) -> None:
    played = play([fault, fault, OK])
    assert played.reason == "completed"
    assert len(played.stage.named("agent.model.retry")) == 2


@pytest.mark.parametrize(
    "fault",
    [
        cut_after("message_start"),
        error_after("message_start"),
        cut_after("message_start", reset=True),
    ],
)
def test_a_stream_that_breaks_before_its_first_delta_is_tried_again(fault: Any) -> None:
    played = play([turn(text("never seen"), fault=fault), OK])
    assert played.result.output == "ok"
    assert played.stage.named("agent.message.superseded") == []


@pytest.mark.parametrize(
    "fault",
    [
        cut_after("content_block_delta"),
        error_after("content_block_delta"),
        no_message_stop(),
    ],
)
def test_a_stream_that_breaks_after_a_delta_is_superseded_and_never_taken_for_an_answer(
    fault: Any,
) -> None:
    log = Log()

    @tool
    async def send(amount: int) -> str:
        """Send."""
        log(amount)
        return "sent"

    async def go() -> None:
        broken = turn(text("I send"), tool_use("send", {"amount": 100}), fault=fault)
        async with Stage([broken] * 3) as stage:
            agent = stage.agent(tools=[send])
            failed = await stage.run(agent)
            assert failed.stop_reason == "failed"
            assert len(stage.named("agent.message.superseded")) == 3
            assert log.lines == []
            assert failed.used.usage.is_estimated or failed.used.usage.output_tokens
            stage.fake.extend(OK)
            again = await stage.run(agent, "Go on.", state=failed.state)
            assert again.output == "ok"
            assert all(m["role"] == "user" for m in stage.fake.requests[-1].messages)

    asyncio.run(go())


@pytest.mark.parametrize(
    "fault", [cut_after("content_block_delta"), error_after("content_block_delta")]
)
def test_an_answer_that_breaks_off_is_asked_for_again_and_what_was_shown_is_superseded(
    fault: Any,
) -> None:
    played = play([turn(text("I beg"), fault=fault), OK])
    assert (played.reason, played.result.output) == ("completed", "ok")
    shown = [name for name in played.stage.names if name.startswith("agent.message.")]
    assert shown[:3] == ["agent.message.started", "agent.message.delta", "agent.message.superseded"]
    assert shown[3:5] == ["agent.message.started", "agent.message.delta"]
    assert shown.count("agent.message.ended") == 1
    assert "I beg" not in str(played.result.state.messages)
    assert played.result.used.usage.is_estimated, "the tokens of the part that broke off count"
    assert played.result.used.steps == 1


def test_what_failed_calls_used_is_counted_once() -> None:
    prices = PriceTable({"claude": Price(input=1, output=1)})
    broken = turn(text("x"), fault=cut_after("message_start"))
    once = play([OK], prices=prices)
    twice = play([broken, OK], prices=prices)
    assert twice.result.used.usage.context_tokens > once.result.used.usage.context_tokens
    assert twice.result.used.cost_micro_usd > once.result.used.cost_micro_usd
    failing = play([broken] * 2, prices=prices, model_retry=RetryPolicy(retries=1, first_delay_s=0))
    assert failing.reason == "failed"
    assert failing.result.used.usage.context_tokens <= 2 * once.result.used.usage.context_tokens + 2
    assert failing.result.used.steps == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_what_does_not_pass_is_not_tried_again(status: int) -> None:
    async def go() -> None:
        async with Stage([error(status)]) as stage:
            result = await stage.agent().run("Go.")
            assert result.stop_reason == "failed"
            assert stage.fake.count == 1

    asyncio.run(go())


def test_exactly_as_many_requests_are_made_as_the_policy_says() -> None:
    played = play(lambda _: error(529), model_retry=RetryPolicy(retries=3, first_delay_s=0.001))
    assert played.reason == "failed"
    assert len(played.requests) == 4


def test_a_wait_of_days_is_no_hang_but_a_visible_end() -> None:
    played = play([error(429, retry_after=200_000)])
    assert played.reason == "failed"
    assert "200000 s" in played.result.detail


def test_the_wait_that_the_provider_asks_for_is_kept() -> None:
    played = play([error(429, retry_after=0.3), OK])
    first, second = played.requests
    assert second.received_at - first.received_at >= 0.3


# ------------------------------------------------------------------ compaction

SUMMARY = "## Goal\nLook at all\n## Done\nlooked at some\n## Next action\ngo on"
WINDOW = 10_000


def read_much(log: Log, chars: int = 7_000) -> Any:
    @tool(idempotent=True)
    async def read(n: int) -> str:
        """Read."""
        log(n)
        return f"page {n}: " + f"{n} " * (chars // 2)

    return read


def is_summary(request: Any) -> bool:
    return "You summarise" in str(request.body.get("system", ""))


def reading(pages: int, *, summary: Any = None) -> Any:
    """Read so many pages, then answer; summaries are given when asked for."""

    def next_turn(request: Any) -> Any:
        if is_summary(request):
            return summary or turn(text(SUMMARY))
        if request.body.get("tool_choice"):
            return turn(text("what I have"))
        read = next_turn.read = getattr(next_turn, "read", 0) + 1  # type: ignore[attr-defined]
        return turn(tool_use("read", {"n": read})) if read <= pages else turn(text("read all"))

    return next_turn


def test_a_long_run_is_compacted_and_goes_on_to_its_end() -> None:
    log = Log()

    @tool(idempotent=True)
    async def index() -> str:
        """Read the index."""
        return "the index of the book"

    inner = reading(12)

    def next_turn(request: Any) -> Any:
        return turn(tool_use("index", {})) if request.index == 0 else inner(request)

    played = play(
        next_turn,
        goal="Read the whole book, page by page.",
        tools=[read_much(log), index],
        window=WINDOW,
        compaction=CompactionPolicy(keep=4, deep_keep=2),
        fake={"context_window": WINDOW},
    )
    assert played.reason in ("completed", "needs_human")
    (first, *_) = played.stage.named("agent.compaction.run")
    assert first.fields["tokens_after"] < first.fields["tokens_before"]
    assert first.fields["messages_after"] < first.fields["messages_before"]
    after = next(
        request
        for request in played.requests
        if "<earlier_conversation" in str(request.messages[0])
    )
    block = said(after.messages[0])
    assert "Read the whole book, page by page." in block
    assert "looked at some" in block
    # The latest result of a tool that the tail knows nothing of is kept; as text, not as a result.
    assert "the index of the book" in block.split("<latest_result")[1]
    assert after.body["tools"] == played.requests[0].body["tools"]


def test_still_too_long_after_both_recoveries_a_person_is_asked() -> None:
    played = play(
        reading(60),
        tools=[read_much(Log(), 5_000)],
        window=WINDOW,
        compaction=CompactionPolicy(keep=4, deep_keep=2),
        budget=Budget(max_steps=80),
        fake={"context_window": WINDOW},
    )
    assert played.reason == "needs_human"
    assert "Go on as before, change direction, or stop here?" in played.result.detail
    fired = [event.fields["stage"] for event in played.stage.named("agent.recovery.fired")]
    assert fired == ["prune", "ask"]
    assert len(played.stage.named("agent.compaction.run")) == 1


def test_a_person_who_says_go_on_gives_a_new_recovery() -> None:
    async def go() -> None:
        async with Stage(reading(200), window=WINDOW, context_window=WINDOW) as stage:
            agent = stage.agent(
                tools=[read_much(Log(), 5_000)],
                compaction=CompactionPolicy(keep=4, deep_keep=2),
                budget=Budget(max_steps=40),
            )
            first = await stage.run(agent)
            assert first.stop_reason == "needs_human"
            second = await stage.run(agent, "Go on as before.", state=first.state)
            assert second.state.turn > first.state.turn
            assert len(stage.named("agent.compaction.run")) == 2

    asyncio.run(go())


@pytest.mark.parametrize("summary", [turn(text("no sections")), error(400), error(529)])
def test_a_summary_that_cannot_be_had_is_replaced_by_a_truncation(summary: Any) -> None:
    async def go() -> None:
        turns = reading(6, summary=summary)
        async with Stage(turns, window=WINDOW, context_window=WINDOW) as stage:
            agent = stage.agent(
                tools=[read_much(Log())],
                compaction=CompactionPolicy(keep=4, deep_keep=2),
                model_retry=RetryPolicy(retries=1, first_delay_s=0.001),
            )
            result = await agent.run("Read.", on_event=stage.events.append, journal=stage.journal)
            assert result.stop_reason in ("completed", "needs_human")
            compacted = [each for each in stage.entries if isinstance(each, Compacted)]
            assert compacted[0].is_fallback
            assert "no summary of them could be made" in str(compacted[0].block)

    asyncio.run(go())


def test_summaries_are_made_by_the_cheap_model_and_counted() -> None:
    async def go() -> None:
        async with Stage(reading(6), window=WINDOW, context_window=WINDOW) as stage:
            agent = stage.agent(
                tools=[read_much(Log())],
                summary_model=stage.model("claude-cheap"),
                compaction=CompactionPolicy(keep=4, deep_keep=2),
            )
            result = await stage.run(agent)
            compacted = next(each for each in stage.entries if isinstance(each, Compacted))
            assert compacted.usage.output_tokens > 0
            by = [each.body["model"] for each in stage.fake.requests if is_summary(each)]
            assert by and set(by) == {"claude-cheap"}
            told = [each.fields["usage"] for each in stage.named("agent.message.ended")]
            assert result.used.usage.context_tokens > sum(sum(each.values()) for each in told)

    asyncio.run(go())


def test_the_run_journal_survives_a_compaction_whole_and_stands_in_the_prompt() -> None:
    notes = tool_use("update_run_journal", {"objective": "Read it all", "current_state": "began"})
    more = tool_use(
        "append_run_journal_entry", {"section": "decisions", "entry": "skip the preface"}
    )
    inner = reading(6)

    def next_turn(request: Any) -> Any:
        return turn(notes, more) if request.index == 0 else inner(request)

    played = play(
        next_turn,
        tools=[read_much(Log())],
        window=WINDOW,
        instructions="Be good.",
        compaction=CompactionPolicy(keep=4, deep_keep=2),
        fake={"context_window": WINDOW},
    )
    assert "system" in played.requests[1].body
    # Frozen while the prefix stands, so that the cache holds.
    assert played.requests[1].body["system"] == played.requests[0].body["system"]
    after = next(
        request
        for request in played.requests
        if "<earlier_conversation" in str(request.messages[0])
    )
    assert "Read it all" in str(after.body["system"])
    assert "## Decisions\n- skip the preface" in said(after.messages[0])


def test_one_result_that_fills_the_window_is_cut_instead_of_ending_the_run() -> None:
    played = play(
        reading(3),
        tools=[read_much(Log(), 200_000)],
        window=WINDOW,
        fake={"context_window": WINDOW},
    )
    assert played.reason == "completed"


def test_a_prompt_that_the_provider_finds_too_long_is_compacted_and_sent_again() -> None:
    """The provider's window is smaller than the agent believes."""

    async def go() -> None:
        async with Stage(reading(8), window=200_000, context_window=6_000) as stage:
            agent = stage.agent(tools=[read_much(Log())])
            result = await agent.run("Read.", on_event=stage.events.append)
            assert result.stop_reason == "completed"
            assert stage.named("agent.recovery.fired")

    asyncio.run(go())


def test_a_goal_that_does_not_fit_at_all_is_an_end_with_a_name() -> None:
    async def go() -> None:
        async with Stage([OK], context_window=1_000) as stage:
            result = await stage.agent().run("word " * 4_000)
            assert result.stop_reason == "context_exceeded"
            assert "prompt is too long" in result.detail
            assert stage.fake.count <= 2

    asyncio.run(go())


def test_when_nothing_makes_room_any_more_the_last_answer_is_asked_for() -> None:
    policy = CompactionPolicy(keep=4, deep_keep=2, cap=0, trigger=0.5, forced_final=0.6)
    played = play(
        reading(40),
        tools=[read_much(Log())],
        window=WINDOW,
        compaction=policy,
        model_retry=QUICK,
        fake={"context_window": WINDOW},
    )
    assert played.reason == "context_exceeded"
    assert played.result.text == "what I have"
    assert played.requests[-1].body["tool_choice"] == {"type": "none"}
