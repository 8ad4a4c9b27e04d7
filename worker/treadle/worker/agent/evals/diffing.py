"""What is different between two runs in what they did, whatever their times and ids. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from treadle.worker.agent.core.entries import Entry
from treadle.worker.agent.evals.cassette import Cassette
from treadle.worker.agent.evals.trajectory import Call, Trajectory, Turn, trajectory

VALUE_CHARS_MAX = 200
"""Of a value in the text of a difference; the whole is in its fields."""
_NOTHING = "(nothing)"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One difference."""

    where: str
    """``turn 2, call 1 (read_order)``, or '' for the run."""
    what: str
    """``calls``, ``args``, ``runs_with``, ``decision``, ``status``, ``stop_reason``, ``output``."""
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what} {shown(self.recorded)} -> {shown(self.replayed)}"


Told = Cassette | Trajectory | Sequence[Entry]


def diff(recorded: Told, replayed: Told) -> tuple[Difference, ...]:
    """Return the differences in meaning; ids, times, usage and the wording on the way are none."""
    before, after = _trajectory(recorded), _trajectory(replayed)
    found = list(_turns(before.turns, after.turns))
    for what in ("stop_reason", "output"):
        found += _unequal("", what, getattr(before, what), getattr(after, what))
    return tuple(found)


def _trajectory(told: Told) -> Trajectory:
    if isinstance(told, Trajectory):
        return told
    return trajectory(told.entries if isinstance(told, Cassette) else told)


def _turns(before: Sequence[Turn], after: Sequence[Turn]) -> Iterator[Difference]:
    for number, (old, new) in enumerate(zip_longest(before, after), 1):
        where = f"turn {number}"
        if old is None or new is None:
            yield Difference(
                where=where, what="calls", recorded=_summary(old), replayed=_summary(new)
            )
            continue
        if [call.name for call in old.calls] != [call.name for call in new.calls]:
            yield Difference(
                where=where, what="calls", recorded=_summary(old), replayed=_summary(new)
            )
            continue
        for index, (was, now) in enumerate(zip(old.calls, new.calls, strict=True), 1):
            yield from _calls(f"{where}, call {index} ({was.name})", was, now)


def _calls(where: str, was: Call, now: Call) -> Iterator[Difference]:
    yield from _unequal(where, "args", was.args, now.args)
    if was.args == now.args:
        yield from _unequal(where, "runs_with", was.runs_with, now.runs_with)
    yield from _unequal(where, "decision", was.decision, now.decision)
    yield from _unequal(where, "status", was.status, now.status)


def _unequal(where: str, what: str, before: Any, after: Any) -> list[Difference]:
    if _same(before, after):
        return []
    return [Difference(where=where, what=what, recorded=before, replayed=after)]


def _same(before: Any, after: Any) -> bool:
    """Compare as JSON: true is not 1."""
    return msgspec.json.encode(before, order="sorted") == msgspec.json.encode(after, order="sorted")


def _summary(turn: Turn | None) -> Any:
    if turn is None:
        return _NOTHING
    return [call.name for call in turn.calls] or "an answer without calls"


def shown(value: Any) -> str:
    """Return the value as bounded text."""
    if isinstance(value, str):
        text = value or _NOTHING
    else:
        text = msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[:VALUE_CHARS_MAX]}…"
