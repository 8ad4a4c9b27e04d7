"""What the commands of ``treadle run`` do, given a client."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from treadle.cli import exits, letters, output, views
from treadle.sdk.client import Client, Note, RunView
from treadle.sdk.client.fork_wanted import Version
from treadle.sdk.client.raising import Raised
from treadle.sdk.errors import (
    RunCancelled,
    RunFailed,
    StoredUnreadable,
)
from treadle.sdk.messages import MetadataValue
from treadle.sdk.settings import Settings
from treadle.sdk.singletons import check_policy
from treadle.sdk.versions import checked_policy

QUIET_S = 2.0
"""A healthy run begins well within; only after it one wonders why nothing happens."""
REPEATED_NAMED_MAX = 5
"""Steps that a warning names."""
_PRETTY = 2


@dataclass(frozen=True, slots=True)
class Start:
    """What ``treadle run start`` was asked for."""

    workflow: str
    input: Any
    id: str | None
    metadata: dict[str, MetadataValue]
    lane: str | None
    singleton: str | None
    priority: int
    start_at: str | None
    start_after: timedelta | None
    version_policy: str | None
    watch: bool
    wait: bool
    timeout_s: float | None


def raised(
    iterations: tuple[int, int],
    duration: tuple[timedelta | None, timedelta | None],
    added: Added,
) -> Raised:
    """Return the raised bounds that the options of a resume mean."""
    return {
        "max_iterations": iterations[0],
        "add_iterations": iterations[1],
        "max_duration": duration[0],
        "add_duration": duration[1],
        "add_tool_calls": added.tool_calls,
        "add_input_tokens": added.tokens,
        "add_output_tokens": added.tokens,
        "add_total_tokens": added.tokens,
        "add_cost_usd": added.cost_usd,
    }


@dataclass(frozen=True)
class Added:
    """What a resume adds to the budgets of a step."""

    tool_calls: int = 0
    tokens: int = 0
    cost_usd: float = 0


@dataclass(frozen=True)
class ForkFrom:
    """Where ``treadle run fork`` starts again."""

    step: str | None
    iteration: int | None
    has_input: bool
    input: Any


def run(url: str | None, namespace: str | None, act: Callable[[Client], Awaitable[int]]) -> int:
    """Connect, act, and return the exit code."""

    output.typed_with(url, namespace)

    async def connected() -> int:
        async with Client.connect(url, namespace) as client:
            return await act(client)

    return asyncio.run(connected())


def place_of(url: str | None, namespace: str | None) -> str:
    """Return which server and namespace are asked, in words and without a password."""
    settings = Settings.from_env(url=url, namespace=namespace)
    return f"at {settings.shown_url} in namespace {settings.namespace!r}"


async def start(client: Client, request: Start, *, as_json: bool) -> int:
    handle = await client.start(
        request.workflow,
        request.input,
        id=request.id,
        metadata=request.metadata,
        lane=request.lane,
        singleton=check_policy(request.singleton) if request.singleton is not None else None,
        priority=request.priority,
        start_at=request.start_at,
        start_after=request.start_after,
        version_policy=checked_policy(request.version_policy),
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


async def children(client: Client, run_id: str, *, as_json: bool) -> int:
    found = await client.children(run_id)
    if as_json:
        for view in found:
            output.emit(views.summary(view))
    elif found:
        views.listing(found)
    else:
        output.remark(f"no step of run {run_id} has started a run")
    return exits.OK


async def watch(client: Client, run_id: str, timeout_s: float | None, *, as_json: bool) -> int:
    code = exits.OK
    try:
        async with _noting(client, run_id, as_json=as_json) as told, asyncio.timeout(timeout_s):
            loops = views.loops_of(await client.get(run_id))
            async for event in client.watch(run_id):
                if as_json:
                    output.emit(event)
                else:
                    views.event(event, loops)
                if event.kind == "step.parked" and not as_json:
                    notes = (await client.get(run_id)).notes
                    told.update(notes)
                    output.notes(notes)
                if event.kind == "run.ended":
                    code = exits.code_of_status(event.status)
    except TimeoutError as exc:
        raise TimeoutError(
            f"run {run_id!r} has not ended within {timeout_s:g} s, and nobody has stopped it. See "
            f"what it waits for: `treadle run show {run_id}`."
        ) from exc
    return code


async def history(client: Client, run_id: str, *, as_json: bool) -> int:
    try:
        loops = views.loops_of(await client.get(run_id))
    except StoredUnreadable as error:
        output.remark(f"! {error}")
        loops = frozenset[str]()
    async for event in client.history(run_id):
        if as_json:
            output.emit(event)
        else:
            views.event(event, loops)
    return exits.OK


async def result(client: Client, run_id: str, timeout_s: float | None, *, as_json: bool) -> int:
    try:
        async with _noting(client, run_id, as_json=as_json):
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


async def cancel(client: Client, run_id: str, reason: str, *, now: bool, as_json: bool) -> int:
    if await client.cancel(run_id, reason, now=now):
        return _asked(run_id, "cancel", as_json=as_json)
    view = await client.get(run_id)
    if as_json:
        output.emit({"run": run_id, "requested": "", "status": view.status})
    elif view.is_terminal:
        output.say(f"run {run_id} is {view.status} already")
    else:
        output.say(
            f"run {run_id} undoes what it has done already: treadle explain {run_id}; to end it "
            f"with what is not undone yet: treadle run cancel {run_id} --now"
        )
    return exits.OK


async def pause(client: Client, run_id: str, reason: str, *, as_json: bool) -> int:
    if await client.pause(run_id, reason):
        return _asked(run_id, "pause", as_json=as_json)
    if as_json:
        output.emit({"run": run_id, "requested": "", "status": (await client.get(run_id)).status})
    else:
        output.say(f"run {run_id} is paused already")
    return exits.OK


async def resume(
    client: Client,
    run_id: str,
    step: str | None,
    raised: Raised,
    *,
    as_json: bool,
) -> int:
    await client.resume(run_id, step, **raised)
    return _asked(run_id, "resume", as_json=as_json)


async def retry(
    client: Client, run_id: str, new_id: str | None, *, latest: bool, as_json: bool
) -> int:
    version: Version = "latest" if latest else "same"
    await letters.warn_of_parent(client, run_id)
    await _warn_of_repeated(client, run_id, None, version)
    made = await client.retry(run_id, id=new_id, version=version)
    return _made(run_id, made.id, as_json=as_json)


async def fork(
    client: Client,
    run_id: str,
    place: ForkFrom,
    new_id: str | None,
    *,
    latest: bool,
    as_json: bool,
) -> int:
    version: Version = "latest" if latest else "same"
    if place.step is not None:
        await _warn_of_repeated(client, run_id, place.step, version)
    made = await client.fork(
        run_id,
        from_step=place.step,
        iteration=place.iteration,
        input=place.input if place.has_input else msgspec.UNSET,
        id=new_id,
        version=version,
    )
    return _made(run_id, made.id, as_json=as_json)


async def _warn_of_repeated(client: Client, run: str, step: str | None, version: Version) -> None:
    """Say which steps are executed again that one would think are taken over."""
    again = await client.repeated_steps(run, from_step=step, version=version)
    if again:
        some = ", ".join(map(repr, again[:REPEATED_NAMED_MAX]))
        more = len(again) - REPEATED_NAMED_MAX
        names = f"{some} and {more} more" if more > 0 else some
        but = f", although it starts from step {step!r}" if step else ""
        steps = "1 step is" if len(again) == 1 else f"{len(again)} steps are"
        output.remark(
            f"! {steps} executed again{but}: {names}. Run {run} was compensated: these steps were "
            "undone, or depend on one that was"
        )


def _made(source: str, run_id: str, *, as_json: bool) -> int:
    if as_json:
        output.emit({"run": run_id, "forked_from": source})
    else:
        output.say(run_id)
        if sys.stdout.isatty():
            output.remark(f"watch it: treadle run watch {run_id}")
    return exits.OK


async def signal(
    client: Client, run_id: str, name: str, value: Any, signal_id: str | None, *, as_json: bool
) -> int:
    sent = await client.signal(run_id, name, value, signal_id)
    if not as_json:
        _remark_unheard(await client.get(run_id), name)
    return _asked(run_id, "signal", as_json=as_json, id=sent)


def _asked(run_id: str, request: str, *, as_json: bool, **more: str) -> int:
    if as_json:
        output.emit({"run": run_id, "requested": request, **more})
    else:
        output.say(f"{request} of {run_id} is stored; see it: treadle run show {run_id}")
    return exits.OK


@asynccontextmanager
async def _noting(client: Client, run_id: str, *, as_json: bool) -> AsyncGenerator[set[Note]]:
    """Say beside the result, after a while, why one has to wait; yield what has been said."""
    told: set[Note] = set()

    async def tell() -> None:
        await asyncio.sleep(QUIET_S)
        for note in (await client.get(run_id)).notes:
            if note not in told:
                told.add(note)
                output.remark(f"! {note.text}{': ' + note.command if note.command else ''}")

    if as_json:
        yield told
        return
    waiting = asyncio.create_task(tell())
    try:
        yield told
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


def _remark_unheard(view: RunView, name: str) -> None:
    """Say so if no step of the workflow ever waits for this signal."""
    known = sorted({step.signal for step in view.steps if step.signal})
    if view.steps and name not in known:
        have = ", ".join(map(repr, known)) or "none"
        output.remark(
            f"note: no step of workflow {view.workflow!r} waits for a signal {name!r} (it waits "
            f"for: {have}), so it is kept and never consumed. Check its name."
        )
