"""Is what a workflow says about collecting its starts sound? What ``validation.py`` asks."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.sdk import conditions
from treadle.sdk.collecting import Debounce
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.errors import Problem
from treadle.sdk.limits import CONDITION_CHARS_MAX


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
    if len(rule.key) > CONDITION_CHARS_MAX:
        yield Problem(
            "collect.key",
            f"it has {len(rule.key)} characters, and {CONDITION_CHARS_MAX} are allowed. Put what "
            "it works out into the input.",
        )
    elif rule.key:
        for text in conditions.problems_of(rule.key, (), ("input",)):
            yield Problem("collect.key", text)
