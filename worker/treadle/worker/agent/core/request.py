"""From the state to a request: derived each time, stored never.

The prefix (tools, instructions, older messages) is byte-equal from one turn to the next, so that
the provider's cache serves it; what changes stands at the end.
"""

from __future__ import annotations

from treadle.worker.agent.core import caching, tokens
from treadle.worker.agent.core.conversation import Block, ModelRequest
from treadle.worker.agent.core.entries import Purpose
from treadle.worker.agent.core.rules import TOOL_NAME
from treadle.worker.agent.core.spec import AgentSpec, ToolSpec
from treadle.worker.agent.core.state import State, tool_uses

_RETIRED = "This tool is not available any more: a call of it does nothing. Do not call it."


def build_request(spec: AgentSpec, state: State, purpose: Purpose) -> ModelRequest:
    """Return the request of the next turn, or of the last answer."""
    thinking = state.thinking or spec.thinking
    tools = [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        for tool in _tools(spec, state)
    ]
    tool_choice: Block | None = None
    if purpose == "final" and tools:
        if spec.output_tool is None:
            tool_choice = {"type": "none"}
        elif thinking == "off":
            # The API refuses a forced tool together with thinking.
            tool_choice = {"type": "tool", "name": spec.output_tool.name}
    return caching.mark(
        ModelRequest(
            model=state.model or spec.model,
            max_tokens=max_tokens(spec, state),
            system=_system(spec, state),
            messages=list(state.messages),
            tools=tools,
            tool_choice=tool_choice,
            thinking=thinking,
            temperature=spec.temperature,
        )
    )


def max_tokens(spec: AgentSpec, state: State) -> int:
    """Return the bound on the next answer: doubled after one that was cut off."""
    if state.watch.streaks.is_cut:
        return min(spec.max_output_tokens * 2, spec.context_window // 2)
    return spec.max_output_tokens


def context_tokens(state: State) -> int:
    """Return how much of the window the next request fills, as far as is known."""
    return tokens.context_tokens(state.context_tokens, state.added_chars)


def retired(spec: AgentSpec, state: State) -> tuple[str, ...]:
    """Return the tools that the conversation calls and the agent does not have."""
    uses = (use for message in state.messages for use in tool_uses(message["content"]))
    called = {use["name"] for use in uses if TOOL_NAME.fullmatch(use["name"])}
    return tuple(sorted(called.difference(tool.name for tool in _own(spec))))


def _own(spec: AgentSpec) -> list[ToolSpec]:
    return [*spec.tools, *([spec.output_tool] if spec.output_tool is not None else [])]


def _tools(spec: AgentSpec, state: State) -> list[ToolSpec]:
    """Return the agent's tools, and after them those that were taken from it meanwhile.

    Some providers refuse a conversation with calls of tools that its request does not have. A
    call of one of these is judged like any call of an unknown tool: nothing runs.
    """
    own = _own(spec)
    gone = set(state.retired).difference(tool.name for tool in own)
    return [
        *own,
        *(
            ToolSpec(name=name, description=_RETIRED, input_schema={"type": "object"})
            for name in sorted(gone)
        ),
    ]


def _system(spec: AgentSpec, state: State) -> list[Block]:
    system: list[Block] = []
    if spec.instructions:
        system.append({"type": "text", "text": spec.instructions})
    if digest := state.journal_shown.digest():
        system.append({"type": "text", "text": f"Your run journal, in short:\n{digest}"})
    return system
