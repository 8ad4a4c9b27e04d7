"""An agent as data: all that ``decide`` and ``build_request`` have to know of it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.compaction import CompactionPolicy
from treadle.worker.agent.core.conversation import ThinkingLevel

FINAL_OUTPUT = "final_output"
"""Name of the tool through which an agent with a typed output gives its result."""
ASK_HUMAN = "ask_human"

OnLimit = Literal["wrap_up", "fail"]


class ToolSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A tool as the model and the rules see it."""

    name: str
    description: str
    input_schema: dict[str, Any]
    idempotent: bool = False
    polling: bool = False
    """Asking again with the same arguments is its purpose, as long as the answers differ."""
    is_shell: bool = False
    """Its ``command`` argument is a shell command."""


class Versions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What an iteration was made with; a hash each, the model by name."""

    prompt: str = ""
    tools: str = ""
    policy: str = ""
    model: str = ""

    def drift(self, earlier: Versions) -> tuple[str, ...]:
        """Return which of prompt and tools are not what they were.

        A conversation that was brought from elsewhere has no versions, and so none to differ from.
        """
        if earlier == Versions():
            return ()
        return tuple(
            name for name in ("prompt", "tools") if getattr(self, name) != getattr(earlier, name)
        )


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What stands fixed for a run of an agent."""

    name: str
    model: str
    context_window: int
    max_output_tokens: int
    instructions: str
    tools: tuple[ToolSpec, ...] = ()
    """Without ``final_output``."""
    subagents: frozenset[str] = frozenset()
    """Names among the tools: calling one runs a sub-agent."""
    output_tool: ToolSpec | None = None
    """Set when the output has a type."""
    budget: Budget = Budget()
    on_limit: OnLimit = "wrap_up"
    compaction: CompactionPolicy = CompactionPolicy()
    thinking: ThinkingLevel = "off"
    temperature: float | None = None
    versions: Versions = Versions()

    def tool(self, name: str) -> ToolSpec | None:
        """Return the tool of that name."""
        if self.output_tool is not None and name == self.output_tool.name:
            return self.output_tool
        return next((tool for tool in self.tools if tool.name == name), None)
