"""What people are asked: when it was asked, whom, until when, and what they said in vain.

    Asked ──> Asking ──Escalated──> the next level ──Refused──> with the problem
                │
                └──Replied | Judged anew | the turn is closed──> gone

Times are absolute and stand in the journal from the moment of asking, so that no restart and no
new version of the agent moves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from treadle.sdk.asks import Ask, AskKind
from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.entries import Asked, Escalated, Level, Refused, Replied
from treadle.worker.agent.core.spec import ASK_HUMAN

_KINDS: dict[str, AskKind] = {"question": "question", "uncertain": "unsafe"}


class Asking(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One call that people are asked about."""

    asked_ms: int
    due_ms: int = 0
    levels: tuple[Level, ...] = ()
    level: int = 0
    """Levels that have taken effect."""
    problem: str = ""
    after: int = 0

    @property
    def to(self) -> str:
        """Who is asked now; '' is anybody."""
        return self.levels[self.level - 1].to if self.level else ""

    @property
    def next_ms(self) -> int:
        """When something happens without an answer; 0 is never."""
        times = [level.at_ms for level in self.levels[self.level :]] + [self.due_ms]
        return min(filter(None, times), default=0)

    def reached(self, now_ms: int) -> int:
        """Return the level that has come by then."""
        return max(self.level, sum(level.at_ms <= now_ms for level in self.levels))


def asked(
    asking: Mapping[str, Asking], entry: Asked, replies: Mapping[str, Replied]
) -> dict[str, Asking]:
    """Return what is asked after an ``Asked``."""
    new = {
        id: Asking(
            asked_ms=entry.at_ms,
            due_ms=entry.due_ms,
            levels=entry.levels,
            # What was answered before was another question about the call.
            after=max(entry.after, replies[id].seen if id in replies else 0),
        )
        for id in entry.call_ids
    }
    return {**asking, **new}


def escalated(asking: Mapping[str, Asking], entry: Escalated) -> dict[str, Asking]:
    """Return what is asked after an ``Escalated``."""
    return _changed(asking, entry.call_ids, level=entry.level)


def refused(asking: Mapping[str, Asking], entry: Refused) -> dict[str, Asking]:
    """Return what is asked after a ``Refused``."""
    return _changed(asking, (entry.call_id,), problem=entry.problem, after=entry.seen)


def still(
    asking: Mapping[str, Asking], before: Sequence[ToolCall], now: Sequence[ToolCall]
) -> dict[str, Asking]:
    """Return what is asked after calls were judged anew: about another decision it is not."""
    known = {call.id: call for call in before}
    same = {call.id for call in now if known.get(call.id) == call}
    return {id: each for id, each in asking.items() if id in same}


def asks(asking: Mapping[str, Asking], calls: Iterable[ToolCall]) -> tuple[Ask, ...]:
    """Return what people are asked about the calls, as the register of the step shows it."""
    return tuple(_asks(asking, calls))


def next_ms(asking: Mapping[str, Asking]) -> int:
    """Return when something happens without an answer; 0 is never."""
    return min(filter(None, (each.next_ms for each in asking.values())), default=0)


# ------------------------------------------------------------------ leaves


def _changed(
    asking: Mapping[str, Asking], ids: Iterable[str], **changes: object
) -> dict[str, Asking]:
    known = {id: msgspec.structs.replace(asking[id], **changes) for id in ids if id in asking}
    return {**asking, **known}


def _asks(asking: Mapping[str, Asking], calls: Iterable[ToolCall]) -> Iterator[Ask]:
    for call in calls:
        if (each := asking.get(call.id)) is None:
            continue
        is_question = call.name == ASK_HUMAN
        question = str(call.input.get("question", "")) if is_question else call.reason
        options: Any = call.input.get("options") if is_question else None
        listed = cast("list[object]", options) if isinstance(options, list) else []
        yield Ask(
            id=call.id,
            kind=_KINDS.get(call.decision, "approval"),
            text=question,
            options=tuple(map(str, listed)),
            tool=call.name,
            input=msgspec.Raw(msgspec.json.encode(call.input)),
            args_hash=call.args_hash,
            asked_ms=each.asked_ms,
            due_ms=each.due_ms,
            level=each.level,
            to=each.to,
            problem=each.problem,
            after=each.after,
        )
