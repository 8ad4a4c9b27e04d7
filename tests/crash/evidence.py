"""What a namespace has stored, ever: also values that a later one replaced.

Registers and documents keep one message a subject, so their streams are asked to publish every
message again that they *stored*: refused writes are not heard.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from treadle.sdk.bus.connection import Message
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.messages import DeadLetter, Event, Register
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import Subjects

RECONNECT_S = 15.0

_register: msgspec.json.Decoder[Register] = msgspec.json.Decoder(Register)
_document = msgspec.json.Decoder(RunDocument)
_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_letter = msgspec.json.Decoder(DeadLetter)


class Kept(NamedTuple):
    """A register value and the sequence at which it was stored."""

    sequence: int
    replaced: int
    """Sequence of the value before it; -1 is unknown."""
    register: Register


@dataclass
class Evidence:
    """All that was stored, by run."""

    registers: dict[tuple[str, str], list[Kept]] = field(default_factory=lambda: defaultdict(list))
    documents: dict[str, list[RunDocument]] = field(default_factory=lambda: defaultdict(list))
    history: list[RunDocument] = field(default_factory=list[RunDocument])
    """The documents of all runs, in the order in which they were stored."""
    events: dict[str, dict[int, Event]] = field(default_factory=lambda: defaultdict(dict))
    times_ms: dict[int, int] = field(default_factory=dict[int, int])
    """When the event of that sequence was stored."""
    letters: dict[str, list[DeadLetter]] = field(default_factory=lambda: defaultdict(list))

    def head(self, run: str, step: str) -> Register | None:
        """Return the register as it stands."""
        kept = self.registers.get((run, step))
        return kept[-1].register if kept else None


class Recorder:
    """Hears every value that is stored, from the moment it is opened.

    It misses what is stored while it reconnects after the server was killed: ``Kept.replaced``
    shows where, and the newest values are read from the streams in any case.
    """

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self.subjects = subjects
        self._prefix = f"audit.{subjects.namespace}."
        self._heard: list[Message] = []

    async def open(self) -> None:
        """Ask the namespace's streams to publish what they store, and listen."""
        await self._js.connection.subscribe(f"{self._prefix}>", self._heard.append)
        for name in (self.subjects.steps_stream, self.subjects.runs_stream):
            config: dict[str, Any] = (await self._js.api(f"STREAM.INFO.{name}"))["config"]
            config["republish"] = {"src": ">", "dest": f"{self._prefix}>"}
            await self._js.api(f"STREAM.UPDATE.{name}", config)

    async def collect(self) -> Evidence:
        """Return everything that was stored so far."""
        js, subjects = self._js, self.subjects
        async with asyncio.timeout(RECONNECT_S):  # A run may end before the recorder is back.
            while not js.connection.is_connected:
                await asyncio.sleep(0.01)
        await js.connection.flush()
        found = Evidence()
        documents: dict[int, tuple[str, bytes]] = {}
        registers: dict[int, tuple[str, bytes, int]] = {}
        async for stored in js.read(subjects.runs_stream, subjects.all_runs):
            documents[stored.sequence] = (stored.subject, stored.data)
        async for stored in js.read(subjects.steps_stream, subjects.all_steps):
            registers[stored.sequence] = (stored.subject, stored.data, -1)
        for message in self._heard:
            headers = message.headers
            sequence, subject = int(headers["Nats-Sequence"]), headers["Nats-Subject"]
            if headers["Nats-Stream"] == subjects.runs_stream:
                documents[sequence] = (subject, message.data)
            else:
                replaced = int(headers["Nats-Last-Sequence"])
                registers[sequence] = (subject, message.data, replaced)
        for _, (subject, data) in sorted(documents.items()):
            run = subject.removeprefix(subjects.all_runs[:-1])
            document = _document.decode(data)
            found.documents[run].append(document)
            found.history.append(document)
        for sequence, (subject, data, replaced) in sorted(registers.items()):
            if subject.split(".")[5] == "t":  # No checkpoint, and no record of a journal.
                address = subjects.parse_register(subject)
                kept = Kept(sequence, replaced, _register.decode(data))
                found.registers[address.run, address.step].append(kept)
        await self._inputs_and_letters(found)
        return found

    async def _inputs_and_letters(self, found: Evidence) -> None:
        js, subjects = self._js, self.subjects
        async for stored in js.read(subjects.events_stream, subjects.all_events):
            run = subjects.parse_event(stored.subject).run
            found.times_ms[stored.sequence] = stored.time_ms
            try:
                found.events[run][stored.sequence] = _event.decode(stored.data)
            except ValueError:
                continue  # A corrupt event, sent on purpose.
        async for stored in js.read(subjects.dead_stream, subjects.all_letters):
            letter = _letter.decode(stored.data)
            found.letters[letter.run].append(letter)
