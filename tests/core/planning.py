"""What planners are, and what they plan, where the properties of the core are tried."""

from __future__ import annotations

from hypothesis import strategies as st

from treadle.sdk.definition import PlannerStep, Retry

PLANS = (
    '{"steps": []}',
    '{"steps": [{"kind": "task", "id": "x", "type": "work"}]}',
    """{"steps": [
        {"kind": "task", "id": "x", "type": "work", "on_failure": "h"},
        {"kind": "agent_loop", "id": "y", "type": "think", "max_iterations": 2},
        {"kind": "task", "id": "z", "type": "work", "after": ["x", "y"], "quorum": 1},
        {"kind": "task", "id": "h", "type": "work"}], "inputs": {"z": 1}}""",
    """{"steps": [
        {"kind": "planner", "id": "q", "type": "plan", "max_steps": 3},
        {"kind": "task", "id": "x", "type": "work", "after": ["q"], "compensate": "u"},
        {"kind": "task", "id": "u", "type": "work"}]}""",
    """{"steps": [
        {"kind": "signal", "id": "x", "signal": "go", "when": "false"},
        {"kind": "sleep", "id": "y", "duration_s": 0.2}]}""",
    '{"steps": [{"kind": "task", "id": "x", "type": "work", "after": ["gone"]}]}',
    "[]",
)
"""Outputs of planners; the last ones are no plans."""


def planner_steps(step_id: str, after: tuple[str, ...]) -> st.SearchStrategy[PlannerStep]:
    """Planners that every plan of ``PLANS`` fits, and that may try again."""
    return st.builds(
        PlannerStep,
        id=st.just(step_id),
        after=st.just(after),
        type=st.just("plan"),
        max_steps=st.just(6),
        max_depth=st.just(1),
        retry=st.sampled_from((Retry(), Retry(max_attempts=2, delay_s=0.5))),
    )
