"""What the execution of tools needs from around it: identity, journal, threads, cancellation.

All has a default that serves in memory. The journal hangs on ``started`` and ``settled``.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.cancellation import CancelToken
from treadle.worker.threads import BlockingPool

PARALLEL_MAX = 16
"""Calls of one batch at once: more would mostly queue at the same service."""


class ToolBegan(msgspec.Struct, frozen=True, tag="agent.tool.began"):
    """The first attempt of a call begins."""

    id: str
    name: str


class ToolProgress(msgspec.Struct, frozen=True, tag="agent.tool.progress"):
    """A tool has reported."""

    id: str
    name: str
    data: Any


class ToolRetried(msgspec.Struct, frozen=True, tag="agent.tool.retry"):
    """An attempt failed in a way that may pass, and another follows."""

    id: str
    name: str
    attempt: int
    """The one that failed, from 1."""
    delay_s: float
    error_type: str
    message: str


class ToolEnded(msgspec.Struct, frozen=True, tag="agent.tool.ended"):
    """A call has ended and is settled. In the order of completion."""

    result: ToolResult


ToolEvent = ToolBegan | ToolProgress | ToolRetried | ToolEnded


async def _nothing(*_: object) -> None:
    return None


async def _unchanged(_: ToolCall, result: ToolResult) -> ToolResult:
    return result


@lru_cache(maxsize=1)
def _threads() -> BlockingPool:
    return BlockingPool("treadle-tool")


async def run_in_thread(call: Callable[[], object]) -> object:
    """Run a plain function in a thread of this process, with a copy of the context variables."""
    return await _threads().run(call)


@dataclass(frozen=True, kw_only=True)
class ToolEnv:
    """What surrounds the calls of one batch."""

    deps: Any = None
    run: str = ""
    step: str = ""
    iteration: int = 0
    sequential: bool = False
    """The agent wants its calls one after the other."""
    parallel_max: int = PARALLEL_MAX
    cancelled: CancelToken | None = None
    """Tripped: all calls are cancelled, and their results say so."""
    started: Callable[[ToolCall, str], Awaitable[None]] = _nothing
    """Awaited with the call and its idempotency key before a tool runs that is not idempotent.
    If it raises, the tool does not run and the batch fails."""
    settled: Callable[[ToolResult], Awaitable[None]] = _nothing
    """Awaited as each call ends, before anybody sees the result. Never overlaps itself or
    ``started``. If it raises, the batch fails."""
    after: Callable[[ToolCall, ToolResult], Awaitable[ToolResult]] = _unchanged
    """May replace a result before it is settled."""
    skip: Callable[[ToolCall], str] = lambda _: ""
    """Asked before a call begins: a reason, for the model, why it should not any more."""
    keep: Callable[[ToolCall, bytes], Awaitable[str]] | None = None
    """Stores an output that was cut, whole, and returns what the model is told of it. Never
    overlaps ``settled`` or ``started``. If it raises, the batch fails."""
    output_bytes_max: int = 0
    """A lower cap than the tools' own, such as a share of the context window; 0 is none."""
    on_event: Callable[[ToolEvent], None] = lambda _: None
    heartbeat: Callable[[], None] = lambda: None
    run_blocking: Callable[[Callable[[], object]], Awaitable[object]] = run_in_thread
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random
    monotonic: Callable[[], float] = time.monotonic
