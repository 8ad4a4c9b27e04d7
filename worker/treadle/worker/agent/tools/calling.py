"""One call from its arguments to its result: announced, tried, tried again, rendered."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import cast

import msgspec

from treadle.sdk.errors import clause
from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.tools.arguments import ArgumentFaults
from treadle.worker.agent.tools.attempts import (
    Outcome,
    Raised,
    Returned,
    Stopped,
    TimedOut,
    attempt_call,
    bounded,
    emit,
    new_context,
    run_function,
)
from treadle.worker.agent.tools.env import ToolBegan, ToolEnv, ToolRetried
from treadle.worker.agent.tools.outcomes import (
    Shown,
    cancelled_result,
    refused_result,
    shown_result,
    unsafe_result,
)
from treadle.worker.agent.tools.rendering import cut, error_text
from treadle.worker.agent.tools.retrying import delay_s, is_transient
from treadle.worker.agent.tools.tool import AnyTool


async def execute_call(
    call: ToolCall, tool: AnyTool, env: ToolEnv, stop: asyncio.Future[None]
) -> Shown:
    """Execute one call; raise only what ``env.started`` raises.

    The whole of an output that was cut is the caller's to keep: see ``kept_result``.
    """
    began_s = env.monotonic()
    try:
        args = tool.bind(call.input)
        key = tool.idempotency_key(args, run=env.run, step=env.step, call_id=call.id)
    except ArgumentFaults as exc:
        return Shown(refused_result(call, f"{call.name} did not run: {exc}", "invalid"))
    except Exception as exc:  # noqa: BLE001 — a user's key function may raise anything
        return Shown(refused_result(call, f"{call.name} did not run: {error_text(exc)}", "key"))
    if not tool.idempotent:
        await env.started(call, key)
        if stop.done():
            return Shown(cancelled_result(call, tool, has_begun=False))
    emit(env, ToolBegan(call.id, call.name))
    attempt = 1
    while True:
        ctx = new_context(env, tool, call_id=call.id, key=key, attempt=attempt)
        outcome = await attempt_call(tool, args, ctx, env, stop)
        wait_s = _wait_s(tool, outcome, attempt, env)
        if wait_s is None:
            break
        emit(env, _retried(call, outcome, attempt, wait_s))
        if await _is_stopped(stop, wait_s, env):
            outcome = Stopped()
            break
        attempt += 1
    return shown_result(
        call,
        tool,
        outcome,
        bytes_max=_bytes_max(tool, env),
        attempts=attempt,
        duration_ms=round((env.monotonic() - began_s) * 1000),
    )


async def reconcile_call(
    call: ToolCall, tools: Mapping[str, AnyTool], env: ToolEnv
) -> ToolResult | None:
    """Find out about a call that had started, and has no result, when its worker died.

    ``None``: run it (again). ``ok``: it had happened, and this is its result. ``unsafe``: it may
    have happened, and only a person can tell.
    """
    tool = tools.get(call.name)
    if tool is None:
        return unsafe_result(call, f"There is no tool {call.name!r} any more.")
    if tool.idempotent:
        return None
    began = "This call had begun when its worker was lost."
    if tool.reconcile is None:
        return unsafe_result(call, began)
    try:
        args = tool.bind(call.input)
        key = tool.idempotency_key(args, run=env.run, step=env.step, call_id=call.id)
    except Exception as exc:  # noqa: BLE001 — a user's key function may raise anything
        return unsafe_result(
            call, f"{began} Its arguments cannot be read: {clause(error_text(exc))}."
        )
    ctx = new_context(env, tool, call_id=call.id, key=key)
    asking = functools.partial(tool.reconcile, ctx, args)
    stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    outcome = await bounded(run_function(asking, env), tool, ctx, stop)
    if isinstance(outcome, Returned) and outcome.value is None:
        return None
    if isinstance(outcome, Returned):
        shown = shown_result(call, tool, outcome, bytes_max=_bytes_max(tool, env))
        return await kept_result(call, shown, tool, env)
    why = error_text(outcome.error) if isinstance(outcome, Raised) else "it took too long"
    return unsafe_result(call, f"{began} Its reconciliation failed: {clause(why)}.")


def _wait_s(tool: AnyTool, outcome: Outcome, attempt: int, env: ToolEnv) -> float | None:
    """Return how long to wait for another attempt; ``None``: there is none."""
    if not tool.idempotent or attempt >= tool.attempts_max:
        return None
    match outcome:
        case TimedOut():
            return delay_s(None, attempt, env.random())
        case Raised() if is_transient(outcome.error):
            return delay_s(outcome.error, attempt, env.random())
        case _:
            return None


def _retried(call: ToolCall, outcome: Outcome, attempt: int, wait_s: float) -> ToolRetried:
    error = outcome.error if isinstance(outcome, Raised) else TimeoutError("the call timed out")
    return ToolRetried(call.id, call.name, attempt, wait_s, type(error).__name__, error_text(error))


async def _is_stopped(stop: asyncio.Future[None], wait_s: float, env: ToolEnv) -> bool:
    """Wait; return at once, and true, when the batch is cancelled."""
    sleep = asyncio.ensure_future(env.sleep(wait_s))
    try:
        await asyncio.wait({sleep, stop}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        sleep.cancel()
        await asyncio.wait({sleep})
    return stop.done()


def _bytes_max(tool: AnyTool, env: ToolEnv) -> int:
    return min(tool.output_bytes_max, env.output_bytes_max or tool.output_bytes_max)


async def kept_result(call: ToolCall, shown: Shown, tool: AnyTool, env: ToolEnv) -> ToolResult:
    """Have the whole of an output that was cut stored, and refer to it in the notice."""
    if not shown.whole or env.keep is None:
        return shown.result
    reference = await env.keep(call, shown.whole)
    again = cut(shown.whole.decode(), _bytes_max(tool, env), reference)
    return msgspec.structs.replace(shown.result, content=cast("str", again.content))
