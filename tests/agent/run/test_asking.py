"""What people are asked and how they answer: first answers, edits, escalation, expiry.

Method: runs in this process, each continuation through JSON with an inbox and a clock of its own.
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest
from tests.agent.run.stage import Log
from tests.agent.run.test_people import Waiting, pay, paying, waiting

from treadle.sdk.asks import Ask, Reply
from treadle.sdk.errors import UserError
from treadle.worker.agent import Agent, Escalation, Hooks, Policy
from treadle.worker.agent.core.entries import Asked, Escalated, Refused, Replied
from treadle.worker.agent.hooks import Block
from treadle.worker.agent.testing import tool_use
from treadle.worker.agent.tools.policy import Deny

HOUR_MS = 3_600_000
HOUR = datetime.timedelta(hours=1)


def of(run: Waiting, kind: type[Any]) -> list[Any]:
    return [entry for entry in run.stage.entries if isinstance(entry, kind)]


# ------------------------------------------------------------------ what is asked


def test_what_is_asked_names_the_call_its_arguments_and_their_hash() -> None:
    async def test(run: Waiting) -> None:
        (ask,) = run.result.asks
        (call,) = run.result.waiting_for
        (asked,) = of(run, Asked)
        assert ask == Ask(
            id=call.id,
            kind="approval",
            tool="pay",
            input=msgspec.Raw(b'{"to":"ann","cents":100}'),
            args_hash=call.args_hash,
            asked_ms=asked.at_ms,
        )

    waiting(test, pay("ann"))


def test_a_question_is_asked_with_its_words_and_options() -> None:
    async def test(run: Waiting) -> None:
        (ask,) = run.result.asks
        assert (ask.kind, ask.text, ask.options) == ("question", "Which?", ("a", "b"))
        result = await run.go_on(Reply(call_id=ask.id, verdict="answer", text="a"))
        assert result.stop_reason == "completed" and result.asks == ()

    question = tool_use("ask_human", {"question": "Which?", "options": ["a", "b"]})
    waiting(test, question, ask_human=True)


def test_the_reason_of_a_rule_is_what_people_read() -> None:
    from treadle.worker.agent.tools.policy import Ask as AskPeople

    async def test(run: Waiting) -> None:
        assert [ask.text for ask in run.result.asks] == ["It is a lot."]

    policy = Policy(rule=lambda call, _: AskPeople("It is a lot."))
    waiting(test, pay("ann"), tools=[paying(Log(), requires_approval=False)], policy=policy)


# ------------------------------------------------------------------ answers


def test_the_first_answer_counts_and_the_second_changes_nothing() -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        await run.go_on(run.approve("ann", by="ada"), run.approve("ann", verdict="reject"))
        assert log.lines == [("ann", 100)]
        assert [entry.by for entry in of(run, Replied)] == ["ada"]

    waiting(test, pay("ann"), log=log)


BAD_EDITS: list[tuple[dict[str, Any], str]] = [
    ({"to": "ann", "cents": "many"}, "cents"),
    ({"to": "ann"}, "cents"),
    ({"to": "ann", "cents": 5, "note": "x"}, "note"),
    ({"to": "eve", "cents": 5}, "Not to eve."),
    ({"to": "mallory", "cents": 5}, "Blocked for mallory."),
    ({"to": "bob", "cents": 5}, '"to":"bobby"'),
]


@pytest.mark.parametrize(("edit", "told"), BAD_EDITS)
def test_an_edit_that_may_not_run_goes_back_to_the_person_and_not_to_the_model(
    edit: dict[str, Any], told: str
) -> None:
    log = Log()

    def rule(call: Any, _: Any) -> Deny | None:
        return Deny("Not to eve.") if call.input.get("to") == "eve" else None

    def hook(call: Any) -> Any:
        if call.input["to"] == "mallory":
            return Block("Blocked for mallory.")
        return {**call.input, "to": "bobby"} if call.input["to"] == "bob" else None

    async def test(run: Waiting) -> None:
        (before,) = run.result.asks
        result = await run.go_on(run.approve("ann", input=edit, by="ada"))
        assert result.stop_reason == "needs_human"
        assert log.lines == [] and len(run.stage.fake.requests) == 1
        (ask,) = result.asks
        assert told in ask.problem
        assert ask.after > 0
        same = msgspec.structs.replace(ask, problem="", after=0)
        assert same == before, "it is the same question as before"
        (refused,) = of(run, Refused)
        assert (refused.by, refused.seen) == ("ada", ask.after)
        assert run.stage.named("agent_run.answer_refused")
        # The next answer is taken.
        result = await run.go_on(run.approve("ann", input={"to": "ann", "cents": 5}))
        assert result.stop_reason == "completed"
        assert log.lines == [("ann", 5)]

    waiting(test, pay("ann"), log=log, policy=Policy(rule=rule), hooks=Hooks(before_tool_call=hook))


def test_an_edit_counts_against_the_calls_a_tool_may_have() -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        result = await run.go_on(run.approve("ann", input={"to": "ann", "cents": 1}))
        assert log.lines == [("ann", 1)], "the call itself is not counted twice"
        assert result.stop_reason == "completed"

    waiting(test, pay("ann"), log=log, policy=Policy(max_calls_per_tool={"pay": 1}))


@pytest.mark.parametrize("verdict", ["reject", "answer"])
def test_other_arguments_belong_to_an_approval_only(verdict: str) -> None:
    async def test(run: Waiting) -> None:
        result = await run.go_on(run.approve("ann", verdict=verdict, input={"to": "a", "cents": 1}))
        (ask,) = result.asks
        assert "other arguments" in ask.problem

    waiting(test, pay("ann"))


def test_an_approval_of_another_hash_says_so_to_the_person() -> None:
    async def test(run: Waiting) -> None:
        result = await run.go_on(run.approve("ann", args_hash="0" * 64))
        (ask,) = result.asks
        assert "000000000000" in ask.problem and run.calls["ann"].args_hash[:12] in ask.problem

    waiting(test, pay("ann"))


# ------------------------------------------------------------------ time


def test_nobody_answers_so_others_are_asked_in_turn_and_then_it_expires() -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        (ask,) = run.result.asks
        t0 = ask.asked_ms
        assert (ask.level, ask.to, ask.due_ms) == (0, "", t0 + 3 * HOUR_MS)

        async def at(ms: int) -> Any:
            return await run.go_on(clock=lambda: t0 + ms)

        (ask,) = (await at(HOUR_MS - 1)).asks
        assert ask.level == 0 and not of(run, Escalated)
        (ask,) = (await at(HOUR_MS)).asks
        assert (ask.level, ask.to) == (1, "lead")
        (ask,) = (await at(HOUR_MS + 5)).asks
        assert (ask.level, ask.due_ms) == (1, t0 + 3 * HOUR_MS)
        (ask,) = (await at(2 * HOUR_MS + 7)).asks
        assert (ask.level, ask.to) == (2, "head")
        assert [event.fields["to"] for event in run.stage.named("agent_run.escalated")] == [
            "lead",
            "head",
        ]
        assert log.lines == []
        ended = await at(3 * HOUR_MS)
        assert ended.stop_reason == "completed" and ended.asks == ()
        assert "Nobody answered in time" in str(run.stage.fake.requests[1].tool_results)

    waiting(
        test,
        pay("ann"),
        log=log,
        approval_timeout=3 * HOUR,
        approval_escalation=[
            Escalation(after=HOUR, to="lead"),
            Escalation(after=2 * HOUR, to="head"),
        ],
    )


def test_levels_that_passed_while_nothing_ran_are_one_step() -> None:
    async def test(run: Waiting) -> None:
        (ask,) = run.result.asks
        result = await run.go_on(clock=lambda: ask.asked_ms + 5 * HOUR_MS)
        (ask,) = result.asks
        assert (ask.level, ask.to) == (2, "head")
        assert len(of(run, Escalated)) == 1
        approved = await run.go_on(run.approve("ann"))
        assert approved.stop_reason == "completed"

    levels = [Escalation(after=HOUR, to="lead"), Escalation(after=2 * HOUR, to="head")]
    waiting(test, pay("ann"), approval_escalation=levels)


def test_another_version_of_the_agent_moves_no_time_that_was_set() -> None:
    async def test(run: Waiting) -> None:
        (before,) = run.result.asks
        run.agent = run.stage.agent(
            tools=[paying(Log())],
            approval_timeout=100 * HOUR,
            approval_escalation=[Escalation(after=HOUR, to="somebody")],
        )
        result = await run.go_on(clock=lambda: before.asked_ms + HOUR_MS)
        assert result.asks == (before,)

    waiting(test, pay("ann"), approval_timeout=3 * HOUR)


def test_each_of_two_questions_has_its_own_answer_and_time() -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        t0 = run.result.asks[0].asked_ms
        result = await run.go_on(run.approve("bob"), clock=lambda: t0 + HOUR_MS)
        assert [(ask.level, ask.due_ms - t0) for ask in result.asks] == [(1, 3 * HOUR_MS)]
        assert log.lines == [("bob", 100)]

    levels = [Escalation(after=HOUR, to="lead")]
    waiting(
        test,
        pay("ann"),
        pay("bob"),
        log=log,
        approval_timeout=3 * HOUR,
        approval_escalation=levels,
    )


@pytest.mark.parametrize(
    ("levels", "hours", "told"),
    [
        ([("lead", 0)], 0, "has to be later than 0:00:00"),
        ([("lead", 2), ("head", 1)], 0, "level 2"),
        ([(" ", 1)], 0, "names nobody"),
        ([("lead", 3)], 3, "ended the wait"),
        ([("lead", n) for n in range(1, 30)], 0, "29 levels"),
        ([], -1, "approval_timeout"),
    ],
)
def test_escalations_that_cannot_be_meant_are_named(
    levels: list[tuple[str, int]], hours: int, told: str
) -> None:
    with pytest.raises(UserError, match=told):
        Agent(
            "a",
            model="anthropic:x",
            approval_timeout=hours * HOUR,
            approval_escalation=[Escalation(after=n * HOUR, to=to) for to, n in levels],
        )
