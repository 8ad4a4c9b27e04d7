"""Sound planners, and what can be wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from treadle.sdk.definition import PlannerStep, Retry

Change = Callable[[dict[str, Any]], str | None]


def planner_steps(
    step_id: str,
    after: tuple[str, ...],
    ids: st.SearchStrategy[str],
    seconds: st.SearchStrategy[float],
    retry: Retry,
) -> st.SearchStrategy[PlannerStep]:
    """Sound planners."""
    return st.builds(
        PlannerStep,
        id=st.just(step_id),
        after=st.just(after),
        type=ids,
        timeout_s=seconds,
        retry=st.just(retry),
        max_steps=st.integers(1, 100),
        max_depth=st.integers(0, 10),
        allowed_tasks=st.lists(ids, max_size=3, unique=True).map(tuple),
    )


def _planner(field: str, value: object, item: int = -1) -> Change:
    """Change one field of the first planner, of which perhaps one item is wrong."""

    def change(plain: dict[str, Any]) -> str | None:
        for i, step in enumerate(plain["steps"]):
            if step["kind"] == "planner":
                step[field] = value
                return f"steps[{i}].{field}" + (f"[{item}]" if item >= 0 else "")
        return None

    return change


def _planned_id(plain: dict[str, Any]) -> str | None:
    for step in plain["steps"]:
        if step["kind"] == "planner":
            plain["steps"].append({"kind": "task", "id": f"{step['id']}--x", "type": "t"})
            return f"steps[{len(plain['steps']) - 1}].id"
    return None


FAULTS: dict[str, tuple[Change, bool]] = {
    "planner of no steps": (_planner("max_steps", 0), True),
    "planners too deep": (_planner("max_depth", 11), True),
    "bad allowed task": (_planner("allowed_tasks", ["a.b"], 0), True),
    "allowed twice": (_planner("allowed_tasks", ["a", "a"], 1), True),
    "planner of too many steps": (_planner("max_steps", 999), False),
    "id of a planned step": (_planned_id, False),
}
