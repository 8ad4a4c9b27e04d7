"""Where an evaluated run takes place: its journal, its inbox, and the loop that drives it.

Stage     keeps every stored batch, hands out what people said when it was said
drive     one turn after the other, until the run stops, waits, or the recording ends
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

from treadle.sdk.asks import Reply, Verdict
from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.conversation import ModelError
from treadle.worker.agent.core.entries import (
    Answered,
    Asked,
    Entry,
    Heard,
    Replied,
    Stopped,
    TurnEnded,
)
from treadle.worker.agent.core.state import State, apply
from treadle.worker.agent.core.stops import Limit
from treadle.worker.agent.driving import Driver
from treadle.worker.agent.equipment import Equipment
from treadle.worker.agent.events import Emitter, EventName
from treadle.worker.agent.ledger import RunLedger
from treadle.worker.agent.models.retrying import ModelBusy
from treadle.worker.agent.ports import Letter, LetterKind

Answer = Callable[[ToolCall], Reply | None]


class Said(NamedTuple):
    """Something a person said, and after how many answers of the model it was heard."""

    answers: int
    kind: LetterKind
    text: str = ""
    reply: Reply | None = None


class Stage:
    """Journal and inbox of one run."""

    def __init__(
        self,
        *,
        before: Sequence[Entry] = (),
        said: Iterable[Said] = (),
        answer: Answer = lambda _: None,
    ) -> None:
        """``before`` are the entries of the saved state that the run goes on from.

        ``said`` is everything people said in it, of which the saved state knows the first part.
        ``answer`` decides about calls for which no recorded reply is left.
        """
        self.state = State()
        self.batches: list[tuple[Entry, ...]] = []
        self._before = tuple(before)
        self._answer = answer
        self._heard = 0
        self._answers = 0
        self._asked: dict[str, ToolCall] = {}
        self._apply(before)
        self._said = list(said)[self._heard :]
        self._sequence = max(self.state.seen.values(), default=0)

    @property
    def entries(self) -> list[Entry]:
        """All entries of the run."""
        return [*self._before, *(entry for batch in self.batches for entry in batch)]

    @property
    def answers(self) -> int:
        """Answers of the model so far."""
        return self._answers

    async def append(self, entries: Sequence[Entry]) -> None:
        """Keep the entries as one batch."""
        self.batches.append(tuple(entries))
        self._apply(entries)

    async def take(self, after: int) -> Sequence[Letter]:
        """Return what people say at this point; never the same twice."""
        del after
        letters: list[Letter] = []
        while self._said and self._said[0].answers <= self._answers:
            said = self._said.pop(0)
            if said.reply is not None:
                self._asked.pop(said.reply.call_id, None)
            letters.append(self._letter(said.kind, said.text, said.reply))
        for call in list(self._asked.values()):
            if (reply := self._answer(call)) is not None:
                del self._asked[call.id]
                letters.append(self._letter("reply", "", reply))
        return letters

    def _letter(self, kind: LetterKind, text: str, reply: Reply | None) -> Letter:
        self._sequence += 1
        return Letter(sequence=self._sequence, kind=kind, text=text, reply=reply)

    def _apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._heard += len(_said_in(entry, self._answers, self.state))
            self.state = apply(self.state, entry)
            match entry:
                case Answered():
                    self._answers += 1
                case Asked():
                    ids = set(entry.call_ids)
                    self._asked = {c.id: c for c in self.state.calls if c.id in ids}
                case Replied():
                    self._asked.pop(entry.call_id, None)
                case TurnEnded() | Stopped():
                    self._asked.clear()
                case _:
                    pass


# ------------------------------------------------------------------ what was said


def said_in(entries: Iterable[Entry]) -> list[Said]:
    """Return what people said in a recorded run, in the order in which it was heard."""
    found: list[Said] = []
    state, answers = State(), 0
    for entry in entries:
        found += _said_in(entry, answers, state)
        state = apply(state, entry)
        answers += isinstance(entry, Answered)
    return found


def _said_in(entry: Entry, answers: int, state: State) -> list[Said]:
    match entry:
        case Heard() if entry.source != "notice" and (entry.seen or state.stopped is not None):
            # Without a position in the inbox it came from a hook, which is called again.
            texts = [str(block.get("text", "")) for block in entry.content]
            if entry.source == "steering":
                return [Said(answers, "steer", text.partition("\n")[2]) for text in texts]
            return [Said(answers, "follow_up", text) for text in texts]
        case Replied():
            reply = Reply(
                call_id=entry.call_id,
                # That nobody has answered is told again, too.
                verdict=cast("Verdict", entry.verdict),
                args_hash=entry.args_hash,
                input=entry.input,
                text=entry.text,
                by=entry.by,
            )
            return [Said(answers, "reply", reply=reply)]
        case _:
            return []


# ------------------------------------------------------------------ driving


class Quiet(Emitter):
    """Gives events out without logging them: what happens in an evaluation alarms nobody."""

    def emit(self, name: EventName, **fields: Any) -> None:
        """Give one event out."""
        self._give(name, None, fields)


class Ending(NamedTuple):
    """How a recorded run went on at its end, where its journal alone does not force it."""

    answers: int
    how: Literal["cancelled", "open"]


class _Driver(Driver):
    def cut(self, limit: asyncio.Timeout, left_s: float) -> None:
        """Cut nothing off: the time of a repetition is that of its recording."""

    def bound(self, limit: str) -> None:
        """Let the next decision find this bound reached, as the engine does."""
        self._limit = limit


async def drive(
    equipment: Equipment,
    stage: Stage,
    emitter: Emitter,
    clock: Callable[[], int],
    *,
    begin: Callable[[Driver], Awaitable[None]] | None = None,
    limits: Sequence[tuple[int, str]] = (),
    ending: Ending | None = None,
) -> State:
    """Drive the run until it stops or waits for people; return its state.

    ``limits`` are bounds set from outside, each with the number of answers after which it held.
    """
    driver = _Driver(equipment, RunLedger(stage.state, stage), stage, emitter, clock)
    if begin is not None:
        await begin(driver)
    while True:
        if ending is not None and stage.answers >= ending.answers and not driver.state.stopped:
            if ending.how == "cancelled":
                await driver.stop("cancelled", "the run was cancelled")
            await driver.flush()
            return driver.state
        driver.bound(next((name for at, name in limits if stage.answers == at), ""))
        try:
            reached = await driver.turn()
        except (ModelError, ModelBusy) as exc:
            return (await driver.stop("failed", str(exc), fault=exc.fault)).state
        if reached.where == "stopped" and (texts := await _spoken(stage)):
            await driver.follow_up("\n".join(texts))
        elif reached.where != "turn":
            return reached.state


async def _spoken(stage: Stage) -> list[str]:
    """Return what people said to the run after its end."""
    return [letter.text for letter in await stage.take(0) if letter.kind == "follow_up"]


def limits_in(entries: Iterable[Entry]) -> list[tuple[int, str]]:
    """Return the bounds that a recorded run reached, with the answers before each."""
    found: list[tuple[int, str]] = []
    answers = 0
    for entry in entries:
        match entry:
            case Heard() if entry.limit:
                found.append((answers, entry.limit))
            case Stopped() if entry.reason in get_args(Limit):
                found.append((answers, entry.reason))
            case Answered():
                answers += 1
            case _:
                pass
    return found


def clock_of(entries: Iterable[Entry], stage: Stage) -> Callable[[], int]:
    """Return a clock that shows, at every answer of a repetition, the time of the recording."""
    times_ms = [0]
    for entry in entries:
        if isinstance(entry, Answered):
            times_ms.append(times_ms[-1])
        times_ms[-1] = max(times_ms[-1], entry.at_ms)
    return lambda: times_ms[min(stage.answers, len(times_ms) - 1)]
