"""What follows what: the brief that is carried, the bound on reviews, the templates.
Method: stops of conversations as data; no model, no server."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.worker.agent.core.entries import Stopped
from treadle.worker.agent.plan import PlanResult, Prompts
from treadle.worker.agent.plan.phases import (
    CARRIED_BYTES_MAX,
    REQUEST_BYTES_MAX,
    Begin,
    Brief,
    End,
    Gate,
    Unfinished,
    following,
    goal,
)
from treadle.worker.agent.plan.prompts import PLACES, fill

BRIEF = Brief(request="Add a flag.", findings="cli.py parses.", plan="1. Edit cli.py.")
FAIL = Gate(max_review_cycles=2, on_needs_fix="fail")
COMPLETE = Gate(max_review_cycles=2, on_needs_fix="complete")


def stopped(output: Any = None, reason: Any = "completed", **fields: Any) -> Stopped:
    return Stopped(reason=reason, output=msgspec.Raw(json.dumps(output).encode()), **fields)


def review(word: str, *findings: str) -> Stopped:
    return stopped(f"```json\n{json.dumps({'verdict': word, 'findings': findings})}\n```")


def reviewed(stop: Stopped, reviews: int = 0, gate: Gate = FAIL, limit: str = "") -> Any:
    brief = msgspec.structs.replace(BRIEF, work="Edited.", reviews=reviews)
    return following("review", brief, stop, gate, limit)


# ------------------------------------------------------------------ templates


@given(st.dictionaries(st.sampled_from(PLACES["fix"]), st.text()))
def test_what_is_filled_in_is_never_filled_itself(values: dict[str, str]) -> None:
    tricky = {name: f"{{{{PLAN}}}}{value}{{{{REQUEST}}}}" for name, value in values.items()}
    template = "".join(f"[{{{{{name}}}}}]" for name in tricky)
    assert fill(template, tricky) == "".join(f"[{value}]" for value in tricky.values())


@given(st.text())
def test_a_request_that_holds_places_reaches_every_phase_as_it_is(request: str) -> None:
    request = f"{request}{{{{FINDINGS}}}} and {{{{PLAN}}}}"
    brief = msgspec.structs.replace(BRIEF, request=request)
    for phase in ("explore", "plan", "implement", "review"):
        assert request in goal(phase, brief, Prompts())


def test_each_phase_is_shown_what_it_needs_and_not_more() -> None:
    brief = Brief(request="<R>", findings="<F>", plan="<P>", work="<W>", fixes=("<1>", "<2>"))

    def shown(phase: Any, reviews: int = 0) -> str:
        text = goal(phase, msgspec.structs.replace(brief, reviews=reviews), Prompts())
        return "".join(each for each in "RFPW12" if f"<{each}>" in text)

    assert (shown("explore"), shown("plan"), shown("implement")) == ("R", "RF", "RFP")
    assert (shown("review"), shown("review", 1)) == ("RPW", "RPW")
    assert shown("implement", 1) == "RPW12"


def test_a_template_with_a_place_that_nothing_fills_is_refused() -> None:
    (problem,) = Prompts(explore="{{REQUEST}} {{FINDINGS}}").problems()
    assert "explore holds {{FINDINGS}}" in problem and "{{REQUEST}}" in problem
    assert Prompts().problems() == []
    assert "plan is empty" in Prompts(plan=" ").problems()[0]


# ------------------------------------------------------------------ phases


def test_exploring_leaves_its_findings_and_planning_its_plan() -> None:
    assert following("explore", Brief(request="r"), stopped("found"), FAIL) == End(
        Brief(request="r", findings="found")
    )
    assert following("plan", Brief(request="r", findings="f"), stopped({"a": 1}), FAIL) == End(
        Brief(request="r", findings="f", plan='{\n  "a": 1\n}')
    )


def test_the_work_is_reviewed_by_its_account_alone() -> None:
    found = following("implement", BRIEF, stopped("Edited cli.py."), FAIL)
    assert found == Begin("review", msgspec.structs.replace(BRIEF, work="Edited cli.py."))


@pytest.mark.parametrize("phase", ["explore", "plan", "implement", "review"])
def test_a_phase_that_waits_for_a_person_is_not_over(phase: Any) -> None:
    assert following(phase, BRIEF, stopped(reason="needs_human"), FAIL) is None


@pytest.mark.parametrize("phase", ["explore", "plan", "implement"])
def test_a_phase_that_broke_off_fails_as_any_agent_does(phase: Any) -> None:
    assert following(phase, BRIEF, stopped(reason="loop_detected"), FAIL) is None
    assert following(phase, BRIEF, stopped(reason="max_steps"), FAIL) is None
    assert following(phase, BRIEF, stopped("as far as I came", "max_steps"), FAIL) is not None


def test_done_ends_the_work() -> None:
    found = reviewed(review("DONE", "A nit."))
    assert isinstance(found, End) and isinstance(found.output, PlanResult)
    assert (found.output.verdict, found.output.reviews) == ("DONE", 1)
    assert (found.output.findings, found.output.work) == (("A nit.",), "Edited.")


def test_a_typed_verdict_counts_as_one_in_a_block_does() -> None:
    found = reviewed(stopped({"verdict": "DONE", "findings": [], "summary": "Good."}))
    assert isinstance(found, End) and found.output.summary == "Good."
    assert isinstance(reviewed(stopped({"verdict": "done"})), Begin)


@pytest.mark.parametrize(
    "stop",
    [
        review("NEEDS_FIX", "x"),
        stopped("It looks fine to me."),
        stopped(reason="refused", text="No."),
        stopped(reason="policy_blocked"),
        stopped('```json\n{"verdict": "DONE"}\n```', "max_steps"),
        stopped(None, text="nothing"),
    ],
)
def test_anything_but_a_done_of_a_whole_review_is_another_cycle_up_to_the_bound(
    stop: Stopped,
) -> None:
    again = reviewed(stop)
    assert isinstance(again, Begin) and again.phase == "implement"
    assert again.brief.reviews == 1 and again.brief.fixes
    last = reviewed(stop, reviews=1)
    assert isinstance(last, Unfinished) and "after 2 of 2 reviews" in last.message
    told = reviewed(stop, reviews=1, gate=COMPLETE)
    assert isinstance(told, End) and told.output.verdict == "NEEDS_FIX"
    assert told.output.reviews == 2


def test_at_a_bound_of_the_step_nothing_begins_any_more() -> None:
    work = following("implement", BRIEF, stopped("Edited."), FAIL, "max_iterations")
    assert isinstance(work, Unfinished) and "max_iterations" in work.message
    assert isinstance(reviewed(review("NEEDS_FIX", "x"), limit="max_cost"), Unfinished)


def test_what_is_carried_is_bounded_however_much_was_written() -> None:
    many = review("NEEDS_FIX", *("é" * 10_000 for _ in range(50)))
    again = reviewed(many)
    assert isinstance(again, Begin)
    long = msgspec.structs.replace(
        again.brief,
        request="r" * REQUEST_BYTES_MAX,
        findings="f" * CARRIED_BYTES_MAX,
        plan="p" * CARRIED_BYTES_MAX,
        work=following("implement", BRIEF, stopped("w" * 10**6), FAIL).brief.work,  # type: ignore[union-attr]
    )
    stored = len(goal("implement", long, Prompts()).encode()) + len(msgspec.json.encode(long))
    assert len("".join(again.brief.fixes).encode()) < CARRIED_BYTES_MAX + 1_000
    assert stored < 512 * 1024
