"""Why an agent stopped: a closed list, because people and programs branch on it."""

from __future__ import annotations

from typing import Literal

StopReason = Literal[
    "completed",
    "failed",
    "refused",
    "needs_human",
    "max_steps",
    "max_tool_calls",
    "max_tokens",
    "max_cost",
    "timeout",
    "cancelled",
    "loop_detected",
    "empty_turn",
    "context_exceeded",
    "policy_blocked",
    "tool_failure",
    "output_truncated",
]
"""
``completed``         the goal is reached: software agreed
``failed``            the model call failed for good
``refused``           the model declined
``needs_human``       a person has to decide, and nobody can be waited for
``max_steps``         the bound on model turns
``max_tool_calls``    the bound on executed tool calls
``max_tokens``        the bound on tokens, of input, output or both
``max_cost``          the bound on money
``timeout``           the bound on time
``cancelled``         the run was cancelled
``loop_detected``     the agent repeats itself, and was told so
``empty_turn``        twice in a row neither text nor a tool call
``context_exceeded``  the conversation does not fit, and compaction does not help
``policy_blocked``    the agent insists on forbidden actions
``tool_failure``      tools fail again and again
``output_truncated``  answers are cut off at ``max_tokens`` again and again
"""

Limit = Literal["max_steps", "max_tool_calls", "max_tokens", "max_cost", "timeout"]
"""Stops that are bounds: at them ``on_limit`` decides what happens."""

OF_STEP: dict[str, Limit] = {"max_iterations": "max_steps", "max_duration": "timeout"}
"""What a bound of the step is to the agent that serves it, where the names differ."""
