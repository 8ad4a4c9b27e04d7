"""A workflow written in Python: what each call becomes, and that nothing wrong gets through.
Method: compare with the definition it stands for; wrong uses as a program would make them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

from treadle.sdk import InvalidDefinition, Retry, Workflow, WorkflowDefinition
from treadle.sdk.definition import (
    AgentLoopStep,
    SignalStep,
    SleepStep,
    SubWorkflowStep,
    TaskStep,
    content_hash,
)
from treadle.sdk.document import format_definition, parse_definition


class Diff(msgspec.Struct):
    repo: str
    lines: int = 0


def _problems(workflow: Workflow[Any]) -> dict[str, str]:
    with pytest.raises(InvalidDefinition) as caught:
        workflow.build()
    return {problem.path: problem.text for problem in caught.value.problems}


def test_each_call_becomes_the_step_it_says() -> None:
    workflow = Workflow("code-review", timeout=timedelta(hours=1), description="Reviews a diff.")
    fetch = workflow.task("fetch", "fetch-diff", retry=Retry(max_attempts=5), timeout=30)
    review = workflow.agent_loop(
        "review",
        "llm-review",
        after=[fetch],
        max_iterations=10,
        max_duration=timedelta(minutes=5),
        loop_delay=timedelta(milliseconds=500),
        timeout=timedelta(seconds=30),
        on_limit="wrap_up",
        budget_warn_at=6,
        budget_force_at=9,
        max_tool_calls=50,
        max_input_tokens=1_000,
        max_output_tokens=2_000,
        max_total_tokens=2_500,
        max_cost_usd=1.5,
    )
    approved = workflow.wait_for_signal("approved", signal="approve", after=review, timeout=60)
    workflow.task("publish", "post-comment", after=[approved, "fetch"])
    assert workflow.build() == WorkflowDefinition(
        name="code-review",
        timeout_s=3600,
        description="Reviews a diff.",
        steps=(
            TaskStep(id="fetch", type="fetch-diff", timeout_s=30, retry=Retry(max_attempts=5)),
            AgentLoopStep(
                id="review",
                type="llm-review",
                after=("fetch",),
                max_iterations=10,
                max_duration_s=300,
                loop_delay_s=0.5,
                timeout_s=30,
                on_limit="wrap_up",
                budget_warn_at=6,
                budget_force_at=9,
                max_tool_calls=50,
                max_input_tokens=1_000,
                max_output_tokens=2_000,
                max_total_tokens=2_500,
                max_cost_usd=1.5,
            ),
            SignalStep(id="approved", signal="approve", after=("review",), timeout_s=60),
            TaskStep(id="publish", type="post-comment", after=("approved", "fetch")),
        ),
    )


def test_task_type_and_signal_name_are_the_id_unless_they_are_given() -> None:
    workflow = Workflow("w")
    workflow.task("a")
    workflow.agent_loop("b", max_iterations=1)
    workflow.wait_for_signal("c")
    assert workflow.build().steps == (
        TaskStep(id="a", type="a"),
        AgentLoopStep(id="b", type="b", max_iterations=1),
        SignalStep(id="c", signal="c"),
    )


def test_a_step_says_when_it_has_its_turn_and_what_follows_its_failure() -> None:
    workflow = Workflow("w")
    a, b = workflow.task("a", on_failure="h", compensate="u"), workflow.task("b")
    workflow.task("c", after=[a, b], quorum=1, when='input["n"] > 3')
    rest = workflow.sleep("rest", timedelta(days=2), after=a)
    workflow.sleep("morning", until=datetime(2027, 1, 31, 9, tzinfo=UTC), after=rest)
    workflow.sleep("open", cron="0 9 * * mon-fri", zone="Europe/Berlin", after=rest)
    workflow.task("h")
    workflow.task("u")
    assert workflow.build().steps == (
        TaskStep(id="a", type="a", on_failure="h", compensate="u"),
        TaskStep(id="b", type="b"),
        TaskStep(id="c", type="c", after=("a", "b"), quorum=1, when='input["n"] > 3'),
        SleepStep(id="rest", after=("a",), duration_s=172_800),
        SleepStep(id="morning", after=("rest",), until="2027-01-31T09:00:00+00:00"),
        SleepStep(id="open", after=("rest",), cron="0 9 * * mon-fri", zone="Europe/Berlin"),
        TaskStep(id="h", type="h"),
        TaskStep(id="u", type="u"),
    )


def test_a_step_that_workers_execute_has_texts_for_its_handler() -> None:
    workflow, texts = Workflow("w"), {"team": "north"}
    workflow.task("a", metadata=texts)
    workflow.agent_loop("b", max_iterations=1, metadata=texts)
    workflow.map("c", after="a", metadata=texts)
    workflow.planner("d", metadata=texts)
    assert [step.metadata for step in workflow.build().steps] == [texts] * 4  # type: ignore[union-attr]
    plain = workflow.build()
    workflow.task("e", metadata={1: "x", "y": None})  # type: ignore[dict-item]
    assert list(_problems(workflow)) == ["steps[4].metadata.1", "steps[4].metadata.y"]
    assert parse_definition(format_definition(plain, "yaml"), "yaml") == plain


def test_a_step_that_starts_runs_names_a_workflow_or_is_given_one() -> None:
    workflow, other = Workflow("w"), Workflow("other")
    a = workflow.sub_workflow("a", other, timeout=timedelta(hours=1), retry=Retry(max_attempts=2))
    workflow.sub_workflow("other", after=a, detached=True)
    workflow.sub_workflow("w", "w", compensate="undo")
    workflow.task("undo")
    assert workflow.build().steps[:3] == (
        SubWorkflowStep(id="a", workflow="other", timeout_s=3600, retry=Retry(max_attempts=2)),
        SubWorkflowStep(id="other", workflow="other", after=("a",), detached=True),
        SubWorkflowStep(id="w", workflow="w", compensate="undo"),
    )
    workflow.sub_workflow("b", "no name")
    workflow.sub_workflow("c", detached=True, retry=Retry(max_attempts=2))
    found = _problems(workflow)
    assert "'no name'" in found["steps[4].workflow"]
    assert "never be tried again" in found["steps[5].retry"]


def test_a_step_that_handles_failures_must_be_of_the_workflow_and_wait_for_nothing() -> None:
    workflow, other = Workflow("w"), Workflow("other")
    workflow.task("a", on_failure=other.task("x"))
    workflow.task("b", on_failure="c", after="a")
    workflow.task("c", after="a")
    workflow.task("d", on_failure="d")
    with pytest.raises(InvalidDefinition) as caught:
        workflow.build()
    found = {problem.path: problem.text for problem in caught.value.problems}
    assert "belongs to workflow 'other'" in found["steps[0].on_failure"]
    assert "Remove after from it" in found["steps[1].on_failure"]
    assert "its own failure" in found["steps[3].on_failure"]


def test_a_step_that_undoes_another_runs_for_that_alone() -> None:
    workflow = Workflow("w")
    workflow.task("a", compensate="u")
    workflow.task("b", compensate="u")
    workflow.task("c", compensate="c")
    workflow.task("d", compensate="undoo")
    workflow.task("e", compensate="v", after="u")
    workflow.task("f", on_failure="v")
    workflow.task("g", compensate="w")
    workflow.task("u")
    workflow.task("w", when='input["n"] > 3')
    workflow.task("v")
    with pytest.raises(InvalidDefinition) as caught:
        workflow.build()
    found = {problem.path: problem.text for problem in caught.value.problems}
    assert "undoes step 'a' already" in found["steps[1].compensate"]
    assert "cannot undo itself" in found["steps[2].compensate"]
    assert "is not a step of this workflow" in found["steps[3].compensate"]
    assert "handles no failure" in found["steps[4].compensate"]
    assert "nothing can wait for it" in found["steps[4].after[0]"]
    assert "has no when" in found["steps[6].compensate"]


def test_a_handler_that_leads_back_to_the_step_is_a_cycle() -> None:
    workflow = Workflow("w")
    workflow.task("a", on_failure="b")
    workflow.task("b", on_failure="a")
    with pytest.raises(InvalidDefinition, match="in a cycle"):
        workflow.build()


def test_the_input_type_is_recorded_as_its_json_schema() -> None:
    workflow = Workflow("w", input=Diff)
    workflow.task("a")
    schema = workflow.build().input_schema
    assert schema is not None
    assert schema["$defs"]["Diff"]["required"] == ["repo"]


def test_python_and_yaml_give_one_version() -> None:
    workflow = Workflow("w", input=Diff)
    workflow.task("a", timeout=30, retry=Retry(delay_s=2))
    built = workflow.build()
    written = parse_definition(format_definition(built, "yaml"), "yaml")
    assert written == built
    assert content_hash(written) == content_hash(built)


def test_building_twice_gives_the_same_and_steps_may_be_added_between() -> None:
    workflow = Workflow("w")
    first = workflow.task("a")
    assert workflow.build() == workflow.build()
    workflow.task("b", after=[first])
    assert [step.id for step in workflow.build().steps] == ["a", "b"]


def test_a_missing_bound_is_reported_with_every_other_problem() -> None:
    workflow = Workflow("w")
    agent_loop: Any = workflow.agent_loop
    agent_loop("review", after=["fetsh"])
    workflow.task("fetch", timeout=-1)
    problems = _problems(workflow)
    assert list(problems) == ["steps[0].after[0]", "steps[0].max_iterations", "steps[1].timeout_s"]
    assert "max_iterations is required" in problems["steps[0].max_iterations"]
    assert "Did you mean 'fetch'?" in problems["steps[0].after[0]"]


def test_a_step_of_another_workflow_is_refused_even_if_the_id_exists_here() -> None:
    other = Workflow("other").task("fetch")
    workflow = Workflow("w")
    workflow.task("fetch")
    workflow.task("publish", after=[other])
    problems = _problems(workflow)
    assert list(problems) == ["steps[1].after[0]"]
    assert "belongs to workflow 'other', not to this one" in problems["steps[1].after[0]"]


def test_wrong_values_are_reported_where_they_were_given() -> None:
    wrong: Any = Workflow(cast("Any", 5), timeout=cast("Any", "1h"), input=cast("Any", object()))
    wrong.task("a", timeout="5m", retry=3, after=5)
    wrong.task(None, after=[None], timeout=True)
    wrong.agent_loop("b", max_iterations="10", on_limit="explode", budget_warn_at=2.5)
    assert list(_problems(wrong)) == [
        "input_schema",
        "name",
        "steps[0].after",
        "steps[0].retry",
        "steps[0].timeout_s",
        "steps[1].after[0]",
        "steps[1].id",
        "steps[1].timeout_s",
        "steps[1].type",
        "steps[2].budget_warn_at",
        "steps[2].max_iterations",
        "steps[2].on_limit",
        "timeout_s",
    ]


def test_half_a_character_in_a_text_is_refused() -> None:
    workflow = Workflow("w", description="\ud800")
    workflow.task("a")
    assert list(_problems(workflow)) == ["description"]


def test_a_budget_that_would_warn_after_it_forces_is_refused() -> None:
    workflow = Workflow("w")
    workflow.agent_loop("a", max_iterations=10, budget_warn_at=9, budget_force_at=5)
    assert "would never be seen" in _problems(workflow)["steps[0].budget_warn_at"]


def test_workflow_and_steps_say_what_they_are() -> None:
    workflow = Workflow("code-review")
    fetch = workflow.task("fetch")
    assert repr(workflow) == "<workflow 'code-review' with 1 steps>"
    assert repr(fetch) == "<step 'fetch' of workflow 'code-review'>"
