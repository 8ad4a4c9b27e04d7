"""Limits for the steps of any workflow that the properties are tried on: ``strategies.plans``."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from treadle.engine.core import Plan
from treadle.sdk.definition import Step, TypedStep, content_hash
from treadle.sdk.flow import Concurrency, RateLimit

LIMITS = (
    (Concurrency(1, scope="workflow"),),
    (Concurrency(2, scope="workflow"),),
    (Concurrency(1, scope="workflow", name="a"), Concurrency(2, scope="namespace", name="b")),
)
RATES = (RateLimit(1, 0.2, scope="workflow"), RateLimit(2, 60.0, scope="workflow"))


@st.composite
def limited(draw: st.DrawFn, plans: st.SearchStrategy[Plan]) -> Plan:
    """Any of the plans, its steps under limits that they share, or some of them."""
    definition, shared = draw(plans).definition, draw(st.sampled_from(LIMITS))
    undoing = {step.compensate for step in definition.steps}
    steps = tuple(
        step if step.id in undoing else _limited(draw, step, shared) for step in definition.steps
    )
    definition = msgspec.structs.replace(definition, steps=steps)
    return Plan(definition, content_hash(definition))


def _limited(draw: st.DrawFn, step: Step, shared: tuple[Concurrency, ...]) -> Step:
    if not isinstance(step, TypedStep):
        return step
    concurrency = draw(st.sampled_from((shared, shared, shared[:1], ())))
    return msgspec.structs.replace(
        step,
        concurrency=concurrency,
        rate_limits=draw(st.sampled_from(((), (), (), RATES[:1], RATES[1:]))),
        priority=draw(st.sampled_from(("", "", "3", "-7"))) if concurrency else "",
    )
