"""A choice takes the first branch that holds, once, and what follows is started or skipped by it.
Method: examples of the core, its properties over any plan; the builder and the words about it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.walks import RunWalk, plan_of

from treadle.engine.core import Plan, StepEnded
from treadle.engine.core.given import decision
from treadle.sdk import InvalidDefinition, Workflow
from treadle.sdk.choices import reason
from treadle.sdk.definition import Branch, ChoiceStep, TaskStep
from treadle.sdk.testing import simulate
from treadle.worker import TaskContext, Worker

SIZES = ChoiceStep(
    id="size",
    branches=(Branch("big", "input > 100"), Branch("medium", "input > 10")),
    default="small",
)


@pytest.mark.parametrize(("value", "taken"), [(500, "big"), (50, "medium"), (5, "small")])
def test_the_first_branch_that_holds_is_taken_and_else_the_default(value: int, taken: str) -> None:
    assert decision(SIZES, value, {}).branch == taken


def test_branches_behind_the_first_that_holds_are_not_asked() -> None:
    late = ChoiceStep(
        id="c", branches=(Branch("first", "true"), Branch("never", 'input["gone"]')), default="x"
    )
    assert decision(late, {}, {}).branch == "first"


def test_a_condition_that_cannot_be_asked_fails_the_choice() -> None:
    walk = RunWalk(plan_of(ChoiceStep(id="c", branches=(Branch("b", 'input["n"]'),), default="x")))
    assert (walk.run.status, walk.run.failed_step) == ("failed", "c")
    assert walk.run.failure is not None
    assert walk.run.failure.type == "condition"
    assert walk.run.chosen == {}


def test_a_choice_that_is_skipped_chooses_nothing() -> None:
    skipped = msgspec.structs.replace(SIZES, when="false")
    walk = RunWalk(plan_of(skipped))
    assert walk.status("size") == "skipped"
    assert walk.run.chosen == {}


def test_a_choice_waits_for_its_turn_and_is_over_at_once() -> None:
    choice = ChoiceStep(
        id="c", after=("a",), branches=(Branch("none", 'steps["a"] == null'),), default="other"
    )
    walk = RunWalk(plan_of(TaskStep(id="a", type="work"), choice))
    assert walk.run.chosen == {}
    walk.send(StepEnded("a", "completed", 0))
    assert walk.run.chosen == {"c": "none"}
    assert walk.run.status == "completed"


@given(own.plans(own.FLOW_KINDS), st.lists(own.run_events, max_size=20))
def test_a_branch_is_chosen_once_and_by_completed_choices_only(
    plan: Plan, events: list[object]
) -> None:
    walk = RunWalk(plan)
    for event in events:
        before = walk.run.chosen
        after = walk.send(event)  # type: ignore[arg-type]
        assert before.items() <= after.chosen.items()
        for step in plan.definition.steps:
            is_over = walk.status(step.id) == "completed" and isinstance(step, ChoiceStep)
            assert (step.id in after.chosen) == is_over


# ------------------------------------------------------------------ builder and simulation


def _orders() -> Workflow:
    workflow = Workflow("orders", input=dict)
    route = workflow.choice(
        "route", {"review": 'input["total"] > 100', "gift": 'input["gift"]'}, default="plain"
    )
    review = workflow.task("review", after=route["review"])
    wrap = workflow.task("wrap", after=route["gift"], when='input["total"] > 1')
    either = workflow.task("log", after=[route["gift"], route["plain"]])
    workflow.task("ship", after=[review, wrap, either, route])
    return workflow


def test_a_branch_in_after_is_a_condition_on_the_choice() -> None:
    steps = {step.id: (step.after, step.when) for step in _orders().build().steps}
    assert steps["review"] == (("route",), 'steps["route"] == "review"')
    assert steps["wrap"] == (("route",), 'steps["route"] == "gift" and (input["total"] > 1)')
    assert steps["log"] == (("route",), 'steps["route"] in ["gift", "plain"]')
    assert steps["ship"][0] == ("review", "wrap", "log", "route")


def test_a_branch_that_its_choice_has_not_is_refused() -> None:
    workflow = Workflow("orders")
    route = workflow.choice("route", {"review": "true"}, default="plain")
    workflow.task("a", after=route["revew"])
    with pytest.raises(InvalidDefinition, match=r"no branch 'revew'. Did you mean 'review'\?"):
        workflow.build()


async def _simulated(order: dict[str, object]) -> tuple[list[str], object]:
    worker = Worker()
    ran: list[str] = []

    @worker.handler("review")
    @worker.handler("wrap")
    @worker.handler("log")
    async def done(ctx: TaskContext[object]) -> str:
        ran.append(ctx.step)
        return ctx.step

    @worker.handler("ship")
    async def ship(ctx: TaskContext[dict[str, object]]) -> object:
        return ctx.input["route"]

    run = await simulate(_orders(), order, worker)
    return sorted(ran), run.result()


@pytest.mark.parametrize(
    ("order", "ran", "taken"),
    [
        ({"total": 500, "gift": True}, ["review"], "review"),
        ({"total": 50, "gift": True}, ["log", "wrap"], "gift"),
        ({"total": 1, "gift": True}, ["log"], "gift"),
        ({"total": 5, "gift": False}, ["log"], "plain"),
    ],
)
def test_only_what_follows_the_branch_taken_runs(
    order: dict[str, object], ran: list[str], taken: str
) -> None:
    assert asyncio.run(_simulated(order)) == (ran, taken)


def test_why_a_branch_was_taken_is_said_in_words() -> None:
    assert reason(SIZES, "medium") == "took 'medium': input > 10"
    assert reason(SIZES, "small") == "took 'small': none of its conditions held"
