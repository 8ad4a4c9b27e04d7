"""Answers clients from the index, and keeps it up to date in between."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable

import msgspec

from treadle.engine.index.reader import Outdated, Reader
from treadle.engine.index.table import Table
from treadle.sdk.bus.connection import Message, Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.errors import ServerError
from treadle.sdk.listing.wire import READ_ON_S, RunsAsked
from treadle.sdk.subjects import Subjects

LOOK_S = 0.5
"""Pause between looks at the bucket: who asks is not answered from before they asked."""
COMPARE_S = 5.0
"""How often runs are looked for that are gone: lists leave them out before."""
TURN_S = 2.0
"""How often an index asks whether it is its turn."""
ASKED_AT_ONCE_MAX = 256
"""Questions in hand; whoever asks beyond them is not answered, and reads the documents."""

_log = logging.getLogger("treadle.index")
_asked = msgspec.json.Decoder(RunsAsked)


class RunIndex:
    """The index of a namespace's runs, as long as it is this process' turn."""

    def __init__(
        self, js: JetStream, subjects: Subjects, *, is_first: Callable[[], Awaitable[bool]]
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._is_first = is_first
        self._answering: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Read the bucket and answer, until it is another one's turn."""
        table = Table()
        reconnected = asyncio.Event()
        forget = self._js.connection.on_reconnect(reconnected.set)
        try:
            began = time.monotonic()
            reader = Reader(self._js, self._subjects, table)
            await reader.read_on()
            took_s = time.monotonic() - began
            _log.info("index.ready position=%d took_s=%.1f", table.position, took_s)
            await self._serve(reader, table, reconnected)
        finally:
            forget()
            table.close()

    async def _serve(self, reader: Reader, table: Table, reconnected: asyncio.Event) -> None:
        def take(message: Message) -> None:
            if len(self._answering) < ASKED_AT_ONCE_MAX:
                task = asyncio.create_task(self._answer(reader, table, message))
                self._answering.add(task)
                task.add_done_callback(self._answering.discard)

        subscription = await self._js.connection.subscribe(self._subjects.index, take)
        try:
            asked_s = compared_s = time.monotonic()
            while not reconnected.is_set():  # The server may have lost what was read of it.
                await reader.read_on()
                now_s = time.monotonic()
                if now_s - compared_s >= COMPARE_S:
                    await reader.compare()
                    compared_s = now_s
                if now_s - asked_s >= TURN_S:
                    if not await self._is_first():
                        return
                    asked_s = now_s
                await asyncio.sleep(LOOK_S)
        except Outdated:
            _log.info("index.begins-anew the bucket is another one")
        finally:
            await subscription.unsubscribe()
            for task in self._answering:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)

    async def _answer(self, reader: Reader, table: Table, message: Message) -> None:
        """Answer one question; what cannot be answered the client finds out by itself."""
        try:
            asked = _asked.decode(message.data)
            await reader.read_to(asked.at_least, READ_ON_S)
            answer = msgspec.json.encode(table.answer(asked))
            if message.reply:
                self._js.connection.publish(message.reply, answer)
        except msgspec.DecodeError as exc:
            _log.warning("index.question-unreadable %s", exc)
        except (ServerError, ApiError, Unknown, sqlite3.Error) as exc:
            _log.warning("index.no-answer %r", exc)
