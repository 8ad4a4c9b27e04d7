"""A definition is judged as a whole: every problem, each with its place and what to do.
Method: examples for the texts; random sound definitions with single faults for the places."""

from __future__ import annotations

import graphlib
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.strategies import (
    FAULTS,
    QUICK,
    SAMPLE,
    Fault,
    broken,
    definitions,
    faults,
    json_values,
)

from treadle.sdk import limits
from treadle.sdk.definition import (
    AgentLoopStep,
    Retry,
    TaskStep,
    WorkflowDefinition,
    content_hash,
    to_plain,
)
from treadle.sdk.errors import InvalidDefinition, Problem
from treadle.sdk.structure import STEP_KINDS
from treadle.sdk.validation import check, definition_from, problems_of


def _problems(*steps: dict[str, Any], **fields: Any) -> dict[str, str]:
    """Return the problems of a definition by their place."""
    try:
        definition_from({"name": "code-review", "steps": list(steps), **fields})
    except InvalidDefinition as exc:
        assert len({p.path for p in exc.problems}) == len(exc.problems), "one place, one problem"
        return {problem.path: problem.text for problem in exc.problems}
    return {}


def _task(step_id: str, *after: object, **fields: Any) -> dict[str, Any]:
    return {"kind": "task", "id": step_id, "type": "t", "after": list(after), **fields}


def _loop(step_id: str, *after: object, **fields: Any) -> dict[str, Any]:
    return {"kind": "agent_loop", "id": step_id, "type": "t", "after": list(after), **fields}


# -------------------------------------------------------------------- properties


@QUICK
@given(definitions())
def test_every_dag_within_the_limits_is_sound(definition: WorkflowDefinition) -> None:
    assert problems_of(definition) == ()
    assert check(definition) == definition


@pytest.mark.slow
@QUICK
@given(definitions())
def test_plain_data_give_the_same_definition_and_version(definition: WorkflowDefinition) -> None:
    again = definition_from(to_plain(definition))
    assert again == definition
    assert content_hash(again) == content_hash(definition)


def _is_reported_with_a_remedy(fault: Fault) -> bool:
    with pytest.raises(InvalidDefinition) as caught:
        definition_from(fault.plain)
    texts = {problem.path: problem.text for problem in caught.value.problems}
    # What happened, a full stop, and a sentence that begins with what to do.
    return re.search(r"[.?] [A-Z][a-z]+ .*[.?]$", texts[fault.path]) is not None


@QUICK
@given(faults())
def test_a_single_fault_is_reported_at_its_place_with_what_to_do(fault: Fault) -> None:
    assert _is_reported_with_a_remedy(fault)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_reported_at_its_place_with_what_to_do(name: str) -> None:
    fault = broken(SAMPLE, name)
    assert fault is not None
    assert _is_reported_with_a_remedy(fault)


@pytest.mark.slow
@QUICK
@given(faults(), faults())
def test_two_faults_are_reported_at_once(one: Fault, other: Fault) -> None:
    # A fault of the workflow itself, so that the two cannot meet in one place.
    if "." in other.path or "[" in other.path or other.path == "steps":
        other = Fault({**other.plain, "timeout_s": -1}, "timeout_s", True)
    plain = {**one.plain, other.path: other.plain[other.path]}
    with pytest.raises(InvalidDefinition) as caught:
        definition_from(plain)
    assert {one.path, other.path} <= {problem.path for problem in caught.value.problems}


@QUICK
@given(json_values | st.fixed_dictionaries({"name": json_values, "steps": st.lists(json_values)}))
def test_no_data_crash_the_validator(plain: object) -> None:
    with pytest.raises(InvalidDefinition):
        definition_from(plain)


@QUICK
@given(st.data())
def test_removing_the_reported_waits_leaves_no_cycle(data: st.DataObject) -> None:
    # Of six steps that all wait for all, one wait more would have to go than is reported at once.
    names = [f"s{i}" for i in range(data.draw(st.integers(1, 5)))]
    after = {n: data.draw(st.lists(st.sampled_from(names), unique=True)) for n in names}
    problems = _problems(*(_task(name, *after[name]) for name in names))
    cyclic = [p for p, text in problems.items() if "cycle" in text or "itself" in text]
    places = [tuple(map(int, re.findall(r"\d+", path))) for path in cyclic]
    assert bool(places) == _has_cycle(after)
    for i, j in sorted(places, reverse=True):
        del after[names[i]][j]
    assert not _has_cycle(after)


def _has_cycle(after: dict[str, list[str]]) -> bool:
    try:
        graphlib.TopologicalSorter(after).prepare()
    except graphlib.CycleError:
        return True
    return False


# -------------------------------------------------------------------- what the texts say


def test_a_misspelt_step_is_named_with_the_nearest_one() -> None:
    assert _problems(_task("review"), _task("publish", "reveiw")) == {
        "steps[1].after[0]": "step 'publish' waits for 'reveiw', which is not a step. "
        "Did you mean 'review'?"
    }


def test_a_cycle_is_named_in_the_order_of_waiting() -> None:
    problems = _problems(_task("a", "c"), _task("b", "a"), _task("c", "b"), _task("d", "b"))
    assert problems["steps[0].after[0]"].startswith("the steps 'a' -> 'c' -> 'b' -> 'a' wait")
    assert "'d' could never start" in problems["steps[3].after[0]"]
    assert len(problems) == 2


def test_what_hangs_on_an_unknown_step_is_unreachable() -> None:
    problems = _problems(_task("a", "gone"), _task("b", "a"), _task("c", "b"), _task("free"))
    assert list(problems) == ["steps[0].after[0]", "steps[1].after[0]", "steps[2].after[0]"]
    assert "which is not a step" in problems["steps[0].after[0]"]
    assert "step 'b' could never start: it waits for 'a'" in problems["steps[1].after[0]"]


def test_an_agent_loop_without_a_bound_is_told_that_one_is_required() -> None:
    problems = _problems(_loop("review"))
    assert "max_iterations is required" in problems["steps[0].max_iterations"]
    assert "greater than 0" in problems["steps[0].max_iterations"]


def test_a_bound_of_zero_is_refused() -> None:
    problems = _problems(_loop("review", max_iterations=0))
    assert "must be from 1 to 1,000,000" in problems["steps[0].max_iterations"]


def test_the_fault_of_one_step_is_not_blamed_on_those_that_wait_for_it() -> None:
    broken = {"kind": "agent_lop", "id": "review", "type": "t"}
    problems = _problems(broken, _task("publish", "review"))
    assert problems == {
        "steps[0].kind": f"'agent_lop' is none of {', '.join(STEP_KINDS)}. "
        "Did you mean 'agent_loop'?"
    }


@pytest.mark.parametrize(
    ("kind", "meant"),
    [
        ("wait_for_signal", "signal"),
        ("Wait", "signal"),
        ("loop", "agent_loop"),
        ("child_workflow", "sub_workflow"),
    ],
)
def test_another_word_for_a_kind_of_step_is_led_to_it(kind: str, meant: str) -> None:
    problems = _problems({"kind": kind, "id": "a"})
    assert problems["steps[0].kind"].endswith(f"Did you mean {meant!r}?")


@pytest.mark.parametrize("field", ["name", "type", "event", "signl"])
def test_the_name_of_a_signal_in_another_field_is_led_to_the_field(field: str) -> None:
    problems = _problems({"kind": "signal", "id": "a", field: "go"})
    assert problems[f"steps[0].{field}"].endswith("Did you mean 'signal'?")
    assert "signal is required" in problems["steps[0].signal"]


def test_a_duration_without_its_unit_is_led_to_the_field() -> None:
    problems = _problems(_task("a", timeout=30))
    assert problems == {
        "steps[0].timeout": "there is no such field here. Did you mean 'timeout_s'?"
    }


def test_problems_are_listed_in_the_order_in_which_they_are_written() -> None:
    steps = [_task(f"s{i}", timeout_s=-1) for i in range(11)]
    assert list(_problems(*steps)) == [f"steps[{i}].timeout_s" for i in range(11)]


# -------------------------------------------------------------------- limits


def test_a_thousand_steps_are_allowed_and_one_more_is_not() -> None:
    chain = [_task("s0"), *(_task(f"s{i}", f"s{i - 1}") for i in range(1, limits.STEPS_MAX))]
    assert _problems(*chain) == {}
    assert list(_problems(*chain, _task("more"))) == ["steps"]


def test_too_many_edges_are_refused_before_they_are_followed() -> None:
    left = [_task(f"l{i}") for i in range(101)]
    right = [_task(f"r{i}", *(f"l{j}" for j in range(100))) for i in range(101)]
    assert "10100 entries" in _problems(*left, *right)["steps"]


def test_a_long_cycle_is_found_without_recursion() -> None:
    steps = [_task(f"s{i}", f"s{(i + 1) % 1000}") for i in range(1000)]
    assert list(_problems(*steps)) == ["steps[0].after[0]"]


def test_a_definition_too_large_for_one_message_is_refused() -> None:
    schema = {"description": "x" * 500_000}
    assert _problems(_task("a"), input_schema=schema) == {}
    steps = [_task(f"{i:0>64}") for i in range(900)]
    assert "524288 are allowed" in _problems(*steps, input_schema=schema)["definition"]


def test_a_thousand_unknown_steps_are_judged_in_bounded_time() -> None:
    steps = [_task(f"step-{i}", f"stop-{i}") for i in range(1000)]
    assert len(_problems(*steps)) == 1000


def test_hostile_names_are_shown_in_bounded_length() -> None:
    problems = _problems(_task("x" * 100_000, "y" * 100_000, **{"z" * 100_000: 1}))
    assert all(len(path) + len(text) < 1_000 for path, text in problems.items())


def test_of_many_cycles_a_bounded_number_is_reported() -> None:
    names = [f"s{i}" for i in range(30)]
    problems = _problems(*(_task(name, *(n for n in names if n != name)) for name in names))
    assert len([text for text in problems.values() if "in a cycle" in text]) == limits.CYCLES_MAX


def test_error_names_that_no_error_can_have_are_refused() -> None:
    retry = {"non_retryable": ["ValueError", "", "x" * 129, "a\nb"]}
    where = "steps[0].retry.non_retryable"
    assert list(_problems(_task("a", retry=retry))) == [f"{where}[1]", f"{where}[2]", f"{where}[3]"]
    many = {"non_retryable": [f"E{i}" for i in range(101)]}
    assert list(_problems(_task("a", retry=many))) == [where]


def test_a_number_too_long_to_print_is_refused() -> None:
    problems = _problems(_loop("a", max_iterations=10**5000))
    assert "max_iterations is a huge int" in problems["steps[0].max_iterations"]


def test_an_input_schema_that_is_no_json_is_refused() -> None:
    problems = _problems(_task("a"), input_schema={"default": float("nan")})
    assert "default is nan, which JSON cannot hold" in problems["input_schema"]


# -------------------------------------------------------------------- definitions made by hand


def test_a_struct_filled_with_the_wrong_types_is_reported_not_a_crash() -> None:
    bad: Any = "x"
    definition = WorkflowDefinition(
        name=bad * 65,
        steps=(TaskStep(id=bad, type=bad, timeout_s=bad, retry=Retry(max_attempts=bad)),),
    )
    assert [problem.path for problem in problems_of(definition)] == [
        "name",
        "steps[0].retry.max_attempts",
        "steps[0].timeout_s",
    ]
    with pytest.raises(InvalidDefinition, match="has 3 problems"):
        check(definition)


@pytest.mark.parametrize(
    "value",
    [10**400, -(10**5000), float("inf"), True],
    ids=["large", "huge", "infinite", "boolean"],
)
def test_numbers_beyond_all_numbers_are_reported_not_a_crash(value: Any) -> None:
    retry = Retry(delay_s=value, max_delay_s=value)
    definition = WorkflowDefinition(
        name="w", steps=(AgentLoopStep(id="a", type="t", max_iterations=value, retry=retry),)
    )
    paths = [problem.path for problem in problems_of(definition)]
    assert "steps[0].max_iterations" in paths
    assert "steps[0].retry.max_delay_s" in paths


def test_not_a_number_is_no_number() -> None:
    definition = WorkflowDefinition(
        name="w", steps=(AgentLoopStep(id="a", type="t", max_iterations=1, timeout_s=float("nan")),)
    )
    assert [problem.path for problem in problems_of(definition)] == ["steps[0].timeout_s"]


def test_the_error_carries_the_workflow_and_the_problems() -> None:
    with pytest.raises(InvalidDefinition) as caught:
        definition_from({"name": "empty", "steps": []})
    assert caught.value.workflow == "empty"
    assert caught.value.problems == (
        Problem("steps", "the workflow has no steps, so a run would do nothing. Add one."),
    )
    assert str(caught.value).startswith("workflow 'empty' has 1 problem:\n  steps: ")


def test_equal_definitions_have_equal_versions_however_they_were_written() -> None:
    short = WorkflowDefinition(name="w", steps=(TaskStep(id="a", type="t", timeout_s=30),))
    long = WorkflowDefinition(
        name="w",
        steps=(TaskStep(id="a", type="t", after=(), timeout_s=30.0, retry=Retry(delay_s=1.0)),),
        timeout_s=-0.0,
        description="",
    )
    assert short == long
    assert content_hash(short) == content_hash(long)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tool_calls", -1),
        ("max_input_tokens", 10**12 + 1),
        ("max_output_tokens", -5),
        ("max_total_tokens", -1),
        ("max_cost_usd", -0.01),
        ("max_cost_usd", float("nan")),
    ],
)
def test_a_budget_is_none_or_some_of_what_can_be_paid_for(field: str, value: float) -> None:
    problems = _problems(_loop("a", max_iterations=3, **{field: value}))
    assert field in problems[f"steps[0].{field}"]
    assert not _problems(_loop("a", max_iterations=3, **{field: 0}))
    assert f"steps[0].{field}" in _problems(_task("a", **{field: 1})), "only a loop has one"


@pytest.mark.parametrize(
    ("collect", "place", "says"),
    [
        (3, "collect", "how starts are collected"),
        ({}, "collect.kind", "Set it to one of debounce, batch"),
        ({"kind": "debonce"}, "collect.kind", "Did you mean 'debounce'?"),
        ({"kind": "debounce", "period_s": 1}, "collect.max_wait_s", "is required"),
        ({"kind": "batch", "max_wait_s": 1}, "collect.max_size", "is required"),
        ({"kind": "batch", "max_size": 0, "max_wait_s": 1}, "collect.max_size", "from 1 to 1,000"),
        ({"kind": "batch", "max_size": 1.5, "max_wait_s": 1}, "collect.max_size", "a whole number"),
        (
            {"kind": "batch", "max_size": 1_001, "max_wait_s": 1},
            "collect.max_size",
            "from 1 to 1,000",
        ),
        ({"kind": "batch", "max_size": 2, "max_wait_s": 0}, "collect.max_wait_s", "from 0.001"),
        (
            {"kind": "debounce", "period_s": 1, "max_wait_s": 604_801},
            "collect.max_wait_s",
            "to 604,800",
        ),
        (
            {"kind": "debounce", "period_s": 0, "max_wait_s": 1},
            "collect.period_s",
            "from 0.001",
        ),
        (
            {"kind": "debounce", "period_s": 2, "max_wait_s": 1},
            "collect.period_s",
            "is more than max_wait_s 1",
        ),
        (
            {"kind": "debounce", "period_s": 1, "max_wait_s": 1, "key": "event"},
            "collect.key",
            "'event' is not known",
        ),
        (
            {"kind": "debounce", "period_s": 1, "max_wait_s": 1, "key": "1" * 1_001},
            "collect.key",
            "1001 characters",
        ),
        (
            {"kind": "debounce", "period_s": 1, "max_wait_s": 1, "max_size": 1},
            "collect.max_size",
            "there is no such field here",
        ),
    ],
)
def test_what_is_wrong_with_how_starts_are_collected_is_told(
    collect: object, place: str, says: str
) -> None:
    ((path, text),) = _problems(_task("a"), collect=collect).items()
    assert path == place
    assert says in text


def test_a_problem_is_told_with_the_id_of_its_step_where_that_is_known() -> None:
    steps = [{"kind": "task", "id": "fetch", "type": "a", "after": ["b"]}, {"kind": "task"}, 7]
    with pytest.raises(InvalidDefinition) as refused:
        definition_from({"name": "flow", "steps": steps, "timeout_s": -1})
    text = str(refused.value)
    assert "\n  steps[0].after[0] (step 'fetch'): step 'fetch' waits for 'b'" in text
    assert "\n  steps[1].id: " in text and "\n  steps[2]: " in text and "\n  timeout_s: " in text
