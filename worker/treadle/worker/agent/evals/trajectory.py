"""The trajectory of a run, from its journal: per turn what was proposed, decided and came of it.

Ids, times and usage are left out: two runs that did the same have the same trajectory. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.core.conversation import Block
from treadle.worker.agent.core.entries import (
    Answered,
    Asked,
    Checked,
    Compacted,
    Entry,
    Escalated,
    Heard,
    Judged,
    Opened,
    Replied,
    Settled,
    Started,
    Stopped,
    Switched,
    TurnEnded,
)
from treadle.worker.agent.core.spec import FINAL_OUTPUT
from treadle.worker.agent.core.state import State, apply, text_of, tool_uses

NOT_RUN = ("refused", "skipped")
TRACE = (
    "goal",
    "heard",
    "notice",
    "proposal",
    "validation",
    "action",
    "tool_result",
    "refusal",
    "check",
    "question",
    "reply",
    "loop_detected",
    "compaction",
    "switch",
    "stop",
)
"""The words of a trace, each for what stands in the journal.

``goal``           the run began                  ``check``          the result was checked
``heard``          a person spoke                 ``question``       people are asked
``notice``         the runtime told the model     ``reply``          a person decided
``proposal``       the model answered             ``loop_detected``  it goes in circles
``validation``     software judged the calls,     ``compaction``     messages were summarised
                   or checked the result
``action``         a call with an effect began    ``switch``         another model or level
``tool_result``    a call ran and ended           ``refusal``        a call was not let run
``stop``           the run is over, or waits for people
"""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One proposed call."""

    name: str
    args: Any
    """As the model proposed them."""
    runs_with: Any
    """As they were executed: repaired, changed by a hook or by a person."""
    decision: str = ""
    """What software decided; '' if it did not come to that."""
    status: str = ""
    """How it ended; '' if it did not."""
    id: str = ""
    content: str | list[Block] = ""

    @property
    def ran(self) -> bool:
        """True if the tool was called."""
        return self.status not in ("", *NOT_RUN)


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the model and what came of it."""

    text: str
    calls: tuple[Call, ...]
    purpose: str = "turn"


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run."""

    turns: tuple[Turn, ...]
    stop_reason: str
    """``needs_human`` also for a run that waits for people; '' for one that has not ended."""
    output: Any
    text: str
    detail: str
    trace: tuple[str, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """All proposed calls, in order."""
        return tuple(call for turn in self.turns for call in turn.calls)


def trajectory(entries: Sequence[Entry]) -> Trajectory:
    """Return the trajectory of the run that the entries tell of."""
    state, turns = State(), list[_Open]()
    trace: list[str] = []
    for entry in entries:
        state = apply(state, entry)
        trace += _words(entry)
        if isinstance(entry, Answered) and state.answer is not None:
            # The state's answer has the ids that the calls are known by.
            turns.append(_Open(state.answer))
        elif turns and isinstance(entry, (Judged, Replied, Settled)):
            turns[-1].add(entry)
    stop = state.stopped
    is_waiting = stop is None and state.is_waiting
    if is_waiting:
        trace.append("stop")
    return Trajectory(
        turns=tuple(each.turn() for each in turns),
        stop_reason=stop.reason if stop is not None else "needs_human" if is_waiting else "",
        output=None if stop is None else msgspec.json.decode(stop.output),
        text=state.text,
        detail="" if stop is None else stop.detail,
        trace=tuple(trace),
    )


class _Open:
    """A turn as far as it has come."""

    def __init__(self, answer: Answered) -> None:
        self._answer = answer
        self._judged: dict[str, ToolCall] = {}
        self._decisions: dict[str, str] = {}
        self._results: dict[str, ToolResult] = {}

    def add(self, entry: Judged | Replied | Settled) -> None:
        match entry:
            case Judged():
                for call in entry.calls:
                    # A call that is uncertain after a crash was decided about before.
                    self._decisions.setdefault(call.id, call.decision)
                    self._judged[call.id] = call
            case Replied() if entry.verdict == "approve":
                if (judged := self._judged.get(entry.call_id)) is not None:
                    edited = judged.input if entry.input is None else entry.input
                    self._judged[entry.call_id] = msgspec.structs.replace(judged, input=edited)
            case Replied():
                pass
            case Settled():
                self._results[entry.result.id] = entry.result

    def turn(self) -> Turn:
        content = self._answer.content
        calls = tuple(self._call(use) for use in tool_uses(content))
        return Turn(text=text_of(content), calls=calls, purpose=self._answer.purpose)

    def _call(self, use: Block) -> Call:
        id_ = str(use.get("id", ""))
        judged, result = self._judged.get(id_), self._results.get(id_)
        args = use.get("input")
        return Call(
            id=id_,
            name=str(use.get("name", "")),
            args=args,
            runs_with=args if judged is None else judged.input,
            decision=self._decisions.get(id_, ""),
            status="" if result is None else result.status,
            content="" if result is None else result.content,
        )


_WORDS: dict[type[Any], str] = {
    Opened: "goal",
    Answered: "proposal",
    Judged: "validation",
    Started: "action",
    Asked: "question",
    Escalated: "escalation",
    Replied: "reply",
    Compacted: "compaction",
    Switched: "switch",
    Stopped: "stop",
}


def _words(entry: Entry) -> Iterator[str]:
    match entry:
        case Heard():
            yield "notice" if entry.source == "notice" else "heard"
        case Settled():
            result = entry.result
            if result.status in NOT_RUN:
                yield "refusal"
            elif result.name != FINAL_OUTPUT:
                yield "tool_result"
        case Checked():
            yield "check"
            yield "validation"
        case TurnEnded():
            if entry.detection is not None:
                yield "loop_detected"
            if entry.notes:
                yield "notice"
        case _:
            if word := _WORDS.get(type(entry)):
                yield word
