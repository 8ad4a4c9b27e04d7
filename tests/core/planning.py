"""What planners are, and what they plan, where the properties of the core are tried."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from treadle.engine.core import Placed, Plan, StepEnded
from treadle.sdk.definition import PlannerStep, Retry, Step
from treadle.sdk.messages import Ended
from treadle.sdk.planned import extended
from treadle.sdk.run import RunDocument

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


class Grown:
    """The plans of a run, as far as its planners have planned."""

    def __init__(self, base: Plan, registers: dict[str, Placed]) -> None:
        self._base = base
        self._registers = registers
        self._plans: dict[tuple[str, ...], Plan] = {}

    def at(self, run: RunDocument | None, fact: object) -> Plan:
        """Return the plan of the run at a document, and once it has heard of a fact."""
        entries = run.steps.items() if run else ()
        done = {step_id for step_id, entry in entries if entry.status == "completed"}
        if isinstance(fact, StepEnded) and fact.outcome == "completed":
            done.add(fact.step)
        plan, planned = self._base, dict[str, bytes]()
        while new := list(_planners(plan.definition.steps, done - planned.keys())):
            planned |= {step_id: self._output(step_id) for step_id in new}
            key = tuple(sorted(planned))
            if key not in self._plans:
                found = extended(self._base.definition, planned)
                self._plans[key] = Plan(found.definition, self._base.hash, found.plans)
            plan = self._plans[key]
        return plan

    def _output(self, step_id: str) -> bytes:
        register = self._registers[step_id].register
        assert isinstance(register, Ended)
        return bytes(register.output)


def _planners(steps: Iterable[Step], done: set[str]) -> Iterable[str]:
    return (step.id for step in steps if isinstance(step, PlannerStep) and step.id in done)
