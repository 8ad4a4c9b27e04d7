"""What was said, out of an agent's journal: the content of the spans that its verdicts tell of.

    opened, heard, compacted, results, notes   ──> input of the next answer
    answered                                   ──> its output
    judged, replied                            ──> arguments of a call
    settled                                    ──> its result

Pure: a fold of the entries as they are stored, in their order. Entries of another kind, of another
version, are passed over. A model's input is what is new since its last answer, so that what is
kept and exported grows with what is said and not with its square.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from treadle.sdk.tracing import content, names
from treadle.sdk.tracing.content import Part

Path = tuple[str, ...]
Attributes = dict[str, str]


class Call(msgspec.Struct, frozen=True):
    """A tool call as it was judged."""

    id: str
    input: dict[str, Any]


class Result(msgspec.Struct, frozen=True):
    """What came of a call."""

    id: str
    content: str | list[Any]


class Entry(msgspec.Struct, frozen=True):
    """An entry of a journal: what is read of any kind of it."""

    kind: str
    goal: list[Any] = []
    content: list[Any] = []
    block: list[Any] = []
    stop_reason: str = ""
    calls: list[Call] = []
    result: Result | None = None
    notes: list[str] = []
    call_id: str = ""
    input: dict[str, Any] | None = None
    entry: Entry | None = None


@dataclass
class _Talk:
    """A conversation: what its model has not been told yet, and the calls that are open."""

    results: list[Part] = field(default_factory=list[Part])
    said: list[Part] = field(default_factory=list[Part])
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


class Transcript:
    """The fold of one step's journal, as far as it was read."""

    def __init__(self) -> None:
        self.entries = 0
        """Entries read so far: the number of the next."""
        self._talks: dict[Path, _Talk] = {}
        self._found: dict[int, Attributes] = {}

    def read(self, entry: Entry) -> None:
        """Take the next entry."""
        number = self.entries
        path: Path = ()
        self.entries += 1
        while entry.entry is not None:
            path, entry = (*path, entry.call_id), entry.entry
        found = self._entry(path, self._talks.setdefault(path, _Talk()), entry)
        if found:
            self._found[number] = found

    def take(self, number: int) -> Attributes:
        """Return the content of an entry; no one asks for it or for one before it again."""
        found = self._found.get(number, {})
        self._found = {other: kept for other, kept in self._found.items() if other > number}
        return found

    def _entry(self, path: Path, talk: _Talk, entry: Entry) -> Attributes:
        match entry.kind:
            case "opened":
                self._talks[path] = _Talk(said=_kept(entry.goal))
            case "heard":
                talk.said += _kept(entry.content)
            case "compacted":
                summary = _kept(entry.block)
                talk.said = [*summary, *talk.said]
                return {names.OUTPUT_MESSAGES: content.messages([("assistant", summary)], "stop")}
            case "answered":
                return _answered(talk, entry)
            case "judged":
                talk.arguments |= {call.id: content.shortened(call.input) for call in entry.calls}
            case "replied" if entry.input is not None:
                talk.arguments[entry.call_id] = content.shortened(entry.input)
            case "settled" if entry.result is not None:
                return self._settled(path, talk, entry.result)
            case "turn_ended":
                talk.said += [content.text_part(note) for note in entry.notes]
            case _:
                pass
        return {}

    def _settled(self, path: Path, talk: _Talk, result: Result) -> Attributes:
        call, returned = result.id, result.content
        arguments = content.capped(talk.arguments.pop(call, None))
        talk.results.append(content.shortened(content.response_part(call, returned)))
        inner = (*path, call)
        is_agent = inner in self._talks
        self._talks = {
            other: kept
            for other, kept in self._talks.items()
            if not is_agent or other[: len(inner)] != inner
        }
        ended = content.capped(content.result_of(returned))
        if is_agent:
            return values(arguments, ended)
        return {names.TOOL_ARGUMENTS: arguments, names.TOOL_RESULT: ended}


def values(given: str | None, returned: str | None) -> Attributes:
    """Return JSON as the input and the output of a span that is no model's and no tool's."""
    found: Attributes = {}
    if given is not None:
        found |= {names.INPUT_VALUE: given, names.INPUT_TYPE: names.JSON}
    if returned is not None:
        found |= {names.OUTPUT_VALUE: returned, names.OUTPUT_TYPE: names.JSON}
    return found


def _answered(talk: _Talk, entry: Entry) -> Attributes:
    # A message each: of several results in one a backend shows the last.
    told = [*(("tool", [result]) for result in talk.results), ("user", talk.said)]
    talk.results, talk.said = [], []
    return {
        names.INPUT_MESSAGES: content.messages(told),
        names.OUTPUT_MESSAGES: content.messages(
            [("assistant", content.parts_of(entry.content))], entry.stop_reason
        ),
    }


def _kept(blocks: object) -> list[Part]:
    kept: list[Part] = content.shortened(content.parts_of(blocks))
    return kept
