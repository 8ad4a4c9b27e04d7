"""Tools whose functions are replaced: schemas, rules and retries stay, the world does not.

    MockedWorld     answers from a case's scripted results
    RecordedWorld   answers from the results that a run's journal holds

Neither ever calls the real function, nor a sub-agent: what has no result is told to the model as
an error.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from treadle.worker.agent.agent import Agent
from treadle.worker.agent.core.calls import ToolResult
from treadle.worker.agent.core.entries import Entry, Settled
from treadle.worker.agent.evals.case import MockedResult
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.errors import TransientToolError
from treadle.worker.agent.tools.results import Content, Ended, Terminate
from treadle.worker.agent.tools.tool import AnyTool, Tool

TIMEOUT_S = 0.05
"""Of a mocked call that does not end: nobody should wait for what is certain."""


class MockedFailure(Exception):
    """Raised by a mocked tool whose result is ``error``."""


class World(Protocol):
    """Answers the calls of mocked tools."""

    async def answer(self, ctx: ToolContext[Any]) -> Any:
        """Return or raise what the tool would."""
        ...

    def timeout_s(self, tool: AnyTool) -> float:
        """Return the timeout of the mocked tool."""
        ...


def mocked(tools: Mapping[str, AnyTool], world: World) -> dict[str, AnyTool]:
    """Return the tools with functions that ask the world."""
    return {name: _mocked(tool, world) for name, tool in tools.items()}


def mocked_agent(agent: Agent[Any], world: World) -> dict[str, Any]:
    """Return changes of the agent's equipment: its tools and its sub-agents ask the world."""
    stand_ins: dict[str, AnyTool] = {
        name: Tool(
            name=name,
            description=each.description,
            arguments=each.arguments,
            function=_asking(world),
            is_async=True,
            takes_context=True,
            sequential=False,
        )
        for name, each in agent.subagents.items()
    }
    return {
        "spec": msgspec.structs.replace(agent.spec, subagents=frozenset()),
        "subagents": {},
        "tools": mocked(agent.tools, world) | stand_ins,
    }


def _asking(world: World) -> Callable[..., Any]:
    async def function(ctx: ToolContext[Any], **_: Any) -> Any:
        return await world.answer(ctx)

    return function


def _mocked(tool: AnyTool, world: World) -> AnyTool:
    def reconcile(*_: Any) -> None:
        return None

    return dataclasses.replace(
        tool,
        function=_asking(world),
        is_async=True,
        takes_context=True,
        # The real one would ask the real world; in this one a call cut off had no effect.
        reconcile=None if tool.reconcile is None else reconcile,
        timeout_s=world.timeout_s(tool),
    )


class MockedWorld:
    """Scripted results, one for each attempt of a tool; the last one stays."""

    def __init__(self, results: Mapping[str, tuple[MockedResult, ...]]) -> None:
        """``results`` by the agent's name of the tool."""
        self._results = results
        self._given: dict[tuple[str, int], int] = {}
        self._count: Counter[str] = Counter()
        self.calls: list[str] = []
        """Ids of the calls that were made, one for each attempt."""
        self.unmocked: set[str] = set()
        """Tools that were called without having results."""

    def again(self) -> MockedWorld:
        """Return the same world for a repetition: the same call gets the same result."""
        world = MockedWorld(self._results)
        world._given = self._given
        world._count = self._count
        return world

    def timeout_s(self, tool: AnyTool) -> float:
        """Return a short timeout for a tool that is scripted to run into it."""
        results = self._results.get(tool.name, ())
        return TIMEOUT_S if any(each.status == "timeout" for each in results) else tool.timeout_s

    async def answer(self, ctx: ToolContext[Any]) -> Any:
        """Return or raise the scripted result of this attempt."""
        self.calls.append(ctx.call_id)
        results = self._results.get(ctx.tool)
        if not results:
            self.unmocked.add(ctx.tool)
            raise MockedFailure(f"{ctx.tool} has no mocked result, and nothing else is called")
        place = (ctx.call_id, ctx.attempt)
        if place not in self._given:
            self._given[place] = self._count[ctx.tool]
            self._count[ctx.tool] += 1
        result = results[min(self._given[place], len(results) - 1)]
        match result.status:
            case "ok":
                return result.output
            case "malformed":
                return float("nan") if result.output is None else result.output
            case "timeout":
                return await asyncio.Event().wait()
            case "retryable_error":
                raise TransientToolError(result.reason)
            case "error":
                raise MockedFailure(result.reason)


class RecordedWorld:
    """The results of a recorded run, by the id of the call."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._results = {
            entry.result.id: entry.result for entry in entries if isinstance(entry, Settled)
        }

    def timeout_s(self, tool: AnyTool) -> float:
        """Return the tool's own timeout."""
        return tool.timeout_s

    async def answer(self, ctx: ToolContext[Any]) -> Any:
        """Return the recorded result, as it was shown to the model."""
        result = self._results.get(ctx.call_id)
        if result is None:
            return Ended(
                result="The recording has no result of this call.",
                status="skipped",
                error_type="not_recorded",
            )
        return _ended(result)


def _ended(result: ToolResult) -> Any:
    content = result.content
    ended = Ended(
        result=content if isinstance(content, str) else Content(content),
        status=result.status,
        error_type=result.error_type,
        effect=result.effect,
    )
    return Terminate(ended) if result.terminate else ended
