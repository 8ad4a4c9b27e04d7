"""What a tool raises to say more than that it failed, and what a faulty tool is refused with.

TransientToolError   try again: raised by a tool, obeyed if the tool is idempotent
ToolRejected         not done, and the model is told why
InvalidTool          a definition with faults, all of them listed
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle.sdk.errors import Problem, UserError


class TransientToolError(Exception):
    """Raised in a tool: the same call may succeed if it is made again.

    It is made again only if the tool is idempotent, not before ``retry_after_s`` seconds.
    """

    def __init__(self, message: str = "", *, retry_after_s: float = 0.0) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class ToolRejected(Exception):
    """Raised in a tool that has done nothing: the model sees the message and may do better."""


class InvalidTool(UserError):
    """Tools with faults in their definitions, all of them listed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} fault{'s' if len(problems) != 1 else ''}"
        lines = "\n".join(f"  {problem!r}" for problem in problems)
        super().__init__(f"the tools cannot be offered to a model, for {count}:\n{lines}")
