"""The items of a map: a chunk's task runs the handler once for each, one after the other.

    chunk's task --> for each item without a result: Call --> handler --> result | failure
                          |                            '-- its own timeout, token, checkpoint
                          '-- at most once a second: what is new --> record of the chunk's journal
    all have one --> complete      some are tried again --> fail, and the engine gives it out again

The next attempt reads the journal and runs only what has no result, also after a worker that was
killed. Every item without a result runs in every attempt, so the attempts of the chunk are those of
each of its items.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from treadle.sdk.chunks import Chunk as Said
from treadle.sdk.errors import HandlerError, InvalidPayload, ServerUnavailable, clause
from treadle.sdk.messages import (
    Checkpoint,
    ChunkDone,
    Failure,
    FromRun,
    FromSteps,
    Inline,
    ItemFailure,
    MapChunk,
    Results,
)
from treadle.sdk.subjects import step_of
from treadle.worker.execution import Call, ExecutionPort, Record, execute
from treadle.worker.failure import bounded, describe
from treadle.worker.mailbox import Letters
from treadle.worker.shared import SharedValues
from treadle.worker.verdict import Complete, Fail, HandlerVerdict, Stopped, Verdict

SAVE_MS = 1_000
"""What a killed worker may have to do again; saving more often costs a message each time."""
UNSAVED_BYTES_MAX = 256 * 1024
"""Results that wait to be saved, or travel in the verdict: well below the largest message."""
ABANDONED_MAX = 8
"""Handlers of a chunk that did not stop at their timeout and still run. With more of them the chunk
waits for one to end: each holds memory, perhaps a thread."""
STOP_GRACE_S = 1.0
"""What an item past its timeout has to clean up."""
LOGGED_MAX = 3
"""Failures of items that one attempt logs; the others are counted in its own."""
ITEM_MESSAGE_CHARS_MAX = 300
"""Of the failure of one item, of which a list may hold many."""

_log = logging.getLogger("treadle.worker")
_items = msgspec.json.Decoder(list[msgspec.Raw])
_results = msgspec.json.Decoder(Results)
_states = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


async def perform(call: Call) -> Verdict:
    """Execute a task, one of a chunk of a map item by item, and return its one verdict."""
    if call.task.chunk is None:
        return await execute(call)
    return await execute(call, partial(_work, call.task.chunk))


async def _work(chunk: MapChunk, call: Call) -> HandlerVerdict:
    return await _Work(call, chunk).run()


class _Work:
    """One attempt of a chunk."""

    def __init__(self, call: Call, chunk: MapChunk) -> None:
        self._call = call
        self._chunk = chunk
        self._is_last = call.task.failures + 1 >= chunk.attempts_max
        self._done: set[int] = set()
        """Items that need no execution any more."""
        self._before: dict[int, ItemFailure] = {}
        """Why items failed that are tried again."""
        self._results: list[tuple[int, msgspec.Raw]] = []
        self._failures: list[ItemFailure] = []
        """Both not saved yet."""
        self._unsaved_bytes = 0
        self._saved_ms = call.port.now_ms()
        self._records = 0
        self._size_bytes = 0
        self._failed = 0
        self._first_failure: ItemFailure | None = None
        self._retrying: list[tuple[int, Failure]] = []
        self._logged = 0
        self._abandoned: set[asyncio.Task[Verdict]] = set()
        self._states: dict[str, msgspec.Raw] | None = None

    async def run(self) -> HandlerVerdict:
        """Run every item that has no result."""
        source = self._call.task.input
        assert isinstance(source, Inline), "the items of a chunk travel in its task"
        items = _items.decode(source.value)
        if self._call.task.checkpoint:
            self._take_up(await self._call.read_records())
        for index, item in enumerate(items, start=self._chunk.first):
            if index in self._done:
                continue
            verdict = await self._item(index, item)
            if (ending := await self._judged(index, verdict)) is not None:
                return ending
            if self._call.port.now_ms() - self._saved_ms >= SAVE_MS:
                await self._save()
        return await self._verdict()

    # ---------------------------------------------------------------- what was done before

    def _take_up(self, records: list[Record]) -> None:
        self._records = len(records)
        for record in records:
            told = _results.decode(record.body)
            self._before.update((failure.index, failure) for failure in told.retrying)
            for index, value in told.results:
                self._note(index, len(bytes(value)))
            for failure in told.failures:
                self._note_failure(failure)

    def _note(self, index: int, size_bytes: int) -> None:
        self._done.add(index)
        self._size_bytes += size_bytes + 1

    def _note_failure(self, failure: ItemFailure) -> None:
        self._note(failure.index, len("null"))
        self._failed += 1
        self._first_failure = self._first_failure or failure

    # ---------------------------------------------------------------- one item

    async def _item(self, index: int, item: msgspec.Raw) -> Verdict:
        """Run the handler for one item; whatever it does, the others go on."""
        while len(self._abandoned) >= ABANDONED_MAX:
            await asyncio.wait(self._abandoned, return_when=asyncio.FIRST_COMPLETED)
        task, address = self._call.task, self._call.address
        before = self._before.get(index)
        call = Call(
            self._call.handler,
            msgspec.structs.replace(
                task,
                input=Inline(item),
                chunk=None,
                last_failure=Failure(before.type, before.message) if before else None,
            ),
            dataclasses.replace(address, step=step_of(address.step)),
            _ItemPort(self, self._call.port, index),
            index=index,
        )
        call.lines = self._call.lines
        running = asyncio.create_task(execute(call))
        self._call.port.item_begins(running)
        try:
            return await self._ended(call, running)
        finally:
            self._call.port.item_is_over()
            self._call.lines = call.lines

    async def _ended(self, call: Call, running: asyncio.Task[Verdict]) -> Verdict:
        timeout_ms = call.task.timeout_ms
        try:
            await asyncio.wait({running}, timeout=timeout_ms / 1000 if timeout_ms else None)
            if not running.done():
                call.stop("timeout")
                await asyncio.wait({running}, timeout=STOP_GRACE_S)
        except asyncio.CancelledError:
            call.stop(self._call.token.reason or "lost")
            await asyncio.wait({running})  # Or this execution is abandoned, and waits for nobody.
            raise
        if running.done():
            return running.result()
        _log.warning(
            "worker.item-abandoned run=%s step=%s item=%d: %s did not stop within %.1f s of its "
            "timeout. It goes on in the background and its result is ignored. Let it end when "
            "ctx.cancelled is set, and let CancelledError pass",
            call.address.run,
            call.address.step,
            call.index,
            call.address.type,
            STOP_GRACE_S,
        )
        call.close()
        self._abandoned.add(running)
        running.add_done_callback(self._abandoned.discard)
        return Stopped("timeout")

    async def _judged(self, index: int, verdict: Verdict) -> HandlerVerdict | None:
        """Note what came of an item; return the verdict of the chunk if that is its end."""
        self._call.token.raise_if_set()
        match verdict:
            case Complete(output):
                refused = await self._take(index, output)
                if refused is None:
                    return None
                failure = refused
            case Fail(failure=failure):
                pass
            case Stopped(reason="timeout"):
                failure = Failure("timeout", _timeout_text(self._call.task.timeout_ms))
            case Stopped():
                raise ServerUnavailable(
                    f"item {index} could not be finished: {clause(verdict.reason)}."
                )
            case _:
                raise HandlerError(f"the handler of item {index} gave a verdict of a loop")
        self._log(index, failure)
        is_final = (
            self._is_last or not failure.retryable or failure.type in self._chunk.non_retryable
        )
        if not is_final:
            self._retrying.append((index, failure))
            return None
        if not self._chunk.tolerated:
            message = f"item {index}: {failure.message}" if failure.message else f"item {index}"
            return Fail(msgspec.structs.replace(failure, message=message, retryable=False))
        told = _told(index, failure)
        self._note_failure(told)
        self._failures.append(told)
        self._unsaved_bytes += len(told.message)
        return None

    def _log(self, index: int, failure: Failure) -> None:
        self._logged += 1
        if self._logged > LOGGED_MAX:
            return
        _log.warning(
            "worker.item-failed type=%s run=%s step=%s item=%d attempt=%d: %s%s",
            self._call.address.type,
            self._call.address.run,
            step_of(self._call.address.step),
            index,
            self._call.task.attempt,
            " ".join(str(failure).split())[:ITEM_MESSAGE_CHARS_MAX],
            f" (at {failure.place})" if failure.place else "",
        )

    # ---------------------------------------------------------------- results

    async def _take(self, index: int, output: bytes) -> Failure | None:
        """Keep a result; return the failure of one that the server does not take."""
        most = min(UNSAVED_BYTES_MAX, self._call.port.message_bytes_max() // 4)
        if self._unsaved_bytes + len(output) > most:
            await self._save()
        self._results.append((index, msgspec.Raw(output)))
        if len(output) > most:
            try:
                await self._save()
            except InvalidPayload as exc:
                self._results.clear()
                return describe(exc)
        else:
            self._unsaved_bytes += len(output)
        self._note(index, len(output))
        if self._states:
            self._states.pop(str(index), None)
        return None

    async def _save(self, retrying: tuple[ItemFailure, ...] = ()) -> None:
        """Append what is new to the journal."""
        if self._results or self._failures or retrying:
            body = _encode(self._unsaved(retrying))
            await self._call.append_record(self._records, body)
            self._records += 1
            self._results.clear()
            self._failures.clear()
            self._unsaved_bytes = 0
        self._saved_ms = self._call.port.now_ms()

    def _unsaved(self, retrying: tuple[ItemFailure, ...] = ()) -> Results:
        return Results(
            results=tuple(self._results), failures=tuple(self._failures), retrying=retrying
        )

    async def _verdict(self) -> HandlerVerdict:
        if self._retrying:
            await self._save(tuple(_told(index, failure) for index, failure in self._retrying))
            return self._again()
        done = ChunkDone(
            first=self._chunk.first,
            count=self._chunk.count,
            failed=self._failed,
            records=self._records,
            size_bytes=self._size_bytes,
            failure=self._first_failure,
        )
        if self._records or self._failures:
            return Complete(_encode(self._unsaved()), done)
        return Complete(b"[%b]" % b",".join(bytes(value) for _, value in self._results), done)

    def _again(self) -> Fail:
        index, first = self._retrying[0]
        text = f"item {index}: {first.message}" if first.message else f"item {index}"
        if len(self._retrying) > 1:
            text = f"{len(self._retrying)} of {self._chunk.count} items failed; {text}"
        after_ms = max(failure.retry_after_ms for _, failure in self._retrying)
        return Fail(
            msgspec.structs.replace(first, message=text, retryable=True, retry_after_ms=after_ms)
        )

    # ---------------------------------------------------------------- checkpoints of items

    async def load_state(self, index: int) -> Checkpoint | None:
        """Return what the item's handler has saved, in this attempt or an earlier one."""
        found = await self._call.load() if self._call.task.checkpoint else None
        if self._states is None:
            self._states = _states.decode(found.state) if found is not None else {}
        state = self._states.get(str(index))
        if state is None:
            return None
        task = self._call.task
        attempt = found.attempt if found is not None else task.attempt
        return Checkpoint(iteration=0, attempt=attempt, token=0, nonce="", state=state)

    async def save_state(self, index: int, state: bytes) -> Checkpoint:
        """Save what the item's handler wants to find again, beside that of the other items."""
        await self.load_state(index)
        assert self._states is not None
        raw = msgspec.Raw(state)
        self._states[str(index)] = raw
        await self._call.save(_encode(self._states))
        attempt = self._call.task.attempt
        return Checkpoint(iteration=0, attempt=attempt, token=0, nonce="", state=raw)


class _ItemPort:
    """The outside of one item: that of its chunk, with a checkpoint of its own."""

    __slots__ = ("_index", "_port", "_work")

    def __init__(self, work: _Work, port: ExecutionPort, index: int) -> None:
        self._work = work
        self._port = port
        self._index = index

    @property
    def shared(self) -> SharedValues:
        return self._port.shared

    def now_ms(self) -> int:
        return self._port.now_ms()

    def progress(self) -> None:
        self._port.progress()

    def message_bytes_max(self) -> int:
        return self._port.message_bytes_max()

    def item_begins(self, running: asyncio.Task[Verdict]) -> None:
        raise _no_part(self._index)

    def item_is_over(self) -> None:
        raise _no_part(self._index)

    async def read_input(self, source: FromRun | FromSteps) -> msgspec.Raw:
        raise _no_part(self._index)

    async def load_checkpoint(self) -> Checkpoint | None:
        return await self._work.load_state(self._index)

    async def save_checkpoint(self, state: bytes) -> Checkpoint:
        return await self._work.save_state(self._index, state)

    async def read_messages(self, after: int) -> Letters:
        raise _no_part(self._index)

    async def append_record(self, number: int, body: bytes) -> int:
        raise _no_part(self._index)

    async def read_records(self) -> list[Record]:
        raise _no_part(self._index)

    def say(self, chunk: Said) -> int:
        return self._port.say(chunk)

    async def run_blocking(self, call: Callable[[], object]) -> object:
        return await self._port.run_blocking(call)


def _no_part(index: int) -> HandlerError:
    return HandlerError(
        f"item {index} of a map is executed once and is no loop: it has no messages, no journal "
        "and no iterations. Define a step with agent_loop(...) for that."
    )


def _told(index: int, failure: Failure) -> ItemFailure:
    return ItemFailure(index, failure.type, bounded(failure.message, ITEM_MESSAGE_CHARS_MAX))


def _timeout_text(timeout_ms: int) -> str:
    return f"it ran longer than its timeout of {timeout_ms / 1000:g} s and was stopped"
