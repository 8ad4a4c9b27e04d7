"""What the properties of the core are tried on, of steps that start runs."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from treadle.engine.core import ChildStarted
from treadle.sdk.children import child_id
from treadle.sdk.definition import Retry, SubWorkflowStep
from treadle.sdk.messages import ChildEnded, Failure


def sub_workflow_steps(
    step_id: str = "a", after: tuple[str, ...] = ()
) -> st.SearchStrategy[SubWorkflowStep]:
    """Steps that start runs."""
    return st.builds(
        SubWorkflowStep,
        id=st.just(step_id),
        after=st.just(after),
        workflow=st.just("child"),
        detached=st.booleans(),
        retry=st.sampled_from((Retry(), Retry(max_attempts=3, delay_s=0.2))),
    )


@st.composite
def child_facts(
    draw: st.DrawFn, run: str, steps: Sequence[str], failures: st.SearchStrategy[Failure]
) -> ChildStarted | ChildEnded:
    """What is told of the runs that steps start, true or not."""
    step, attempt = draw(st.sampled_from(steps)), draw(st.sampled_from((1, 1, 1, 2, 3)))
    if draw(st.booleans()):
        return ChildStarted(step, attempt, draw(st.none() | st.none() | failures))
    return ChildEnded(
        step=step,
        child=child_id(run, 1, step, attempt),
        attempt=attempt,
        outcome=draw(st.sampled_from(("completed", "completed", "failed", "failed", "cancelled"))),
        failure=draw(st.none() | failures),
    )
