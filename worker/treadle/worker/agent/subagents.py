"""Agents that an agent may hand a task to: how the model calls them, and what they work with.

parent's answer ── call of "searcher" {"task": ...} ──> a run of that agent, within the turn
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Protocol

import msgspec
import pydantic

from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.conversation import Block
from treadle.worker.agent.core.entries import Opened
from treadle.worker.agent.core.nested import DEPTH_MAX
from treadle.worker.agent.core.spec import ToolSpec, Versions
from treadle.worker.agent.equipment import Equipment
from treadle.worker.agent.tools.arguments import (
    Arguments,
    ModelledArguments,
    Parameter,
    TypedArguments,
)

TASK = "task"
_TASK = Parameter(
    TASK,
    Annotated[str, pydantic.Field(pattern=r"\S")],
    "The whole task: it sees nothing of this conversation.",
)


class Delegate(Protocol):
    """What an agent is to the agent that may call it."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def input_type(self) -> Any: ...

    @property
    def depth(self) -> int:
        """How many levels of sub-agents it has itself."""
        ...

    @property
    def versions(self) -> Versions: ...

    def equipment(self, **changes: Any) -> Equipment: ...

    def opened(self, goal: str | Sequence[Block], at_ms: int, trace_id: str = "") -> Opened: ...


class Subagent:
    """An agent as a tool of another one."""

    def __init__(self, agent: Delegate) -> None:
        """Make it; raise ``TypeError`` if its input cannot be described to a model."""
        self._agent = agent
        self.name = agent.name
        self.description = agent.description
        self.arguments: Arguments = (
            TypedArguments([_TASK])
            if agent.input_type is None
            else ModelledArguments(agent.input_type)
        )

    @property
    def depth(self) -> int:
        """How many levels of sub-agents it has itself."""
        return self._agent.depth

    @property
    def versions(self) -> Versions:
        """What the sub-agent is made with."""
        return self._agent.versions

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments."""
        return self.arguments.schema

    @cached_property
    def spec(self) -> ToolSpec:
        """The sub-agent as the model sees it."""
        return ToolSpec(
            name=self.name, description=self.description, input_schema=self.input_schema
        )

    read_only = True
    """Handing a task on changes nothing; what the sub-agent may do, its caller's policy bounds."""

    def needs_approval(self, proposed: Mapping[str, Any]) -> bool:
        """Return false: only the policy's rule may want a person to agree."""
        del proposed
        return False

    def bind(self, proposed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as they are; raise ``ArgumentFaults`` if they do not fit."""
        self.arguments.validate(proposed)
        return dict(proposed)

    def opened(self, call: ToolCall, at_ms: int, trace_id: str) -> Opened:
        """Return the entry that begins the run: the task, or the arguments as JSON."""
        goal = call.input.get(TASK) if self._agent.input_type is None else None
        if not isinstance(goal, str):
            goal = msgspec.json.format(msgspec.json.encode(call.input), indent=2).decode()
        return self._agent.opened(goal, at_ms, trace_id)

    def equipped(self, outer: Equipment, call: ToolCall) -> Equipment:
        """Return what it works with, as the call of an agent with ``outer``.

        What that one must not do, it must not either; and what has no price of its own counts at
        that one's.
        """
        own = self._agent.equipment()
        return dataclasses.replace(
            own,
            deps=outer.deps,
            policy=own.policy.within(outer.policy),
            prices=own.prices or outer.prices,
            run=outer.run,
            # Part of each idempotency key: calls of two sub-agents may have the same id.
            step=f"{outer.step}/{call.id}",
            cancelled=outer.cancelled,
            heartbeat=outer.heartbeat,
            provider_budget=own.provider_budget or outer.provider_budget,
            shared=outer.shared,
            address=outer.address,
            after_loss=outer.after_loss,
            tool_sleep=outer.tool_sleep,
        )


def problems_of(subagents: Iterable[Subagent], taken: Iterable[str]) -> list[str]:
    """Return why an agent cannot have these sub-agents beside tools of those names."""
    found: list[str] = []
    names = set(taken)
    for each in subagents:
        if each.name in names:
            found.append(
                f"sub-agent {each.name!r} has the name of another tool or sub-agent, and a call "
                "must mean one. Give it another name"
            )
        names.add(each.name)
        if not each.description.strip():
            found.append(
                f"sub-agent {each.name!r} has no description, so no model knows what it is for. "
                "Give Agent(description=...)"
            )
        if each.depth >= DEPTH_MAX:
            found.append(
                f"sub-agent {each.name!r} has {each.depth} levels of sub-agents itself; below an "
                f"agent there are {DEPTH_MAX} at most. Let it do more on its own"
            )
    return found
