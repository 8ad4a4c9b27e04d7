"""Budgets: what a run may use, what it has used, and which bound that reaches.

Counted from what the provider reported, never from estimates alone. Bounds are asked before a
model call and, for tool calls, before each call of a batch.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from treadle.worker.agent.core.conversation import Usage
from treadle.worker.agent.core.stops import Limit

MAX_STEPS = 30
"""Model turns of an agent that does not say."""
SOFT_TIME_SHARE = 0.75
"""Share of ``max_duration`` at which the agent is asked to put its result together."""


class Budget(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Bounds of one agent run, sub-agents included; 0 is unlimited."""

    max_steps: int = MAX_STEPS
    """Model turns."""
    max_tool_calls: int = 0
    max_input_tokens: int = 0
    max_output_tokens: int = 0
    max_total_tokens: int = 0
    max_cost_usd: float = 0.0
    """Needs a price table that knows the model."""
    max_duration: timedelta = timedelta(0)

    def problems(self) -> list[str]:
        """Return what is wrong with the numbers."""
        found = [
            f"budget: {name} is {value}; it must be 0 (unlimited) or more"
            for name, value in msgspec.structs.asdict(self).items()
            if name != "max_duration" and value < 0
        ]
        if self.max_steps == 0:
            found.append("budget: max_steps is 0; an agent needs a bound on its turns, 1 or more")
        if self.max_duration < timedelta(0):
            found.append(f"budget: max_duration is {self.max_duration}; it must not be negative")
        return found


class Counters(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a run has used."""

    steps: int = 0
    tool_calls: int = 0
    usage: Usage = Usage()
    cost_micro_usd: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            steps=self.steps + other.steps,
            tool_calls=self.tool_calls + other.tool_calls,
            usage=self.usage + other.usage,
            cost_micro_usd=self.cost_micro_usd + other.cost_micro_usd,
        )

    def __sub__(self, other: Counters) -> Counters:
        """Return what was used since; ``other`` is an earlier count of the same run."""
        mine, theirs = self.usage, other.usage
        return Counters(
            steps=self.steps - other.steps,
            tool_calls=self.tool_calls - other.tool_calls,
            usage=Usage(
                input_tokens=mine.input_tokens - theirs.input_tokens,
                cache_read_tokens=mine.cache_read_tokens - theirs.cache_read_tokens,
                cache_write_tokens=mine.cache_write_tokens - theirs.cache_write_tokens,
                output_tokens=mine.output_tokens - theirs.output_tokens,
                is_estimated=mine.is_estimated,
            ),
            cost_micro_usd=self.cost_micro_usd - other.cost_micro_usd,
        )


def reached(budget: Budget, used: Counters, elapsed_ms: int) -> Limit | None:
    """Return the first bound that forbids another model call, or ``None``."""
    usage = used.usage
    read = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
    if used.steps >= budget.max_steps:
        return "max_steps"
    if budget.max_tool_calls and used.tool_calls >= budget.max_tool_calls:
        return "max_tool_calls"
    if _is_over(read, budget.max_input_tokens):
        return "max_tokens"
    if _is_over(usage.output_tokens, budget.max_output_tokens):
        return "max_tokens"
    if _is_over(read + usage.output_tokens, budget.max_total_tokens):
        return "max_tokens"
    if budget.max_cost_usd and used.cost_micro_usd >= budget.max_cost_usd * 1_000_000:
        return "max_cost"
    soft_ms = budget.max_duration / timedelta(milliseconds=1) * SOFT_TIME_SHARE
    if soft_ms and elapsed_ms >= soft_ms:
        return "timeout"
    return None


def time_left_ms(budget: Budget, elapsed_ms: int) -> int | None:
    """Return the time until the run is ended, whatever it is doing; ``None`` without a bound."""
    if not budget.max_duration:
        return None
    return int(budget.max_duration / timedelta(milliseconds=1)) - elapsed_ms


def calls_left(budget: Budget, used: Counters, pending: int = 0) -> int | None:
    """Return how many more tool calls may run beside those pending; ``None`` is any number."""
    if not budget.max_tool_calls:
        return None
    return max(0, budget.max_tool_calls - used.tool_calls - pending)


def _is_over(used: int, bound: int) -> bool:
    return bool(bound) and used >= bound
