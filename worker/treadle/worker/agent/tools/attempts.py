"""One attempt of one call: the function runs in a task of its own, bounded and cancellable.

A plain function runs in a thread, which cannot be stopped: at its timeout it is abandoned, and
whether it took effect is not known.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from treadle.sdk import effects_seen
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.env import ToolEnv, ToolProgress
from treadle.worker.agent.tools.signature import underlying
from treadle.worker.agent.tools.tool import AnyTool
from treadle.worker.verdict import StopReason

CANCEL_GRACE_S = 5.0
"""For a cancelled call to put its things in order; one that does not end by then is left behind."""

_log = logging.getLogger("treadle.tool")


class Returned(msgspec.Struct, frozen=True):
    """The function returned."""

    value: object


class Raised(msgspec.Struct, frozen=True):
    """The function raised."""

    error: BaseException


class TimedOut(msgspec.Struct, frozen=True):
    """The attempt took longer than the tool's timeout."""


class Stopped(msgspec.Struct, frozen=True):
    """The batch was cancelled."""


Outcome = Returned | Raised | TimedOut | Stopped


def new_context(
    env: ToolEnv, tool: AnyTool, *, call_id: str, key: str, attempt: int = 1
) -> ToolContext[Any]:
    """Return the context of an attempt; its callbacks may be called from any thread."""
    loop = asyncio.get_running_loop()

    def on_loop(function: Callable[[], None]) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is loop:
            function()
            return
        try:
            loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass  # The loop has ended: nobody listens to an abandoned thread.

    def report(data: object) -> None:
        on_loop(functools.partial(emit, env, ToolProgress(call_id, tool.name, data)))

    return ToolContext(
        env.deps,
        run=env.run,
        step=env.step,
        iteration=env.iteration,
        tool=tool.name,
        call_id=call_id,
        idempotency_key=key,
        attempt=attempt,
        heartbeat=lambda: on_loop(env.heartbeat),
        report=report,
    )


async def attempt_call(
    tool: AnyTool,
    args: dict[str, Any],
    ctx: ToolContext[Any],
    env: ToolEnv,
    stop: asyncio.Future[None],
) -> Outcome:
    """Run the tool's function once."""
    if tool.effect == "once" and effects_seen.observer is not None:
        told = msgspec.json.encode(args, order="sorted", enc_hook=repr).decode()
        effects_seen.happened(f"tool {tool.name} {told}")
    positional = (ctx,) if tool.takes_context else ()
    call = functools.partial(tool.function, *positional, **args)
    return await bounded(run_function(call, env, is_async=tool.is_async), tool, ctx, stop)


async def bounded(
    work: Awaitable[object], tool: AnyTool, ctx: ToolContext[Any], stop: asyncio.Future[None]
) -> Outcome:
    """Await the work in a task, until it ends, its time is over or ``stop`` is set."""
    task = asyncio.ensure_future(_guarded(work))
    try:
        waited: set[asyncio.Future[Any]] = {task, stop}
        await asyncio.wait(waited, timeout=tool.timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            # It may have ended by itself in the moment of a cancel: then it counts.
            return task.result()
        reason: StopReason = "cancelled" if stop.done() else "timeout"
        await _end(task, tool, ctx, reason)
        return Stopped() if stop.done() else TimedOut()
    except asyncio.CancelledError:
        ctx.cancelled.trip("cancelled")
        task.cancel()
        raise


async def _end(
    task: asyncio.Future[Outcome], tool: AnyTool, ctx: ToolContext[Any], reason: StopReason
) -> None:
    ctx.cancelled.trip(reason)
    task.cancel()
    await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
    if not task.done():
        _log.error(
            "agent.tool.left-behind tool=%s call=%s: it does not end %.0f s after its %s",
            tool.name,
            ctx.call_id,
            CANCEL_GRACE_S,
            reason,
        )


async def _guarded(work: Awaitable[object]) -> Outcome:
    """Await the work; nothing it raises leaves the task, but Ctrl-C."""
    try:
        return Returned(await work)
    except (Exception, SystemExit, asyncio.CancelledError) as exc:  # noqa: BLE001 — a user's function
        return Raised(exc)


async def run_function(
    call: Callable[[], object], env: ToolEnv, *, is_async: bool | None = None
) -> object:
    """Call an ``async`` function here and a plain one in a thread; return its value."""
    if is_async is None:
        is_async = inspect.iscoroutinefunction(underlying(call))
    value = call() if is_async else await env.run_blocking(call)
    if inspect.isawaitable(value):
        value = await cast("Awaitable[object]", value)
    return value


def emit(env: ToolEnv, event: Any) -> None:
    """Give the event out; a listener that raises does not disturb the calls."""
    try:
        env.on_event(event)
    except Exception:  # noqa: BLE001 — a user's listener may raise anything
        _log.exception("agent.tool.listener-failed event=%s", type(event).__name__)
