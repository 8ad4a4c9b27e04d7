"""Dead letters as a client reads, replays and discards them: ``client.dead_letters``.

    letter ── open ──replay──> replaying ──> replayed      a mark beside the letter, moved by
                └──discard──> discarded                    compare-and-set

A replay of a message is marked with the newest sequence on the subject before it is published, and
the message is stored only directly behind that. So whoever finds the mark looks there, and a replay
that somebody has begun is finished, not made a second time. A failed run is tried again under an
id that follows from the mark, and the mark comes after it; an engine marks the letter too, of
whatever retry it takes. See ``docs/dead-letters.md``.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError, Stored
from treadle.sdk.bus.resending import Whole, resend, whole
from treadle.sdk.client import fork_wanted, forking
from treadle.sdk.client.letters import (
    DeadLetterPage,
    DeadLetterView,
    Wanted,
    read_page,
    settled,
    view_of,
)
from treadle.sdk.client.lineage import Lineage, waits_for
from treadle.sdk.client.store import FULL_S, Store
from treadle.sdk.errors import (
    RunConflict,
    ServerUnavailable,
    StoredUnreadable,
    UnknownDeadLetter,
    UserError,
    clause,
)
from treadle.sdk.ids import check_id, new_nonce
from treadle.sdk.messages import DeadLetter, LetterMark
from treadle.sdk.stored import read
from treadle.sdk.times import date
from treadle.sdk.tracing import calling

TRIES_MAX = 50
"""Others write on the subject meanwhile, each time between a look and the write behind it."""
_AGAIN_S = 0.02

_letters = msgspec.json.Decoder(DeadLetter)
_marks = msgspec.json.Decoder(LetterMark)


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay has made."""

    number: int
    subject: str = ""
    stream: str = ""
    sequence: int = 0
    """Of the copy in the stream; 0 if a run was tried again."""
    run: str = ""
    """The run that was made of a failed one."""
    is_new: bool = True
    """False if that run was there: made by somebody who did not come to say so."""


class _Letter(NamedTuple):
    number: int
    letter: DeadLetter
    mark_subject: str


class DeadLetters:
    """The dead letters of a client's namespace: ``client.dead_letters``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(
        self,
        *,
        workflow: str | None = None,
        run: str | None = None,
        reason: str | None = None,
        all: bool = False,
        limit: int = 50,
        cursor: int | None = None,
    ) -> DeadLetterPage:
        """Return a page of letters, newest first, without what they hold; see ``get``.

        Those that were replayed or discarded only with ``all``, and those of failed runs whose work
        is done again by others: a retry, that of a parent, the next attempt. Failed runs have
        letters too, with the ``reason`` ``run_failed``.
        """
        if workflow is not None:
            check_id("workflow name", workflow)
        if run is not None:
            check_id("run id", run)
        if limit < 1:
            raise UserError(f"limit is {limit}, and a page has at least one letter. Raise it.")
        wanted = Wanted(workflow or "", run or "", reason or "", all)
        return await read_page(self._store, wanted, limit, cursor or 0)

    async def get(self, number: int) -> DeadLetterView:
        """Return a letter with all that it holds; raise ``UnknownDeadLetter``."""
        stored = await self._stored(number)
        try:
            mark, _ = await self._mark(await self._require(number))
        except UserError:
            mark = None  # A letter that is damaged is shown so.
        return await settled(Lineage(self._store), view_of(stored, mark, has_body=True))

    async def replay(self, number: int, *, again: bool = False) -> Replayed:
        """Publish the message of a letter once more, byte for byte, or try its failed run again.

        Raises ``RunConflict`` if that was done before, or is left to a run above, unless it is
        wanted ``again``: that makes one more copy, or one more run. ``UserError`` if the letter
        holds only a part of the message and the rest is gone.
        """
        found = await self._require(number)
        if found.letter.reason == "run_failed":
            return await self._retry(found, again=again)
        message = await self._message(found)
        return await self._replay(found, message, again=again)

    async def discard(self, number: int, reason: str = "") -> None:
        """Mark a letter as done without a replay; it is kept, and can still be replayed again."""
        found = await self._require(number)
        for _ in range(TRIES_MAX):
            mark, revision = await self._mark(found)
            if mark is not None and mark.state == "discarded":
                return
            if mark is not None:
                raise self._conflict(found, mark)
            discarded = LetterMark(
                state="discarded", nonce=new_nonce(), at_ms=_now_ms(), count=0, reason=reason
            )
            if await self._put(found, discarded, revision):
                return
        raise _busy(found)

    # ---------------------------------------------------------------- a failed run

    async def _retry(self, found: _Letter, *, again: bool) -> Replayed:
        mark, revision = await self._mark(found)
        if mark is not None and not again:
            raise self._conflict(found, mark)
        if mark is None and not again:
            await self._check_heir(found)
        # Which run it is follows from what is stored: whoever died before the mark has made that.
        count = mark.count + 1 if mark is not None else 1
        run = found.letter.run
        wanted = fork_wanted.retried(forking.again_id(run, count) if count > 1 else None, "same")
        made = await forking.fork(self._store, run, wanted, calling.origin(None))
        done = LetterMark(
            state="replayed", nonce=new_nonce(), at_ms=_now_ms(), count=count, run=made.run
        )
        # Others make the same run, and an engine says so too: a mark that is lost says the same.
        await self._put(found, done, revision)
        return Replayed(number=found.number, run=made.run, is_new=made.is_new)

    async def _check_heir(self, found: _Letter) -> None:
        """Raise ``RunConflict`` if others do the work of a failed run again, or will."""
        number, run = found.number, found.letter.run
        heir = await Lineage(self._store).heir(run, found.letter.parent)
        anyway = f"`treadle dead replay {number} --again` replays it in any case."
        if heir.standing == "awaited":
            raise waits_for(run, heir)
        if heir.is_at_work:
            raise RunConflict(
                run,
                f"has the dead letter {number}, and its work is done again by run {heir.run!r}",
                f"See it: `treadle run show {heir.run}`. {anyway}",
            )
        if heir.failed:
            raise RunConflict(
                run,
                f"has the dead letter {number}, and was started by run {heir.failed!r} or below "
                "it, which has failed too: the retry of that does this work again, and both would "
                "do it twice",
                f"Retry that one: `treadle run retry {heir.failed}`. {anyway}",
            )

    # ---------------------------------------------------------------- a message

    async def _replay(self, found: _Letter, message: Whole, *, again: bool) -> Replayed:
        helped = set[str]()
        stream = found.letter.stream
        for _ in range(TRIES_MAX):
            mark, revision = await self._mark(found)
            if mark is not None and mark.state == "replaying":
                helped.add(mark.nonce)
                await self._go_on(found, message, mark, revision)
                continue
            if mark is not None and mark.nonce in helped:
                return Replayed(
                    number=found.number,
                    subject=message.subject,
                    stream=stream,
                    sequence=mark.stored,
                )
            if mark is not None and not again:
                raise self._conflict(found, mark)
            begun = LetterMark(
                state="replaying",
                nonce=new_nonce(),
                after=await self._newest(found),
                at_ms=_now_ms(),
                count=mark.count + 1 if mark is not None else 1,
            )
            await self._put(found, begun, revision)
        raise _busy(found)

    async def _go_on(self, found: _Letter, message: Whole, mark: LetterMark, revision: int) -> None:
        """Take a replay one step on, whoever has begun it."""
        js, letter = self._store.js, found.letter
        behind = await js.next(letter.stream, letter.subject, mark.after + 1)
        if behind is not None:
            copy = await whole(js, letter.stream, behind.sequence)
            if copy is not None and copy.replay_of == _name(letter, mark):
                done = replace(mark, state="replayed", stored=behind.sequence)
                await self._put(found, done, revision)
                return
        newest = await self._newest(found)
        if behind is not None or newest < mark.after:
            # Another message is directly behind, or all are gone: no copy of this mark is stored,
            # nor will be. One that nothing was behind of a moment ago says no such thing.
            await self._put(found, replace(mark, after=newest), revision)
            return
        try:
            name = _name(letter, mark)
            await resend(js, message, letter.stream, expected=mark.after, replay_of=name)
        except Unknown:
            await asyncio.sleep(_AGAIN_S)
        except ApiError as exc:
            if not exc.transient:
                raise exc.for_users(f"the copy for {letter.subject!r}") from exc
            await asyncio.sleep(_AGAIN_S)

    async def _newest(self, found: _Letter) -> int:
        newest = await self._store.js.last(found.letter.stream, found.letter.subject)
        return newest.sequence if newest is not None else 0

    async def _message(self, found: _Letter) -> Whole:
        letter = found.letter
        if not letter.stream or not letter.subject:
            raise UserError(
                f"dead letter {found.number} does not say in which stream its message was, so it "
                "cannot be replayed once only. Publish it yourself: `treadle dead show "
                f"{found.number} --body`."
            )
        if not letter.body_bytes:
            try:
                headers, data = (
                    base64.b64decode(text, validate=True)
                    for text in (letter.headers_base64, letter.body_base64)
                )
            except binascii.Error as exc:
                raise UserError(
                    f"dead letter {found.number} is damaged: {clause(exc)}. Discard it."
                ) from exc
            return Whole(letter.subject, headers, data)
        kept = await whole(self._store.js, letter.stream, letter.sequence)
        if kept is None or kept.subject != letter.subject or len(kept.data) != letter.body_bytes:
            raise UserError(
                f"dead letter {found.number} holds the beginning of a message of "
                f"{letter.body_bytes} bytes, and the whole is gone: its retention has passed. "
                "Send it again from where it came, and discard the letter."
            )
        return kept

    # ---------------------------------------------------------------- letters and marks

    async def _require(self, number: int) -> _Letter:
        stored, s = await self._stored(number), self._store.subjects
        letter = _letter_of(stored)
        return _Letter(number, letter, s.letter_mark(stored.subject))

    async def _stored(self, number: int) -> Stored:
        s = self._store.subjects
        stored = await self._store.js.get(s.dead_stream, number) if number > 0 else None
        if stored is None or not s.is_letter(stored.subject):
            raise UnknownDeadLetter(number)
        return stored

    async def _mark(self, found: _Letter) -> tuple[LetterMark | None, int]:
        js, s = self._store.js, self._store.subjects
        stored = await js.last(s.dead_stream, found.mark_subject)
        return (read(_marks, stored), stored.sequence) if stored is not None else (None, 0)

    async def _put(self, found: _Letter, mark: LetterMark, revision: int) -> bool:
        """Store the mark over that revision; False if another one stands."""
        data = msgspec.json.encode(mark)
        result = await self._store.js.compare_and_set(
            self._store.subjects.dead_stream,
            found.mark_subject,
            data,
            expected=revision,
            is_mine=lambda stored: stored == data,
            full_s=FULL_S,
        )
        return result.stored is not None

    def _conflict(self, found: _Letter, mark: LetterMark) -> RunConflict:
        number, at = found.number, date(mark.at_ms)
        match mark.state:
            case "discarded":
                why = f"was discarded at {at}{f': {mark.reason}' if mark.reason else ''}"
            case "replaying":
                why = f"is being replayed since {at}"
            case _:
                why = f"was replayed at {at}, as message {mark.stored}"
                if mark.run:
                    why = f"was tried again at {at}, as run {mark.run}"
        return RunConflict(
            found.letter.run,
            f"has the dead letter {number}, which {why}",
            f"See it: `treadle dead show {number}`. `treadle dead replay {number} --again` replays "
            "it in any case.",
        )


def _letter_of(stored: Stored) -> DeadLetter:
    try:
        return read(_letters, stored)
    except StoredUnreadable as exc:
        raise UserError(f"{exc} It cannot be replayed; `treadle doctor` counts it.") from exc


def _name(letter: DeadLetter, mark: LetterMark) -> str:
    return f"{letter.stream}:{letter.sequence}:{mark.nonce}"


def _busy(found: _Letter) -> ServerUnavailable:
    return ServerUnavailable(
        f"dead letter {found.number} could not be replayed on {found.letter.subject!r}: others "
        "write there without a pause, or nothing takes it. Nothing was stored twice; try again."
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
