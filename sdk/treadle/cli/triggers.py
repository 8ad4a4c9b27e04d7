"""What the commands of ``treadle trigger`` do, given a client."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never
from zoneinfo import ZoneInfo

from msgspec import UNSET

from treadle.cli import exits, output
from treadle.sdk.client import Client, TriggerView
from treadle.sdk.messages import MetadataValue
from treadle.sdk.times import age
from treadle.sdk.triggers.kinds import described, kind_of
from treadle.sdk.triggers.trigger import Cron, Http, On, Subject, Webhook

_INPUT_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Wanted:
    """What ``treadle trigger create`` was asked for."""

    name: str
    workflow: str
    on: On
    version: str | None
    metadata: dict[str, MetadataValue]
    lane: str | None
    replace: bool
    input: Any = None


async def create(client: Client, wanted: Wanted, *, as_json: bool) -> int:
    """Create a trigger, and show it."""
    view = await client.triggers.create(
        wanted.name,
        wanted.workflow,
        wanted.on,
        input=wanted.input,
        version=wanted.version,
        metadata=wanted.metadata,
        lane=wanted.lane,
        replace=wanted.replace,
    )
    _tell(view, as_json=as_json)
    return exits.OK


async def list_(client: Client, *, as_json: bool) -> int:
    """List all triggers."""
    views = await client.triggers.list()
    if as_json:
        for view in views:
            output.emit(view)
    elif views:
        rows = [
            (
                view.name,
                view.workflow,
                kind_of(view.on) if view.workflow else "",
                described(view.on) if view.workflow else "",
                "paused" if view.paused else _next(view),
                _at(view.fired_ms, view.on),
            )
            for view in views
        ]
        headings = ("TRIGGER", "WORKFLOW", "KIND", "ON", "NEXT", "LAST")
        output.table(headings, rows)
        output.notes([note for view in views if not view.workflow for note in view.notes])
    else:
        output.remark("no triggers; create one: treadle trigger create --help")
    return exits.OK


async def show(client: Client, name: str, *, as_json: bool) -> int:
    """Show a trigger."""
    _tell(await client.triggers.get(name), as_json=as_json)
    return exits.OK


async def pause(client: Client, name: str, *, as_json: bool) -> int:
    """Pause a trigger."""
    await client.triggers.pause(name)
    _done(name, "paused", as_json=as_json)
    return exits.OK


async def resume(client: Client, name: str, *, as_json: bool) -> int:
    """Resume a trigger."""
    await client.triggers.resume(name)
    _done(name, "resumed", as_json=as_json)
    return exits.OK


async def delete(client: Client, name: str, *, as_json: bool) -> int:
    """Delete a trigger."""
    await client.triggers.delete(name)
    _done(name, "deleted", as_json=as_json)
    return exits.OK


async def fire(
    client: Client, name: str, run: str | None, given: tuple[Any, ...], *, as_json: bool
) -> int:
    """Start a run of a trigger, with the input that was given if one was, and print its id."""
    handle = await client.triggers.fire(name, run, input=given[0] if given else UNSET)
    if as_json:
        output.emit({"trigger": name, "run": handle.id})
    else:
        output.say(handle.id)
    return exits.OK


# ---------------------------------------------------------------- leaves


def _done(name: str, what: str, *, as_json: bool) -> None:
    if as_json:
        output.emit({"trigger": name, "done": what})
    else:
        output.say(f"{name}  {what}")


def _tell(view: TriggerView, *, as_json: bool) -> None:
    if as_json:
        output.emit(view)
        return
    state = "paused" if view.paused else "active"
    output.say(f"{view.name}  {view.workflow}  {state}", "yellow" if view.paused else "")
    for line in _facts(view):
        output.say(f"  {output.one_line(line)}")
    if view.notes:
        output.say("")
        output.notes(view.notes)


def _facts(view: TriggerView) -> list[str]:
    on = view.on
    facts = [_fires_at(view)]
    facts.append(f"version {view.version or 'the newest at each firing'}")
    text = bytes(view.input).decode()
    if isinstance(on, Cron) and text != "null":
        cut = text if len(text) <= _INPUT_CHARS_MAX else f"{text[:_INPUT_CHARS_MAX]}…"
        facts.append(f"input {cut}")
    if view.lane:
        facts.append(f"lane {view.lane!r}")
    facts.extend(f"metadata {key}={value}" for key, value in sorted(view.metadata.items()))
    facts.extend(f"next {_at(at_ms, on)}" for at_ms in view.next_ms)
    if view.fired_ms:
        status = view.run_status or "not there any more"
        facts.append(f"last {_at(view.fired_ms, on)}, run {view.run}, {status}")
    if view.missed_from_ms:
        left_out = _at(view.missed_from_ms, on)
        if view.missed_to_ms != view.missed_from_ms:
            left_out += f" to {_at(view.missed_to_ms, on)}"
        facts.append(f"left out {left_out}: nobody handled them in time")
    return facts


def _fires_at(view: TriggerView) -> str:
    match view.on:
        case Cron() as on:
            return f"cron {on.expression!r} in {on.zone}, missed firings: {on.catch_up}"
        case Subject() as on:
            flight = f", at most {on.max_in_flight} runs in flight" if on.max_in_flight else ""
            waiting = f", {view.waiting} waiting" if view.waiting else ""
            return f"{described(on)} in stream {view.stream!r}{flight}{waiting}"
        case Webhook() as on:
            window = "" if on.scheme == "github" else f" within {on.tolerance_s} s"
            return f"POST /hooks/{view.name}, {described(on)}{window}, secret in {on.secret}"
        case Http() as on:
            token = f", bearer token in {on.secret}" if on.secret else ", without a token"
            path = on.path or view.name
            cancels = ", cancelled when the client goes away" if on.cancels else ""
            return f"POST /api/{path}, answered within {on.timeout_s:g} s{token}{cancels}"
        case _:
            assert_never(view.on)


def _next(view: TriggerView) -> str:
    if not view.next_ms:
        return ""
    left_ms = view.next_ms[0] - round(time.time() * 1_000)
    late = f"in {age(left_ms)}" if left_ms > 0 else f"{age(-left_ms)} ago"
    return f"{_at(view.next_ms[0], view.on)} ({late})"


def _at(at_ms: int, on: On) -> str:
    """Return a firing as the clocks of its zone show it; '' if there is none."""
    if not at_ms:
        return ""
    zone = ZoneInfo(on.zone if isinstance(on, Cron) else "UTC")
    at = datetime.fromtimestamp(at_ms / 1_000, UTC).astimezone(zone)
    return f"{at:%a %Y-%m-%d %H:%M:%S %z}"
