"""What the commands of ``treadle approvals`` do, given a client."""

from __future__ import annotations

import getpass
import time
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from treadle.cli import exits, output
from treadle.sdk.asks import Ask
from treadle.sdk.client import Client, PendingAsk
from treadle.sdk.client.notes import HASH_CHARS_SHOWN, ask_note
from treadle.sdk.errors import UserError
from treadle.sdk.times import age, date

HASH_CHARS_MIN = 8
"""A shorter start of a hash says little about the arguments that were seen."""
CHECKED_WITHIN_S = 10.0
"""A running worker has looked at edited arguments well within."""


@dataclass(frozen=True, slots=True)
class Given:
    """What every answer is given with."""

    id: str
    run: str | None
    hash: str | None
    text: str
    by: str | None

    @property
    def name(self) -> str:
        """Who answers."""
        return user() if self.by is None else self.by


def user() -> str:
    """Return the name of the user of this system; '' if it has none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""  # A container's user may have a number only.


async def list_(client: Client, run: str | None, *, as_json: bool) -> int:
    found = await client.approvals(run)
    if as_json:
        for each in found:
            output.emit(each)
        return exits.OK
    if not found:
        output.remark(f"nothing is asked{f' by run {run!r}' if run else ''}")
        return exits.OK
    rows = [(each.ask.id, each.run, each.step, *_row(each.ask)) for each in found]
    output.table(("ID", "RUN", "STEP", "ASKS", "TO", "SINCE", "UNTIL", ""), rows)
    return exits.OK


async def show(client: Client, id: str, run: str | None, *, as_json: bool) -> int:
    each = await _one(client, id, run)
    ask = each.ask
    full = await client.whole_input(each) if ask.full_bytes else ask.input
    if as_json:
        whole = msgspec.structs.replace(ask, input=full, full_bytes=0) if full else ask
        output.emit(msgspec.structs.replace(each, ask=whole))
        return exits.OK
    output.say(f"{ask.id}  {ask.kind}  of run {each.run}, step {each.step}")
    for line in _facts(ask):
        output.say(f"  {output.one_line(line)}")
    if ask.tool or ask.kind == "approval":
        hash = f", arguments of hash {ask.args_hash[:HASH_CHARS_SHOWN]}" if ask.args_hash else ""
        output.say(f"  {ask.tool or 'its input'}{hash}:")
        shown = ask.input if full is None else full
        for line in msgspec.json.format(bytes(shown), indent=2).decode().split("\n"):
            output.say(f"    {line}")
        if full is None:
            output.say(f"  cut: they have {ask.full_bytes} bytes in all")
    if command := ask_note(each.run, each.step, ask).command:
        output.say(f"  next: {output.command(command)}")
    return exits.OK


async def approve(client: Client, given: Given, edited: Any, *, as_json: bool) -> int:
    if edited is not None and not isinstance(edited, dict):
        raise UserError(
            f"--input is a {type(edited).__name__}, and the arguments of a call are an object. "
            "Give them all, by their names: --input '{\"name\": value}'."
        )
    place = await _place(client, given)
    sequence = await client.approve(
        place.run,
        place.step,
        given.id,
        args_hash=_hash(place, given),
        input=cast("dict[str, Any] | None", edited),
        text=given.text,
        by=given.name,
        wait_s=CHECKED_WITHIN_S if edited is not None else 0,
    )
    code = _stored(place, given, "approved", sequence, as_json=as_json)
    if edited is not None and not as_json:
        left = await client.approvals(place.run)
        if any((each.step, each.ask.id) == (place.step, given.id) for each in left):
            output.remark("no worker has taken it yet, and one may still refuse the arguments")
    return code


async def reject(client: Client, given: Given, *, as_json: bool) -> int:
    place = await _place(client, given)
    hash = _hash(place, given)
    sequence = await client.reject(
        place.run, place.step, given.id, args_hash=hash, text=given.text, by=given.name
    )
    return _stored(place, given, "rejected", sequence, as_json=as_json)


async def answer(client: Client, given: Given, *, as_json: bool) -> int:
    place = await _place(client, given)
    hash = _hash(place, given)
    sequence = await client.answer(
        place.run, place.step, given.id, given.text, args_hash=hash, by=given.name
    )
    return _stored(place, given, "answered", sequence, as_json=as_json)


# ------------------------------------------------------------------ leaves


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an answer goes; ``ask`` is None if that is not asked any more."""

    run: str
    step: str
    ask: Ask | None


async def _one(client: Client, id: str, run: str | None) -> PendingAsk:
    """Return the ask of that id; raise ``UserError`` if there is none, or several."""
    found = [each for each in await client.approvals(run) if each.ask.id == id]
    if not found:
        of_run = f" by run {run!r}" if run else ""
        raise UserError(
            f"nothing of the id {id!r} is asked{of_run}: it was answered, has expired, or its run "
            f"has ended. See what is asked: `treadle approvals list`."
        )
    if len(found) > 1:
        runs = ", ".join(f"{each.run} (step {each.step})" for each in found)
        raise UserError(f"{len(found)} asks have the id {id!r}: {runs}. Say which: --run RUN.")
    return found[0]


async def _place(client: Client, given: Given) -> _Place:
    """Return where the answer goes. The same answer again goes where the first one went."""
    if given.run is not None:
        is_asked = any(each.ask.id == given.id for each in await client.approvals(given.run))
        steps = (await client.get(given.run)).steps
        if not is_asked and any((s.id, s.kind) == (given.id, "approval") for s in steps):
            return _Place(given.run, given.id, None)
        loops = [s.id for s in steps if s.kind == "agent_loop"]
        if not is_asked and len(loops) == 1:
            return _Place(given.run, loops[0], None)
    each = await _one(client, given.id, given.run)
    return _Place(each.run, each.step, each.ask)


def _hash(place: _Place, given: Given) -> str:
    """Return the whole hash of the arguments; raise ``UserError`` unless the given one fits."""
    start = given.hash or ""
    if given.hash is not None and len(start) < HASH_CHARS_MIN:
        raise UserError(
            f"--hash {start!r} is too short to tell arguments apart. Give {HASH_CHARS_MIN} "
            "characters of it or more."
        )
    if place.ask is None:
        return ""
    # What does not fit goes on as it is, and is refused with what stands there.
    return place.ask.args_hash if place.ask.args_hash.startswith(start) else start


def _row(ask: Ask) -> tuple[str, ...]:
    now_ms = time.time_ns() // 1_000_000
    until = age(ask.due_ms - now_ms) if ask.due_ms else ""
    what = ask_note("", "", ask).text.removeprefix("step '' asks ")
    since = age(now_ms - ask.asked_ms) if ask.asked_ms else ""
    return (ask.kind, ask.to, since, until, what)


def _facts(ask: Ask) -> list[str]:
    facts = [ask.text] if ask.text else []
    if ask.options:
        facts.append(f"options: {' | '.join(ask.options)}")
    if ask.asked_ms:
        facts.append(f"asked {date(ask.asked_ms)}")
    if ask.to:
        after = f", after {ask.level} escalations" if ask.level else ""
        facts.append(f"for {ask.to}{after}")
    if ask.due_ms:
        facts.append(f"until {date(ask.due_ms)}")
    if ask.problem:
        facts.append(f"the last answer was not taken: {ask.problem}")
    return facts


def _stored(place: _Place, given: Given, what: str, sequence: int, *, as_json: bool) -> int:
    if as_json:
        told = {"run": place.run, "step": place.step, "id": given.id, "answer": what}
        output.emit(told | {"sequence": sequence})
    else:
        again = "" if place.ask is not None else " before"
        call = f" {place.ask.tool}" if place.ask is not None and place.ask.tool else ""
        output.say(f"{what}{again}:{call} {given.id}; see it: treadle run show {place.run}")
    return exits.OK
