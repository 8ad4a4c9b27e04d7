"""What is shown of dead letters, one or a page of them, newest first."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from treadle.sdk.bus.jetstream import Stored
from treadle.sdk.bus.wire import decode_headers
from treadle.sdk.children import ParentRun
from treadle.sdk.client.lineage import Lineage
from treadle.sdk.client.store import Store
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import DeadLetter, Failure, LetterMark, LetterState
from treadle.sdk.stored import read

WINDOW = 256
WINDOW_MAX = 8_192
"""Messages of the stream that are looked through at once for a page: more, the fewer match."""
LOOKED_UP_TOGETHER = 64
"""Letters of children of which it is asked together who does their work again."""

_letters = msgspec.json.Decoder(DeadLetter)
_marks = msgspec.json.Decoder(LetterMark)


class DeadLetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter, and what was done about it."""

    number: int
    """By which it is named: its sequence in the stream of dead letters."""
    reason: str
    """``run_failed``; ``corrupt_event``, ``poison_event``, ``unknown_run``, of an event;
    ``unusable_message``, of a trigger's subject; ``unreadable`` if the letter itself is damaged."""
    run: str
    workflow: str = ""
    step: str = ""
    failure: Failure | None = None
    """Why: the run's failure, or what could not be read or handled."""
    parent: ParentRun | None = None
    """The step of another run that started the one that failed."""
    left_to: str = ""
    """Of a failed run's open letter: the run above it that failed too, and whose retry does this
    work again; replay or retry that one."""
    subject: str = ""
    """On which the message was, of a letter that has one."""
    stream: str = ""
    sequence: int = 0
    """Where the message was stored."""
    happened_ms: int = 0
    """When the message was stored, or the run had failed."""
    stored_ms: int = 0
    """When it was set aside."""
    headers: dict[str, str] = {}
    body: bytes = b""
    """The message byte for byte, or its beginning; base64 in JSON."""
    body_bytes: int = 0
    """Size of the whole message."""
    is_whole: bool = True
    """False if the letter holds only the beginning of the message."""
    state: LetterState = "open"
    """``replayed`` also if a retry of the failed run, or of its parent, or the next attempt of the
    step that started it does the work again."""
    done_ms: int = 0
    """When it was replayed or discarded; 0 if others do the work again."""
    done: str = ""
    """What the replay has made, or which run does it again, or why it was discarded."""
    replays: int = 0


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some letters, newest first, without what they hold."""

    letters: tuple[DeadLetterView, ...]
    cursor: int | None = None
    """Where the list goes on; None is its end."""


class Wanted(NamedTuple):
    """Which letters; empty is any."""

    workflow: str = ""
    run: str = ""
    reason: str = ""
    is_all: bool = False
    """Those too that somebody has replayed or discarded, or whose work others do again."""


async def read_page(store: Store, wanted: Wanted, limit: int, below: int) -> DeadLetterPage:
    """Return the newest letters that match, below a number; 0 is the newest of all."""
    state = (await store.js.api(f"STREAM.INFO.{store.subjects.dead_stream}"))["state"]
    first, end = max(1, int(state["first_seq"])), below or int(state["last_seq"]) + 1
    found: list[DeadLetterView] = []
    lineage = Lineage(store)
    width = WINDOW
    while end > first and len(found) <= limit:
        start = max(first, end - width)
        async for some in letters_between(store, lineage, wanted, start, end):
            found += some
            if len(found) > limit:
                break
        end, width = start, min(2 * width, WINDOW_MAX)
    letters = tuple(found[:limit])
    is_more = len(found) > limit
    return DeadLetterPage(letters=letters, cursor=letters[-1].number if is_more else None)


async def letters_between(
    store: Store, lineage: Lineage, wanted: Wanted, start: int, end: int
) -> AsyncIterator[list[DeadLetterView]]:
    """Yield the letters that match from a number to below another one, some at a time, newest
    first."""
    s = store.subjects
    marks = await _marks_since(store, wanted, start)
    window: list[DeadLetterView] = []
    subject = s.letters(wanted.workflow, wanted.run)
    async for stored in store.js.read(s.dead_stream, subject, start=start):
        if stored.sequence >= end:
            break
        view = view_of(stored, marks.get(s.letter_mark(stored.subject)), has_body=False)
        if (not wanted.reason or view.reason == wanted.reason) and _is_wanted(wanted, view):
            window.append(view)
    window.reverse()
    for at in range(0, len(window), LOOKED_UP_TOGETHER):
        some = window[at : at + LOOKED_UP_TOGETHER]
        looked = await asyncio.gather(*(settled(lineage, view) for view in some))
        yield [view for view in looked if _is_wanted(wanted, view)]


def _is_wanted(wanted: Wanted, view: DeadLetterView) -> bool:
    return wanted.is_all or view.state in ("open", "replaying")


async def settled(lineage: Lineage, view: DeadLetterView) -> DeadLetterView:
    """Return what is shown of a letter, given who does the work of its run again."""
    if view.state != "open" or view.parent is None:
        return view
    heir = await lineage.heir(view.run, view.parent)
    if heir.is_at_work:
        return replace(view, state="replayed", done=f"run {heir.run}")
    return replace(view, left_to=heir.failed)


async def _marks_since(store: Store, wanted: Wanted, start: int) -> dict[str, LetterMark]:
    """Return the newest mark by subject; all marks of a letter are behind it."""
    js, s = store.js, store.subjects
    marks: dict[str, LetterMark] = {}
    subject = s.letter_marks(wanted.workflow, wanted.run)
    async for stored in js.read(s.dead_stream, subject, start=start):
        try:
            marks[stored.subject] = read(_marks, stored)
        except StoredUnreadable:
            continue
    return marks


def view_of(stored: Stored, mark: LetterMark | None, *, has_body: bool) -> DeadLetterView:
    """Return what is shown of a letter."""
    try:
        letter = read(_letters, stored)
    except StoredUnreadable as exc:
        return DeadLetterView(
            number=stored.sequence,
            reason="unreadable",
            run=stored.subject.split(".")[-2],
            failure=Failure("StoredUnreadable", str(exc), retryable=False),
            stored_ms=stored.time_ms,
        )
    body = base64.b64decode(letter.body_base64)
    return DeadLetterView(
        number=stored.sequence,
        reason=letter.reason,
        run=letter.run,
        workflow=letter.workflow,
        step=letter.step,
        failure=letter.failure,
        parent=letter.parent,
        subject=letter.subject,
        stream=letter.stream,
        sequence=letter.sequence,
        happened_ms=letter.at_ms,
        stored_ms=stored.time_ms,
        headers=decode_headers(base64.b64decode(letter.headers_base64)) if has_body else {},
        body=body if has_body else b"",
        body_bytes=letter.body_bytes or len(body),
        is_whole=not letter.body_bytes,
        state=mark.state if mark else "open",
        done_ms=mark.at_ms if mark else 0,
        done=_done(letter, mark) if mark else "",
        replays=mark.count if mark else 0,
    )


def _done(letter: DeadLetter, mark: LetterMark) -> str:
    if mark.state == "replayed":
        return f"run {mark.run}" if mark.run else f"message {mark.stored} of stream {letter.stream}"
    return mark.reason
