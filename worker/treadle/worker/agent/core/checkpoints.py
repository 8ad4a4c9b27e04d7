"""What a stored record of an agent's journal is a checkpoint of, and what follows from it.

Every record is a place to go on from: the state is the fold of all records up to it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from treadle.worker.agent.core.entries import (
    Answered,
    Asked,
    Compacted,
    Entry,
    Heard,
    Kept,
    Noted,
    Opened,
    Replied,
    RoundEnded,
    Settled,
    Started,
    Stopped,
    TurnEnded,
    Wasted,
    innermost,
)
from treadle.worker.agent.core.state import State, fold, tool_uses

CheckpointKind = Literal[
    "input",
    "llm_response",
    "tool_start",
    "tool_output",
    "tool_result",
    "journal_update",
    "human_pause",
    "human_reply",
    "compaction",
    "turn_end",
    "model_failure",
    "decision",
    "final",
]
"""After which step of the work a record was stored."""

GOES_ON: dict[CheckpointKind, str] = {
    "input": "the model is called",
    "llm_response": "the answer is kept; its calls are judged and run",
    "tool_start": "the call may have run: its reconcile is asked, else a person",
    "tool_output": "the call has no result yet: it is treated like one that was under way",
    "tool_result": "the result is kept; the calls that have none run",
    "journal_update": "the calls that have no result run",
    "human_pause": "waits on for people; no worker is held",
    "human_reply": "what was decided about the call is done",
    "compaction": "the model is called with the shorter conversation",
    "turn_end": "the next turn begins",
    "model_failure": "the model is called again",
    "decision": "the rest of the turn is decided anew from the state",
    "final": "nothing: the run is over",
}
"""What a worker does that takes the run over after a record of the kind."""


class AgentCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One record of an agent's journal, as an operator looks at it."""

    number: int
    """Of the record, from 0, without a gap."""
    kind: CheckpointKind
    iteration: int
    """Of the step."""
    turn: int
    """Turns that had ended by then, from 0."""
    at_ms: int
    size_bytes: int
    about: str = ""
    """The tools, the stop reason, or who spoke."""
    entries: tuple[str, ...] = ()
    """Names of the entries it holds."""
    begun: tuple[str, ...] = ()
    """Tools of calls that must not run twice, had begun by then and have no result."""

    @property
    def goes_on(self) -> str:
        """What a worker does that takes the run over here."""
        return GOES_ON["tool_start" if self.begun else self.kind]


def checkpoint(
    number: int, iteration: int, size_bytes: int, entries: Sequence[Entry], state: State
) -> tuple[AgentCheckpoint, State]:
    """Return the record as a checkpoint, and the state after it; ``state`` is that before."""
    after = fold(state, entries)
    kind, about = _kind(entries)
    made = AgentCheckpoint(
        number=number,
        kind=kind,
        iteration=iteration,
        turn=after.turn,
        at_ms=entries[-1].at_ms if entries else 0,
        size_bytes=size_bytes,
        about=about,
        entries=tuple(str(type(entry).__struct_config__.tag) for entry in entries),
        begun=_begun(after),
    )
    return made, after


def _begun(state: State) -> tuple[str, ...]:
    own = [started.name for id, started in state.started.items() if id not in state.results]
    return (*own, *(name for child in state.children.values() for name in _begun(child)))


def _kind(entries: Sequence[Entry]) -> tuple[CheckpointKind, str]:
    entries = [innermost(entry) for entry in entries]  # A sub-agent's are of the same kinds.
    noted = [entry.field for entry in entries if isinstance(entry, Noted)]
    for entry in reversed(entries):
        match entry:
            case Settled() if noted:
                return "journal_update", ", ".join(noted)
            case Settled():
                return "tool_result", f"{entry.result.name}: {entry.result.status}"
            case Kept():
                return "tool_output", f"{entry.tool}: {entry.size_bytes} bytes"
            case Started():
                return "tool_start", entry.name
            case Answered():
                names = ", ".join(use["name"] for use in tool_uses(entry.content))
                return "llm_response", names or entry.stop_reason
            case Asked():
                return "human_pause", ", ".join(entry.call_ids)
            case Replied():
                return "human_reply", f"{entry.call_id}: {entry.verdict}"
            case Compacted():
                return "compaction", f"{entry.tokens_before} -> {entry.tokens_after} tokens"
            case Wasted():
                return "model_failure", ""
            case TurnEnded():
                return "turn_end", ""
            case RoundEnded():
                return "turn_end", "sub-agents"
            case Stopped():
                kind: CheckpointKind = "human_pause" if entry.reason == "needs_human" else "final"
                return kind, entry.reason
            case Opened():
                return "input", "goal"
            case Heard():
                return "input", entry.source
            case _:
                continue
    return "decision", ""
