"""Is what a workflow says about collecting its starts sound? What ``validation.py`` asks."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.sdk import expressions
from treadle.sdk.collecting import Debounce
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.errors import Problem


def problems_of(definition: WorkflowDefinition) -> Iterator[Problem]:
    """Yield what is wrong with the key and the times; their ranges are looked at elsewhere."""
    rule = definition.collect
    if rule is None:
        return
    if isinstance(rule, Debounce) and rule.period_s > rule.max_wait_s:
        yield Problem(
            "collect.period_s",
            f"period_s {rule.period_s:g} is more than max_wait_s {rule.max_wait_s:g}, so no start "
            "could ever be waited out. Raise max_wait_s or lower period_s.",
        )
    yield from expressions.problems_of(
        "collect.key", rule.key, expressions.OF_A_KEY, names=("input",)
    )
