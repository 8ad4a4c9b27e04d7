"""What is said about bounds: to the model while there is room, to people when there is none.

    60 %, 85 %   a notice at the end of the turn, appended after its results, once each and budget
    100 %        the stop's detail: which bound, its value, what to do

Of ``max_duration`` the model has the part before the last answer is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import NamedTuple

from treadle.worker.agent.core.budget import SOFT_TIME_SHARE, Budget, Counters, reached

NOTICE_SHARES = (0.60, 0.85)
"""Shares of a bound at which the model is told what is left."""
STEPS_MIN = 3
"""A run of fewer turns has nothing to be warned of."""
_ADVICE = "Go for the result, and leave out what it does not need."


class Share(NamedTuple):
    """How far one bound is used."""

    name: str
    """The field of ``Budget``."""
    unit: str
    used: float
    bound: float

    @property
    def level(self) -> int:
        """How many of the shares are used up; a bound that is reached has none to tell of."""
        if self.used >= self.bound:
            return 0
        if self.name == "max_steps":
            if self.bound < STEPS_MIN:
                return 0
            return sum(self.used >= round(self.bound * share) for share in NOTICE_SHARES)
        return sum(self.used >= self.bound * share for share in NOTICE_SHARES)

    def __str__(self) -> str:
        used, bound, left = (_number(n) for n in (self.used, self.bound, self.bound - self.used))
        return f"{used} of {bound} {self.unit} are used; {left} are left."


def shares(budget: Budget, used: Counters, elapsed_ms: int) -> Iterator[Share]:
    """Yield how far each bound of the budget is used; unlimited ones are left out."""
    usage = used.usage
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    soft_s = budget.max_duration / timedelta(seconds=1) * SOFT_TIME_SHARE
    for share in (
        Share("max_steps", "turns", used.steps, budget.max_steps),
        Share("max_tool_calls", "tool calls", used.tool_calls, budget.max_tool_calls),
        Share("max_input_tokens", "input tokens", read, budget.max_input_tokens),
        Share("max_output_tokens", "output tokens", usage.output_tokens, budget.max_output_tokens),
        Share("max_total_tokens", "tokens", read + usage.output_tokens, budget.max_total_tokens),
        Share("max_cost_usd", "USD", used.cost_micro_usd / 1_000_000, budget.max_cost_usd),
        Share("max_duration", "seconds", elapsed_ms / 1000, soft_s),
    ):
        if share.bound:
            yield share


def notice(
    budget: Budget, used: Counters, elapsed_ms: int, told: Mapping[str, int]
) -> tuple[str, dict[str, int]]:
    """Return what the model is told now, or '', and what it has been told by then.

    ``told`` is the number of shares of each bound it was told of before.
    """
    new = {
        share: share.level
        for share in shares(budget, used, elapsed_ms)
        if share.level > told.get(share.name, 0)
    }
    if not new:
        return "", dict(told)
    text = " ".join([*map(str, new), _ADVICE])
    return text, {**told, **{share.name: level for share, level in new.items()}}


# ------------------------------------------------------------------ the end

_FIELDS = {
    "max_steps": ("max_steps",),
    "max_tool_calls": ("max_tool_calls",),
    "max_tokens": ("max_input_tokens", "max_output_tokens", "max_total_tokens"),
    "max_cost": ("max_cost_usd",),
    "timeout": ("max_duration",),
}


def stop_text(budget: Budget, limit: str, used: Counters, elapsed_ms: int) -> str:
    """Return why a run stopped at a bound: which one, its value, and what to do."""
    fields = _FIELDS.get(limit, ())
    found = [
        share
        for share in shares(budget, used, elapsed_ms)
        if share.name in fields and share.used >= share.bound
    ]
    if not found or reached(budget, used, elapsed_ms) is None:
        return (
            f"{limit} of the step is reached, which its workflow bounds. Raise it there; with "
            'on_limit="park" the run waits at it for `treadle run resume`'
        )
    share = found[0]
    if share.name == "max_duration":
        return (
            f"max_duration is {budget.max_duration}, and at {SOFT_TIME_SHARE:.0%} of it the last "
            f"answer was asked for. Raise max_duration of the agent's budget, or ask for less"
        )
    return (
        f"{share.name} is {_number(share.bound)}, and {_number(share.used)} {share.unit} are used. "
        f"Raise {share.name} of the agent's budget, or ask for less"
    )


def overrun_text(budget: Budget) -> str:
    """Return why a run was ended at its hard limit."""
    return (
        f"max_duration is {budget.max_duration}, and it was over before the last answer had come, "
        "so what was under way was cut off. Raise max_duration of the agent's budget, bound its "
        "tools with timeout=, or go on from the state"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1_000 else f"{value:.2f}"
