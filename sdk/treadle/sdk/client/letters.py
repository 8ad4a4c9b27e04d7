"""What is shown of dead letters, one or a page of them, newest first."""

from __future__ import annotations

import base64

import msgspec

from treadle.sdk.bus.jetstream import Stored
from treadle.sdk.bus.wire import decode_headers
from treadle.sdk.client.store import Store
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import DeadLetter, Failure, LetterMark, LetterState
from treadle.sdk.stored import read

WINDOW = 256
WINDOW_MAX = 8_192
"""Messages of the stream that are looked through at once for a page: more, the fewer match."""

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
    done_ms: int = 0
    """When it was replayed or discarded."""
    done: str = ""
    """What the replay has made, or why it was discarded."""
    replays: int = 0


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some letters, newest first, without what they hold."""

    letters: tuple[DeadLetterView, ...]
    cursor: int | None = None
    """Where the list goes on; None is its end."""


async def read_page(
    store: Store,
    workflow: str,
    run: str,
    reason: str,
    limit: int,
    below: int,
    *,
    is_all: bool,
) -> DeadLetterPage:
    """Return the newest letters that match, below a number; 0 is the newest of all."""
    js, s = store.js, store.subjects
    state = (await js.api(f"STREAM.INFO.{s.dead_stream}"))["state"]
    first, end = max(1, int(state["first_seq"])), below or int(state["last_seq"]) + 1
    found: list[DeadLetterView] = []
    width = WINDOW
    while end > first and len(found) <= limit:
        start = max(first, end - width)
        marks = await _marks_since(store, workflow, run, start)
        window: list[DeadLetterView] = []
        async for stored in js.read(s.dead_stream, s.letters(workflow, run), start=start):
            if stored.sequence >= end:
                break
            view = view_of(stored, marks.get(s.letter_mark(stored.subject)), has_body=False)
            if (not reason or view.reason == reason) and (is_all or view.state in _UNDONE):
                window.append(view)
        found += reversed(window)
        end, width = start, min(2 * width, WINDOW_MAX)
    letters = tuple(found[:limit])
    is_more = len(found) > limit
    return DeadLetterPage(letters=letters, cursor=letters[-1].number if is_more else None)


_UNDONE = ("open", "replaying")


async def _marks_since(store: Store, workflow: str, run: str, start: int) -> dict[str, LetterMark]:
    """Return the newest mark by subject; all marks of a letter are behind it."""
    js, s = store.js, store.subjects
    marks: dict[str, LetterMark] = {}
    async for stored in js.read(s.dead_stream, s.letter_marks(workflow, run), start=start):
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
