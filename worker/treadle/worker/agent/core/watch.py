"""What the runtime keeps an eye on from turn to turn, put together: circles and bad luck.

``assess`` looks at a turn whose calls are all settled, and says what the model is told, what the
watch is afterwards, and whether the run stops. ``guard`` looks at calls before they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from treadle.worker.agent.core import kept, notes, streaks, thrash
from treadle.worker.agent.core.calls import Decision, ToolCall
from treadle.worker.agent.core.entries import Detection
from treadle.worker.agent.core.spec import ASK_HUMAN, FINAL_OUTPUT, AgentSpec
from treadle.worker.agent.core.stops import StopReason
from treadle.worker.agent.core.streaks import Streaks
from treadle.worker.agent.core.thrash import Ladder, Recent

if TYPE_CHECKING:
    from treadle.worker.agent.core.state import State

OWN_TOOLS = frozenset({*notes.NAMES, kept.READ, ASK_HUMAN, FINAL_OUTPUT})
"""Tools of the runtime itself: they use up no budget, and repeating them goes in no circle."""

_CUT = {"model_context_window_exceeded": "max_tokens"}
"""Another way to be cut off."""


class Watch(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What has been noticed so far."""

    recent: Recent = Recent()
    ladder: Ladder = Ladder()
    streaks: Streaks = Streaks()
    malformed: int = 0
    """Answers in a row that could not be used at all."""
    told: dict[str, int] = {}
    """Shares of each bound that the model was told of (``telling``)."""

    def renewed(self) -> Watch:
        """Return the watch after a person has spoken; budgets begin anew for nobody."""
        return Watch(streaks=self.streaks.renewed(), told=self.told)


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a turn."""

    watch: Watch
    notes: tuple[str, ...] = ()
    detection: Detection | None = None
    stop: StopReason | None = None
    detail: str = ""


def assess(
    spec: AgentSpec, state: State, *, text: str, problem: str, proposed: str = ""
) -> Assessment:
    """Assess the open turn of the state.

    ``text`` is that of the answer; ``problem`` is why what it proposed as the result, which is
    ``proposed`` as text, was not accepted, or ''.
    """
    answer, watch = state.answer, state.watch
    assert answer is not None
    calls = state.calls
    issued = [thrash.issued(call, state.results[call.id], spec.tool(call.name)) for call in calls]
    recent = thrash.record(watch.recent, issued)
    detection = thrash.detect(recent, watch.ladder, exempt=OWN_TOOLS, diverse=spec.subagents)
    suppressed = sum(call.decision == "suppressed" for call in calls)
    circles = thrash.after_turn(watch.ladder, detection, proposed=len(calls), suppressed=suppressed)
    outcomes = [streaks.outcome(call, state.results[call.id]) for call in calls]
    tools = streaks.after_tools(watch.streaks, outcomes)
    said = streaks.after_answer(
        tools.streaks,
        stop_reason=_CUT.get(answer.stop_reason, answer.stop_reason),
        has_text=bool(text),
        has_calls=bool(calls),
    )
    advice: list[streaks.Advice] = [tools, said]
    if state.checked is not None or problem:
        advice.append(streaks.after_check(said.streaks, problem, proposed))
    after = Watch(recent=recent, ladder=circles.ladder, streaks=advice[-1].streaks, told=watch.told)
    told = tuple(note for each in advice for note in each.notes)
    stops: list[tuple[StopReason | None, str]] = [(each.stop, each.detail) for each in advice]
    stops.append((circles.stop, circles.detail))
    for stop, detail in stops:
        if stop is not None:
            return Assessment(watch=after, detection=detection, stop=stop, detail=detail)
    notes_ = (*told, circles.note) if circles.note else told
    return Assessment(watch=after, notes=notes_, detection=detection)


def guard(spec: AgentSpec, watch: Watch, calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """Return the calls, those marked that the watch does not let run."""
    issued = [thrash.issued(call, None, spec.tool(call.name)) for call in calls]
    storms = thrash.storms(watch.recent, issued, exempt=OWN_TOOLS)
    guarded: list[ToolCall] = []
    for call, is_storm in zip(calls, storms, strict=True):
        if call.decision != "execute" or call.name in OWN_TOOLS:
            guarded.append(call)
        elif watch.streaks.is_open(call.name):
            guarded.append(_marked(call, "unavailable", streaks.open_text(call.name)))
        elif call.name in watch.ladder.blocked:
            guarded.append(_marked(call, "suppressed", thrash.blocked_text(call.name)))
        elif is_storm:
            guarded.append(_marked(call, "suppressed", thrash.suppressed_text(call.name)))
        else:
            guarded.append(call)
    return tuple(guarded)


def _marked(call: ToolCall, decision: Decision, reason: str) -> ToolCall:
    return msgspec.structs.replace(call, decision=decision, reason=reason)
