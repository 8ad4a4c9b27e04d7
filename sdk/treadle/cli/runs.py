"""What the commands of ``treadle run`` do, given a client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from treadle.cli import exits, output, views
from treadle.sdk.client import Client, RunView
from treadle.sdk.errors import RunCancelled, RunFailed, UserError

STATUSES = ("requested", "running", "parked", "completed", "failed", "cancelled")
_PRETTY = 2


@dataclass(frozen=True, slots=True)
class Start:
    """What ``treadle run start`` was asked for."""

    workflow: str
    input: Any
    id: str | None
    metadata: dict[str, str]
    watch: bool
    wait: bool
    timeout_s: float | None


def run(url: str | None, namespace: str | None, act: Callable[[Client], Awaitable[int]]) -> int:
    """Connect, act, and return the exit code."""

    async def connected() -> int:
        async with Client.connect(url, namespace) as client:
            return await act(client)

    return asyncio.run(connected())


def check_status(status: str | None) -> str | None:
    """Return the status if runs can have it; raise ``UserError`` that names those."""
    if status is not None and status not in STATUSES:
        raise UserError(
            f"--status {status!r} is no status of a run. Choose one of {', '.join(STATUSES)}."
        )
    return status


async def start(client: Client, request: Start, *, as_json: bool) -> int:
    handle = await client.start(
        request.workflow, request.input, id=request.id, metadata=request.metadata
    )
    if request.watch:
        code = await watch(client, handle.id, request.timeout_s, as_json=as_json)
        if code == exits.OK and request.wait:
            return await result(client, handle.id, None, as_json=as_json)
        return code
    if request.wait:
        if not as_json:
            output.remark(f"run {handle.id} of {request.workflow} started; waiting for its result")
        return await result(client, handle.id, request.timeout_s, as_json=as_json)
    if as_json:
        output.emit({"run": handle.id, "workflow": request.workflow})
    else:
        output.say(handle.id)
        if sys.stdout.isatty():
            output.remark(f"watch it: treadle run watch {handle.id}")
    return exits.OK


async def show(client: Client, run_id: str, *, as_json: bool) -> int:
    view = await client.get(run_id)
    if as_json:
        output.emit(view)
    else:
        views.show(view)
    return exits.OK


async def list_(
    client: Client, workflow: str | None, status: str | None, limit: int, *, as_json: bool
) -> int:
    found = await client.list(workflow, status, limit)
    if as_json:
        for view in found:
            output.emit(views.summary(view))
    else:
        views.listing(found)
    return exits.OK


async def watch(client: Client, run_id: str, timeout_s: float | None, *, as_json: bool) -> int:
    code = exits.OK
    try:
        async with asyncio.timeout(timeout_s):
            await _remark_notes(await client.get(run_id), as_json=as_json)
            async for event in client.watch(run_id):
                if as_json:
                    output.emit(event)
                else:
                    views.event(event)
                if event.kind == "step.parked" and not as_json:
                    output.notes((await client.get(run_id)).notes)
                if event.kind == "run.ended":
                    code = exits.code_of_status(event.status)
    except TimeoutError as exc:
        raise TimeoutError(
            f"run {run_id!r} has not ended within {timeout_s:g} s. It goes on. See where it "
            f"stands: `treadle run show {run_id}`."
        ) from exc
    return code


async def history(client: Client, run_id: str, *, as_json: bool) -> int:
    async for event in client.history(run_id):
        if as_json:
            output.emit(event)
        else:
            views.event(event)
    return exits.OK


async def result(client: Client, run_id: str, timeout_s: float | None, *, as_json: bool) -> int:
    if not as_json:
        await _remark_notes(await client.get(run_id), as_json=False)
    try:
        value = await client.result(run_id, timeout_s=timeout_s)
    except (RunFailed, RunCancelled) as error:
        output.report(error, as_json=as_json)
        return exits.code_of(error)
    if as_json:
        output.emit({"run": run_id, "status": "completed", "result": value})
    else:
        text = msgspec.json.format(msgspec.json.encode(value), indent=_PRETTY)
        output.say(text.decode())
    return exits.OK


async def cancel(client: Client, run_id: str, reason: str, *, as_json: bool) -> int:
    await client.cancel(run_id, reason)
    return _asked(run_id, "cancel", as_json=as_json)


async def resume(
    client: Client,
    run_id: str,
    step: str | None,
    iterations: tuple[int, int],
    duration: tuple[timedelta | None, timedelta | None],
    *,
    as_json: bool,
) -> int:
    await client.resume(
        run_id,
        step,
        max_iterations=iterations[0],
        add_iterations=iterations[1],
        max_duration=duration[0],
        add_duration=duration[1],
    )
    return _asked(run_id, "resume", as_json=as_json)


async def signal(
    client: Client, run_id: str, name: str, value: Any, signal_id: str | None, *, as_json: bool
) -> int:
    sent = await client.signal(run_id, name, value, signal_id)
    return _asked(run_id, "signal", as_json=as_json, id=sent)


def _asked(run_id: str, request: str, *, as_json: bool, **more: str) -> int:
    if as_json:
        output.emit({"run": run_id, "requested": request, **more})
    else:
        output.say(f"{request} of {run_id} is stored; see it: treadle run show {run_id}")
    return exits.OK


async def _remark_notes(view: RunView, *, as_json: bool) -> None:
    """Say beside the result why one may wait for long."""
    if as_json:
        return
    for note in view.notes:
        output.remark(f"! {note.text}{': ' + note.command if note.command else ''}")
