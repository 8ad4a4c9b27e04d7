"""What executions say to the run's output stream: joined, in order, and never in their way.

    handler --say--> queue --one at a time--> output stream
               |        '-- small texts that follow each other are joined meanwhile
               '-- returns at once, whatever becomes of it

One message of an execution is on its way at a time. So the order holds, and a message may be sent
again when its acknowledgement was lost: a reader knows it by its number. If the stream is missing
or takes nothing, that is logged once; what then finds no room in the queue, or is left when the
execution has ended, is lost, and the execution goes on as if nothing were amiss.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TypeVar

import msgspec

from treadle.sdk import chunks
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.bus.wire import Unknown
from treadle.sdk.chunks import AttemptBegan, Chunk, Dropped, Superseded, Text, Thinking
from treadle.sdk.errors import InvalidPayload, ServerError
from treadle.sdk.messages import Task
from treadle.sdk.subjects import RegisterAddress, Subjects

JOIN_S = 0.05
"""How long a small text waits for more: below what a reader notices."""
JOINED_CHARS = 4_096
"""A text of so much waits no longer. As JSON it is six times as long at most."""
QUEUE_CHARS_MAX = 1_000_000
"""Of one execution, not stored yet: minutes of a model's talk."""
FLUSH_S = 2.0
"""Settles wait so long in all, over one outage of the stream, for what is left to be stored."""
LAST_TRY_S = 0.25
"""And each so long at least: a round trip, so that the end of an outage is noticed."""
DISCONNECTED_S = 15.0
"""While there is no connection, the settle could not be stored either."""
_LOOK_BUDGET_S = 1.0
_RETRY_S_FIRST, _RETRY_S_MAX = 0.02, 1.0
_POLL_S = 0.05
_CHUNK_CHARS = 100
"""What a chunk counts beside its text."""
_FIRST_N = 2
"""0 and 1 are those of ``Superseded`` and ``AttemptBegan``."""

C = TypeVar("C", bound=Chunk)

_log = logging.getLogger("treadle.worker")


class OutputStream:
    """The way to the output stream, shared by the executions of a worker."""

    def __init__(self, js: JetStream, subjects: Subjects, worker: str) -> None:
        self.js = js
        self.subjects = subjects
        self.worker = worker
        self._failing_since: float | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    def voice(self, address: RegisterAddress, task: Task) -> Voice:
        """Return the voice of one execution."""
        return Voice(self, address, task)

    def start(self, voice: Voice) -> asyncio.Task[None]:
        """Begin to store what a voice says."""
        pump = asyncio.create_task(voice.pump())
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return pump

    async def close(self) -> None:
        """Give up what is not stored."""
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    # ---------------------------------------------------------------- is it well

    def stored(self) -> None:
        """Note that the stream takes messages."""
        if self._failing_since is not None:
            self._failing_since = None
            _log.info("worker.output-stored again stream=%s", self.subjects.output_stream)

    def failed(self, exc: Exception) -> None:
        """Note that it did not take one; said once, until it does again."""
        if self._failing_since is None:
            self._failing_since = time.monotonic()
            _log.warning(
                "worker.output-not-stored stream=%s: %s. What handlers say is not shown to those "
                "who watch, and is lost if this lasts; runs go on. See `treadle doctor`.",
                self.subjects.output_stream,
                exc,
            )

    @property
    def patience_s(self) -> float:
        """How long a settle may still wait for the stream."""
        if self._failing_since is None:
            return FLUSH_S
        return max(0.0, self._failing_since + FLUSH_S - time.monotonic())


class Voice:
    """What one execution says. On the event loop only."""

    def __init__(self, stream: OutputStream, address: RegisterAddress, task: Task) -> None:
        self._stream = stream
        self._subject = stream.subjects.output(address.run, address.step, address.domain)
        self._iteration = task.iteration
        self._attempt = task.attempt
        self._queue: deque[Chunk] = deque()
        self._open: Text | Thinking | None = None
        """The chunk that the texts in ``_pieces`` will make."""
        self._pieces: list[str] = []
        self._piece_chars = 0
        self._queued_chars = 0
        self._dropped = 0
        self._n = _FIRST_N
        self._has_spoken = False
        self._looks_back = False
        self._is_patient = True
        self._closing = asyncio.Event()
        self._something = asyncio.Event()
        self._hurry = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    # ---------------------------------------------------------------- for the execution

    def say(self, chunk: Chunk) -> int:
        """Put a chunk on the stream, soon; return its number. Never waits and never raises."""
        if self._closing.is_set():
            return self._n
        self._begin()
        if isinstance(chunk, Text | Thinking):
            return self._say_text(chunk)
        size = _size(chunk)
        if not self._has_room(size):
            return self._n
        self._seal()
        return self._put(chunk, size)

    def look_back(self) -> None:
        """Say, whether or not anything else is said, that earlier attempts do not stand.

        Only if they have said something.
        """
        self._looks_back = True
        self._start()
        self._something.set()
        self._hurry.set()

    async def close(self, *, patient: bool) -> None:
        """Store what is left, within bounds; nothing is said afterwards.

        ``patient`` is for an execution with a verdict, which has to be stored too.
        """
        self._is_patient = patient
        self._closing.set()
        pump = self._pump
        if pump is None:
            return
        self._something.set()
        self._hurry.set()
        left_s = max(self._stream.patience_s if patient else 0.0, LAST_TRY_S)
        away_s = DISCONNECTED_S if patient else 0.0
        while not pump.done() and left_s > 0:
            await asyncio.wait({pump}, timeout=min(_POLL_S, left_s))
            if self._stream.js.connection.is_connected or away_s <= 0:
                left_s -= _POLL_S
            else:
                away_s -= _POLL_S
        if not pump.done():
            self._stream.failed(Unknown("it was not stored while the settle could wait"))
            pump.cancel()
        (error,) = await asyncio.gather(pump, return_exceptions=True)
        if isinstance(error, Exception):
            _log.error("worker.output-failed subject=%s", self._subject, exc_info=error)

    # ---------------------------------------------------------------- queue

    def _begin(self) -> None:
        if self._has_spoken:
            return
        self._has_spoken = True
        began = AttemptBegan(
            iteration=self._iteration,
            attempt=self._attempt,
            n=_FIRST_N - 1,
            worker=self._stream.worker,
        )
        self._queue.append(began)
        self._start()

    def _say_text(self, chunk: Text | Thinking) -> int:
        size = len(chunk.text)
        if not self._has_room(size):
            return self._n
        if type(self._open) is not type(chunk) or self._piece_chars >= JOINED_CHARS:
            self._seal()
        for start in range(0, size, JOINED_CHARS):
            if start:
                self._seal()
            if self._open is None:
                self._open = self._placed(chunk)
            piece = chunk.text[start : start + JOINED_CHARS]
            self._pieces.append(piece)
            self._piece_chars += len(piece)
        self._queued_chars += size
        self._something.set()
        if self._piece_chars >= JOINED_CHARS:
            self._hurry.set()
        return self._n - 1

    def _has_room(self, size: int) -> bool:
        if self._queued_chars + size > QUEUE_CHARS_MAX:
            self._dropped += 1
            return False
        if self._dropped:
            self._tell_dropped()
        return True

    def _tell_dropped(self) -> None:
        lost, self._dropped = Dropped(count=self._dropped), 0
        self._seal()
        self._put(lost, _size(lost))

    def _seal(self) -> None:
        """End the text that is being joined."""
        if self._open is not None:
            whole = msgspec.structs.replace(self._open, text=_well_formed("".join(self._pieces)))
            self._queue.append(whole)
            self._queued_chars += _CHUNK_CHARS
            self._open, self._pieces, self._piece_chars = None, [], 0

    def _put(self, chunk: Chunk, size: int) -> int:
        placed = self._placed(chunk)
        self._queue.append(placed)
        self._queued_chars += size
        self._something.set()
        return placed.n

    def _placed(self, chunk: C) -> C:
        self._n += 1
        return msgspec.structs.replace(
            chunk, iteration=self._iteration, attempt=self._attempt, n=self._n - 1
        )

    # ---------------------------------------------------------------- pump

    def _start(self) -> None:
        if self._pump is None:
            self._pump = self._stream.start(self)

    async def pump(self) -> None:
        """Store what is said, until it is closed and all is stored."""
        if self._looks_back:
            await self._look_back()
        while True:
            await self._something.wait()
            await _wait(self._hurry, JOIN_S)
            self._something.clear()
            self._hurry.clear()
            self._seal()
            if self._closing.is_set() and self._dropped:
                self._tell_dropped()
            while self._queue:
                chunk = self._queue.popleft()
                self._queued_chars = max(0, self._queued_chars - _size(chunk))
                if not await self._store(chunk):
                    return
            if self._closing.is_set() and self._open is None:
                return

    async def _store(self, chunk: Chunk) -> bool:
        """Store a chunk; return False if it is time to give up."""
        pause_s = _RETRY_S_FIRST
        try:
            body = chunks.encode(chunk)
        except UnicodeEncodeError:
            self._dropped += 1
            return True
        while True:
            try:
                await self._stream.js.attempt(self._subject, body)
            except InvalidPayload as exc:
                # This server takes less than others; the next chunk may be smaller.
                self._stream.failed(exc)
                self._dropped += 1
                return True
            except (Unknown, ApiError) as exc:
                self._stream.failed(exc)
                if self._closing.is_set() and self._is_hopeless():
                    return False
            else:
                self._stream.stored()
                return True
            if self._closing.is_set():
                await asyncio.sleep(_POLL_S)
            else:
                await _wait(self._closing, pause_s)
            pause_s = min(pause_s * 2, _RETRY_S_MAX)

    def _is_hopeless(self) -> bool:
        is_connected = self._stream.js.connection.is_connected
        return not self._is_patient or (is_connected and self._stream.patience_s <= 0)

    async def _look_back(self) -> None:
        """Store ``Superseded`` if earlier attempts of the iteration have said something."""
        stream = self._stream
        try:
            newest = await stream.js.last(
                stream.subjects.output_stream, self._subject, budget_s=_LOOK_BUDGET_S
            )
        except ServerError:
            return  # Then nothing can be stored either; what this attempt says voids theirs.
        if newest is None:
            return
        earlier = chunks.decode(newest.data)
        if earlier.iteration == self._iteration and earlier.attempt < self._attempt:
            await self._store(Superseded(iteration=self._iteration, attempt=self._attempt))


async def _wait(event: asyncio.Event, longest_s: float) -> None:
    try:
        async with asyncio.timeout(longest_s):
            await event.wait()
    except TimeoutError:
        pass


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # Half of a pair of surrogates.
        return text.encode(errors="replace").decode()
    return text


def _size(chunk: Chunk) -> int:
    match chunk:
        case Text() | Thinking():
            return len(chunk.text) + _CHUNK_CHARS
        case chunks.Logged():
            fields = sum(len(str(each)) for each in chunk.fields.values())
            return len(chunk.text) + len(chunk.traceback) + fields + _CHUNK_CHARS
        case chunks.Progress():
            return len(bytes(chunk.value)) + _CHUNK_CHARS
        case _:
            return _CHUNK_CHARS
