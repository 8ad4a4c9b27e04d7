"""What a waiting step asks people, and what they answer.

    handler  --ctx.wait(asks=...)-->  register  -->  client.approvals()
    handler  <--message "reply"-----  client.approve() | reject() | answer()

Asks stand in the register of a step exactly as long as it waits with them: they come and go with
its compare-and-set. They are bounded, one by one and all together, since whoever looks at the step
reads them. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

NO_INPUT = msgspec.Raw(b"null")

ASKS_MAX = 64
"""Of one step at a time: more than a person decides about in one go. An agent asks the next ones
when some are answered."""
ASKS_BYTES_MAX = 192 * 1024
"""All of one register together, as JSON: beside a state of 512 KiB they fit a message of 1 MiB."""
INPUT_BYTES_MAX = 32 * 1024
"""Arguments of one call: a file of some hundred lines is shown whole."""
TEXT_CHARS_MAX = 4_000
NAME_CHARS_MAX = 200
"""Of an id, which may be a path with ``/``, of a tool and of an addressee."""
OPTIONS_MAX = 50
SHORT_CHARS_MAX = 100
"""What is left of a text when a register has no room for more."""

AskKind = Literal["approval", "question", "unsafe"]
"""``approval``: may this call run? ``question``: a text is wanted. ``unsafe``: this call may have
run before its worker died, and must not run twice: what became of it?"""
Verdict = Literal["approve", "reject", "answer"]

_ID = re.compile(rf"[!-~]{{1,{NAME_CHARS_MAX}}}\Z")
_encode = msgspec.json.Encoder().encode


class Ask(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One thing that a step waits to hear from people."""

    id: str
    """Of an agent: the id of the call. Unique among what the step asks at a time."""
    kind: AskKind = "question"
    text: str = ""
    """The question; of a call, why a person has to decide."""
    options: tuple[str, ...] = ()
    """Answers to choose from, if the question has some; any other is taken too."""
    tool: str = ""
    input: msgspec.Raw = NO_INPUT
    """The arguments of the call, JSON. If they are too long: their beginning, as a text."""
    full_bytes: int = 0
    """Size of the whole arguments when ``input`` was cut, else 0."""
    args_hash: str = ""
    """Of the whole arguments: an approval names it, and counts for no others."""
    asked_ms: int = 0
    """When it was asked first, milliseconds since the epoch."""
    due_ms: int = 0
    """When the default takes effect; 0 is never. No restart moves it."""
    level: int = 0
    """Escalations so far."""
    to: str = ""
    """Who is asked, in the asker's own words; '' is anybody."""
    approvers: tuple[str, ...] = ()
    """The names that an answer has to be given with, one of them; empty is any."""
    problem: str = ""
    """Why the last answer was not taken."""
    after: int = 0
    """Sequence of the newest answer that did not settle it: the next one is another answer."""


class Reply(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True
):
    """A person's answer to an ask: the payload of a message of kind ``reply``."""

    call_id: str
    """Id of the ask."""
    verdict: Verdict
    args_hash: str = ""
    """The arguments the person has seen: an approval of others does not count."""
    input: dict[str, Any] | None = None
    """Run with these arguments instead."""
    text: str = ""
    by: str = ""


def answer_id(ask: Ask) -> str:
    """Return the id of the message that answers it: a step takes one answer to each ask."""
    named = "\n".join((ask.id, ask.args_hash, str(ask.after)))
    return f"answer-{hashlib.sha256(named.encode()).hexdigest()[:40]}"


def problems(asks: Sequence[Ask]) -> list[str]:
    """Return what is wrong with the asks of one step; empty if they can be stored."""
    ids = [ask.id for ask in asks]
    found = [
        f"the id {id[:NAME_CHARS_MAX]!r}: it is 1 to {NAME_CHARS_MAX} printable characters of "
        "ASCII, without spaces"
        for id in ids
        if not _ID.match(id)
    ]
    found += [f"the id {id!r}: two asks have it" for id in sorted(set(ids)) if ids.count(id) > 1]
    if len(asks) > ASKS_MAX:
        found.append(f"{len(asks)} asks: at most {ASKS_MAX} stand open at a time")
    return found


def bounded(asks: Sequence[Ask]) -> tuple[Ask, ...]:
    """Return the asks as they are stored: what is too long is cut, and says so.

    What fits already comes back as it is.
    """
    asks = tuple(_within(ask, INPUT_BYTES_MAX) for ask in asks[:ASKS_MAX])
    if sum(map(_size, asks)) <= ASKS_BYTES_MAX:
        return asks
    share = ASKS_BYTES_MAX // len(asks)
    return tuple(ask if _size(ask) <= share else _shrunk(ask, share) for ask in asks)


# ------------------------------------------------------------------ leaves


def _within(ask: Ask, input_bytes_max: int) -> Ask:
    cut: dict[str, Any] = {}
    for name in ("text", "problem"):
        if len(text := getattr(ask, name)) > TEXT_CHARS_MAX:
            cut[name] = _cut_text(text, TEXT_CHARS_MAX)
    for name in ("tool", "to", "args_hash"):
        if len(text := getattr(ask, name)) > NAME_CHARS_MAX:
            cut[name] = _cut_text(text, NAME_CHARS_MAX)
    if len(ask.options) > OPTIONS_MAX or any(len(o) > NAME_CHARS_MAX for o in ask.options):
        cut["options"] = tuple(_cut_text(o, NAME_CHARS_MAX) for o in ask.options[:OPTIONS_MAX])
    if len(bytes(ask.input)) > input_bytes_max:
        cut |= _cut_input(ask, input_bytes_max)
    return msgspec.structs.replace(ask, **cut) if cut else ask


def _shrunk(ask: Ask, bytes_max: int) -> Ask:
    """Return the ask within so many bytes: first the arguments go, then the words."""
    room = bytes_max - _size(msgspec.structs.replace(ask, input=NO_INPUT, full_bytes=2**53))
    if room >= SHORT_CHARS_MAX:
        return msgspec.structs.replace(ask, **_cut_input(ask, room))
    short = msgspec.structs.replace(
        ask,
        text=_cut_text(ask.text, SHORT_CHARS_MAX),
        problem=_cut_text(ask.problem, SHORT_CHARS_MAX),
        tool=_cut_text(ask.tool, SHORT_CHARS_MAX),
        to=_cut_text(ask.to, SHORT_CHARS_MAX),
        options=(),
    )
    if _size(short) <= bytes_max:
        return short
    return msgspec.structs.replace(short, **_cut_input(ask, 2))


def _cut_input(ask: Ask, bytes_max: int) -> dict[str, Any]:
    """Return the beginning of the arguments, as a JSON text of at most so many bytes."""
    raw = bytes(ask.input)
    text = msgspec.json.decode(raw, type=str) if ask.full_bytes else raw.decode(errors="replace")
    text = text[:bytes_max]
    while text and (size := len(_encode(text))) > bytes_max:
        text = text[: len(text) * bytes_max // size]
    return {"input": msgspec.Raw(_encode(text)), "full_bytes": ask.full_bytes or len(raw)}


def _cut_text(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def _size(ask: Ask) -> int:
    return len(_encode(ask))
