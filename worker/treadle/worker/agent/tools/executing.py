"""Executes the tool calls of one answer.

One at a time if the agent says so or a tool of the batch asks for it, else side by side. Results
come back in the order of the calls. Two kinds of failure are kept apart:

    a tool fails    its result says so; the other calls go on
    the run fails   (the journal refuses, or the task is cancelled) all calls are cancelled and
                    awaited, and the error is raised
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence

from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.tools.attempts import emit
from treadle.worker.agent.tools.calling import execute_call, kept_result
from treadle.worker.agent.tools.declaring import did_you_mean
from treadle.worker.agent.tools.env import ToolEnded, ToolEnv
from treadle.worker.agent.tools.outcomes import (
    Shown,
    cancelled_result,
    refused_result,
    replaced,
    skipped_result,
)
from treadle.worker.agent.tools.rendering import error_text
from treadle.worker.agent.tools.tool import AnyTool


async def execute_batch(
    calls: Sequence[ToolCall], tools: Mapping[str, AnyTool], env: ToolEnv
) -> list[ToolResult]:
    """Execute the calls whose decision is ``execute``; return all results in their order.

    When ``env.cancelled`` is set, open calls end with the status ``cancelled``. When this task is
    cancelled the same is settled, then ``CancelledError`` is raised.
    """
    width = 1 if is_sequential(calls, tools, env) else env.parallel_max
    return await _Batch(tools, env, width).execute(calls)


def is_sequential(calls: Sequence[ToolCall], tools: Mapping[str, AnyTool], env: ToolEnv) -> bool:
    """True if the calls run one after the other."""
    return env.sequential or any(
        tools[call.name].sequential
        for call in calls
        if call.decision == "execute" and call.name in tools
    )


class _Batch:
    def __init__(self, tools: Mapping[str, AnyTool], env: ToolEnv, width: int) -> None:
        self._tools = tools
        self._outer = env
        self._env = dataclasses.replace(env, started=self._started)
        # The journal sees one thing at a time, whatever runs side by side.
        self._journal = asyncio.Lock()
        # In the order of the calls: an asyncio semaphore is fair.
        self._slots = asyncio.Semaphore(max(1, width))
        self._stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._has_failed = False

    async def execute(self, calls: Sequence[ToolCall]) -> list[ToolResult]:
        if not calls:
            return []
        watch = asyncio.create_task(self._watch())
        tasks = [asyncio.create_task(self._one(call)) for call in calls]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            # Whichever way out: no call is alive afterwards.
            self._set_stop()
            watch.cancel()
            await _drain([*tasks, watch])
        for task in tasks:
            if not task.cancelled() and (error := task.exception()):
                raise error
        return [task.result() for task in tasks]

    async def _one(self, call: ToolCall) -> ToolResult:
        try:
            async with self._slots:
                result = await self._result(call)
                if not self._has_failed:
                    async with self._journal:
                        await self._outer.settled(result)
                    emit(self._outer, ToolEnded(result))
                return result
        except BaseException:
            # Before the slot is taken by the next one.
            self._has_failed = True
            self._set_stop()
            raise

    async def _result(self, call: ToolCall) -> ToolResult:
        tool = self._tools.get(call.name)
        if call.decision != "execute":
            return refused_result(call, call.reason)
        if tool is None:
            reason = f"There is no tool {call.name!r}, so nothing ran."
            return refused_result(call, reason + did_you_mean(call.name, self._tools), "unknown")
        if self._stop.done():
            return cancelled_result(call, tool, has_begun=False)
        if reason := self._outer.skip(call):
            return skipped_result(call, reason)
        shown = await execute_call(call, tool, self._env, self._stop)
        try:
            result = await self._outer.after(call, shown.result)
        except Exception as exc:  # noqa: BLE001 — a user's hook may raise anything
            # It may have been there to hide something: its failure shows nothing.
            text = f"The call ended, but a hook on its result failed: {error_text(exc)}"
            return replaced(shown.result, "error", text, "hook")
        if not shown.whole or result.content != shown.result.content or self._has_failed:
            return result  # What a hook has changed may hide something: the whole would show it.
        async with self._journal:
            return await kept_result(call, Shown(result, shown.whole), tool, self._outer)

    async def _started(self, call: ToolCall, key: str) -> None:
        async with self._journal:
            if not self._stop.done():
                await self._outer.started(call, key)

    async def _watch(self) -> None:
        if self._outer.cancelled is not None:
            await self._outer.cancelled.wait()
            self._set_stop()

    def _set_stop(self) -> None:
        if not self._stop.done():
            self._stop.set_result(None)


async def _drain(tasks: Sequence[asyncio.Task[ToolResult] | asyncio.Task[None]]) -> None:
    """Await all tasks; if that is cancelled once more, cancel them for good."""
    pending = [task for task in tasks if not task.done()]
    if not pending:
        return
    try:
        await asyncio.wait(pending)
    except asyncio.CancelledError:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)
        raise
