"""A stage for the execution of tools: calls, an environment that records, no real waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.tools.canonical import args_hash
from treadle.worker.agent.tools.declaring import check_tools
from treadle.worker.agent.tools.env import ToolEnv, ToolEvent
from treadle.worker.agent.tools.executing import execute_batch
from treadle.worker.agent.tools.tool import AnyTool


def call(name: str, id_: str = "", /, **arguments: Any) -> ToolCall:
    """Return a checked call of the tool."""
    return ToolCall(
        id=id_ or f"toolu_{name}", name=name, input=arguments, args_hash=args_hash(arguments)
    )


class Recorder:
    """Keeps what the journal and the listeners were told, in order."""

    def __init__(self) -> None:
        self.journal: list[tuple[str, str]] = []
        self.keys: dict[str, str] = {}
        self.settled: list[ToolResult] = []
        self.events: list[ToolEvent] = []
        self.waits_s: list[float] = []
        self.kept: dict[str, bytes] = {}

    def env(self, **changes: Any) -> ToolEnv:
        return ToolEnv(
            **{
                "run": "r1",
                "step": "s1",
                "started": self._started,
                "settled": self._settled,
                "on_event": self.events.append,
                "sleep": self._sleep,
                "random": lambda: 0.0,
                **changes,
            }
        )

    def names(self, kind: type) -> list[str]:
        return [getattr(event, "name", "") for event in self.events if isinstance(event, kind)]

    async def _started(self, call: ToolCall, key: str) -> None:
        self.journal.append(("started", call.id))
        self.keys[call.id] = key

    async def _settled(self, result: ToolResult) -> None:
        self.journal.append(("settled", result.id))
        self.settled.append(result)

    async def _sleep(self, wait_s: float) -> None:
        self.waits_s.append(wait_s)


def execute(
    calls: list[ToolCall],
    tools: list[AnyTool | Callable[..., Any]],
    recorder: Recorder | None = None,
    **env: Any,
) -> list[ToolResult]:
    """Execute a batch in an event loop of its own."""
    recorder = recorder or Recorder()
    return asyncio.run(execute_batch(calls, check_tools(tools), recorder.env(**env)))


def run_one(tool_: AnyTool, recorder: Recorder | None = None, **arguments: Any) -> ToolResult:
    """Execute one call."""
    return execute([call(tool_.name, **arguments)], [tool_], recorder)[0]


async def until(condition: Callable[[], object], within_s: float = 5.0) -> None:
    """Wait for a condition, with a bound."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)
