"""The agent's events as chunks of the run's output stream.

    Emitter ──AgentEvent──> Narrator ──Chunk──> ctx.say

A later attempt makes what the earlier one has said void, also what stands in the journal by then
and is not done again: ``restate`` says that anew, so that the words that stand are those of the
conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from treadle.sdk import chunks
from treadle.sdk.chunks import Chunk
from treadle.sdk.errors import InvalidPayload
from treadle.sdk.payload import encode
from treadle.worker.agent.core.entries import (
    Answered,
    Asked,
    Entry,
    Judged,
    Settled,
    Stopped,
    TurnEnded,
)
from treadle.worker.agent.events import AgentEvent
from treadle.worker.agent.models.port import Delta, TextDelta, ThinkingDelta

PROGRESS_BYTES_MAX = 32 * 1024


class Narrator:
    """Says what happens in one iteration of an agent."""

    def __init__(self, say: Callable[[Chunk], int]) -> None:
        self._say = say
        self._since = 0
        """Number of the chunk that began the present answer."""
        self._block = -1
        """Index of the text block that was said last, in the present answer."""

    def __call__(self, event: AgentEvent) -> None:
        """Say what an event tells, if watchers are told of it.

        Of sub-agents only what they ask people: their words are no words of the agent.
        """
        if event.path and event.name != "agent_run.waiting":
            return
        fields = event.fields
        match event.name:
            case "agent.message.delta":
                if event.delta is not None:
                    self._delta(event.delta)
            case "agent.turn.started":
                self._begin(event.turn, str(fields.get("purpose", "turn")))
            case "agent.message.superseded":
                self._say(chunks.Superseded(since=self._since))
                self._block = -1
            case "agent.tool.started":
                self._say(chunks.ToolStarted(id=fields["id"], name=fields["tool"]))
            case "agent.tool.ended":
                ended = {"id": fields["id"], "name": fields["tool"], "status": fields["status"]}
                self._say(chunks.ToolEnded(**ended))
            case "agent.tool.progress":
                self._progress(fields["id"], fields["data"])
            case "agent.turn.ended":
                self._say(chunks.TurnEnded(turn=event.turn))
            case "agent_run.waiting":
                names = sorted({call["name"] for call in fields["calls"]})
                self._say(chunks.Waiting(calls=tuple(names)))
            case (
                "agent_run.completed"
                | "agent_run.cancelled"
                | "agent_run.failed"
                | "agent_run.stopped"
            ):
                reason = fields.get("reason") or event.name.removeprefix("agent_run.")
                self._say(chunks.Stopped(reason=reason, detail=fields.get("detail", "")))
            case _:
                pass

    def restate(self, entries: Sequence[Entry], turn: int) -> None:
        """Say again what earlier attempts of this iteration have stored in the journal.

        ``turn`` is the one that the journal has come to.
        """
        turn -= sum(isinstance(entry, TurnEnded) for entry in entries)
        names: dict[str, str] = {}
        for entry in entries:
            match entry:
                case Answered():
                    self._begin(turn, entry.purpose)
                    self._answer(entry.content)
                case Judged():
                    names |= {call.id: call.name for call in entry.calls}
                case Settled(result=result):
                    self._say(chunks.ToolStarted(id=result.id, name=result.name))
                    status = result.status
                    self._say(chunks.ToolEnded(id=result.id, name=result.name, status=status))
                case Asked():
                    asked = sorted({names[id] for id in entry.call_ids if id in names})
                    self._say(chunks.Waiting(calls=tuple(asked)))
                case TurnEnded():
                    self._say(chunks.TurnEnded(turn=turn))
                    turn += 1
                case Stopped():
                    self._say(chunks.Stopped(reason=entry.reason, detail=entry.detail))
                case _:
                    pass

    def answered(self, entries: Sequence[Entry]) -> None:
        """Say the answers among these entries, of a model that gives out no deltas."""
        for entry in entries:
            if isinstance(entry, Answered):
                self._answer(entry.content)

    def _answer(self, content: Iterable[dict[str, Any]]) -> None:
        """Say a whole answer."""
        for index, block in enumerate(content):
            match block:
                case {"type": "text", "text": str(text)}:
                    self._delta(TextDelta(index, text))
                case {"type": "thinking", "thinking": str(text)}:
                    self._delta(ThinkingDelta(index, text))
                case _:
                    pass

    def _begin(self, turn: int, purpose: str) -> None:
        self._since = self._say(chunks.TurnStarted(turn=turn, purpose=purpose))
        self._block = -1

    def _delta(self, delta: Delta) -> None:
        match delta:
            case TextDelta(index, text):
                # Blocks are lines of their own, as in the result's text.
                is_next = self._block not in (-1, index)
                self._block = index
                self._say(chunks.Text(text=f"\n{text}" if is_next else text))
            case ThinkingDelta(_, text):
                self._say(chunks.Thinking(text=text))
            case _:
                pass

    def _progress(self, call: str, data: object) -> None:
        try:
            raw = encode("progress of a tool", data)
        except InvalidPayload:
            raw = encode("progress of a tool", repr(data)[:1000])
        if len(raw) <= PROGRESS_BYTES_MAX:
            self._say(chunks.Progress(value=msgspec.Raw(raw), call=call))
