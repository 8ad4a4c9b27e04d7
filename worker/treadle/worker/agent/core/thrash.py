"""Going in circles: how it is noticed, and what is done about it.

    issued calls ──> window of six ──> Detection ──> ladder:  1 reflect, then pivot
                          │                                   2 the tool is taken away
                          └─ storm: the third identical       3 a person decides
                             call does not run

Calls that did not run count like those that did: a model that repeats a refused call goes in
circles too. What a person says begins a new window and a new ladder; nothing else does, so that
a warning is never forgotten.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.core.entries import Detection
from treadle.worker.agent.core.spec import ToolSpec
from treadle.worker.agent.core.stops import StopReason
from treadle.worker.agent.tools.canonical import args_hash

WINDOW = 6
"""Calls that are looked at."""
IDENTICAL = 3
"""Of the window: the same tool with the same arguments."""
PATTERN = 4
"""Of the window: the same tool with differing arguments."""
LEVEL_MAX = 3
BLOCKED_TURNS = 3
"""For so many turns the second level takes the tool away."""
INERT = "inert"
"""The one signature of all shell commands that do nothing."""
_UNJUDGED = frozenset({"truncated", "over_budget", "duplicate"})
_NEUTRAL_ARGUMENTS = frozenset({"command", "timeout", "timeout_s", "description"})
_SHELL_SYNTAX = frozenset("|&;<>$`()\n")

_REFLECT = (
    "Repeating it will not change the outcome. Before you go on:\n"
    "1. State what this call was to achieve, and why it is not working.\n"
    "2. Name the assumption that may be wrong, and what the results so far really show.\n"
    "3. Propose two or three approaches that differ in kind (another tool, another entry point, "
    "another reading of the task) and choose one.\n"
    "4. Go on with that one. If nothing can work with the tools you have, say so plainly."
)


class Issued(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One call as the window remembers it."""

    name: str
    args: str
    """Signature of the arguments: equal for equal calls."""
    result: str = ""
    """Hash of what came back; '' if nothing did."""
    ran: bool = True
    failed: bool = False
    mutating: bool = False
    timed_out: bool = False
    polling: bool = False
    shell: bool = False
    turn: int = 0
    """Set by ``record``."""


class Recent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last calls, oldest first."""

    calls: tuple[Issued, ...] = ()
    turn: int = 0


class Ladder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """How far it has gone since a person last spoke. The level never falls."""

    level: int = 0
    reflected: bool = False
    """A turn of nothing but suppressed calls has been answered once."""
    blocked: dict[str, int] = {}
    """Tools that are taken away, and for how many turns more."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a turn."""

    ladder: Ladder
    note: str = ""
    """For the model, after the results."""
    stop: StopReason | None = None
    detail: str = ""


# ------------------------------------------------------------------ what was issued


def issued(call: ToolCall, result: ToolResult | None, tool: ToolSpec | None) -> Issued | None:
    """Return how the window remembers a call; ``None`` for one the model is not to blame for.

    Without a result: the call as it is proposed. Without a tool: it is not known.
    """
    if call.decision in _UNJUDGED:
        return None
    is_shell = tool is not None and tool.is_shell
    args = signature(call.input, is_shell=is_shell) if is_shell else call.args_hash
    status = result.status if result is not None else "ok"
    ran = status not in ("refused", "skipped")
    return Issued(
        name=call.name,
        args=args or signature(call.input),
        result=args_hash(result.content) if result is not None else "",
        ran=ran,
        failed=status != "ok",
        mutating=ran and tool is not None and not tool.idempotent and args != INERT,
        timed_out=status == "timeout",
        polling=tool is not None and tool.polling,
        shell=is_shell,
    )


def signature(arguments: dict[str, object], *, is_shell: bool = False) -> str:
    """Return a text that is equal for calls that ask for the same.

    Shell commands are the same when their words are, and one that does nothing (``true``,
    ``echo ok``) is the same as any other that does nothing.
    """
    command = arguments.get("command")
    if not is_shell or not isinstance(command, str):
        return args_hash(arguments)
    words = _words(command)
    if _is_inert(command, words):
        return INERT
    others = {key: item for key, item in arguments.items() if key not in _NEUTRAL_ARGUMENTS}
    return args_hash({"words": words, "others": others})


def _words(command: str) -> list[str]:
    text = command.strip().rstrip(";").rstrip()
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # An open quote: the shell will say so.
        return text.split()


def _is_inert(command: str, words: list[str]) -> bool:
    body = command.strip().rstrip(";")
    if _SHELL_SYNTAX.intersection(body):
        return False
    return not words or words[0] in ("true", ":", "echo", "printf")


# ------------------------------------------------------------------ the window


def record(recent: Recent, calls: Iterable[Issued | None]) -> Recent:
    """Return the window after a turn with these calls, in the order of the answer.

    A call that may have changed something makes reading again sensible: earlier reads are
    forgotten.
    """
    turn = recent.turn + 1
    window = list(recent.calls)
    for call in calls:
        if call is None:
            continue
        if call.mutating and call.ran:
            window = [earlier for earlier in window if earlier.mutating]
        window.append(msgspec.structs.replace(call, turn=turn))
    return Recent(tuple(window[-WINDOW:]), turn)


def detect(
    recent: Recent,
    ladder: Ladder,
    *,
    exempt: Iterable[str] = (),
    diverse: AbstractSet[str] = frozenset(),
) -> Detection | None:
    """Return what the last turn shows, with the level it leads to, or ``None``.

    Only what the last turn did again counts: a model that has turned to something else is left
    alone, whatever the window still holds. Differing calls that each bring something new are
    remarked on once and lead no further; those of the tools named in ``diverse`` not at all, for
    which differing calls are what they are for.
    """
    spared = frozenset(exempt)
    fresh = [call for call in recent.calls if call.turn == recent.turn and call.name not in spared]
    level = min(ladder.level + 1, LEVEL_MAX)
    for call in reversed(fresh):
        if _weight(recent.calls, call) >= IDENTICAL:
            return Detection(tier="identical", tool=call.name, level=level)
    for call in reversed(fresh):
        alike = [each for each in recent.calls if each.name == call.name]
        if (
            call.shell
            or call.name in diverse
            or len(alike) < PATTERN
            or len({each.args for each in alike}) < 2
        ):
            continue
        if not _is_productive(alike):
            return Detection(tier="pattern", tool=call.name, level=level)
        if ladder.level == 0:
            return Detection(tier="pattern", tool=call.name, level=1)
    return None


def is_storm(recent: Recent, call: Issued, *, exempt: Iterable[str] = ()) -> bool:
    """Return True if the call would be the third identical one: it must not run.

    A poll is given one more, because only its result would show that nothing has changed.
    """
    if call.name in frozenset(exempt):
        return False
    if call.polling:
        last = next((each for each in reversed(recent.calls) if _is_same(each, call)), None)
        return last is not None and _weight(recent.calls, last) >= IDENTICAL
    return _weight(recent.calls, call) >= IDENTICAL - 1


def storms(
    recent: Recent, calls: Sequence[Issued | None], *, exempt: Iterable[str] = ()
) -> tuple[bool, ...]:
    """Return ``is_storm`` for each call of a batch, each with those before it in view."""
    spared = frozenset(exempt)
    found: list[bool] = []
    for index, call in enumerate(calls):
        before = record(recent, calls[:index])
        found.append(call is not None and is_storm(before, call, exempt=spared))
    return tuple(found)


def _weight(calls: Sequence[Issued], call: Issued) -> int:
    """Return how often the call stands in the window; one that timed out counts double.

    A poll is the same call only with the same result. A shell command is so only while no other
    change lies between: running the tests again after an edit is what it is for.
    """
    weight = 0
    for each in reversed(calls):
        if _is_same(each, call):
            if not call.polling or each.result == call.result:
                weight += 2 if each.timed_out else 1
        elif call.shell and each.mutating:
            break
    return weight


def _is_same(one: Issued, other: Issued) -> bool:
    return one.name == other.name and one.args == other.args


def _is_productive(calls: list[Issued]) -> bool:
    results = {call.result for call in calls}
    return len(results) == len(calls) and all(call.ran and not call.failed for call in calls)


# ------------------------------------------------------------------ the ladder


def after_turn(
    ladder: Ladder, detection: Detection | None, *, proposed: int, suppressed: int
) -> Verdict:
    """Return what follows from a turn with so many calls, so many of them suppressed."""
    blocked = {name: turns - 1 for name, turns in ladder.blocked.items() if turns > 1}
    ladder = msgspec.structs.replace(ladder, blocked=blocked)
    note = ""
    if detection is not None:
        ladder = _raised(ladder, detection)
        if ladder.level >= LEVEL_MAX:
            return Verdict(ladder=ladder, stop="needs_human", detail=note_for(detection))
        # A suppressed call has said so already, in its result.
        note = "" if suppressed and ladder.level == 1 else note_for(detection)
    if proposed and suppressed == proposed:
        if ladder.reflected:
            return Verdict(ladder=ladder, stop="loop_detected", detail=_STUCK)
        ladder = msgspec.structs.replace(ladder, reflected=True)
    return Verdict(ladder=ladder, note=note)


def _raised(ladder: Ladder, detection: Detection) -> Ladder:
    level = max(ladder.level, detection.level)
    blocked = ladder.blocked
    if level == 2:
        blocked = {**blocked, detection.tool: BLOCKED_TURNS}
    return msgspec.structs.replace(ladder, level=level, blocked=blocked)


# ------------------------------------------------------------------ texts


_STUCK = (
    "The agent issued nothing but calls that it had been told lead nowhere, twice. Give it new "
    "direction, or a tool it lacks."
)


def note_for(detection: Detection) -> str:
    """Return what the model is told after the results; at the last level, what people are."""
    did = (
        f"the tool {detection.tool} was called with the same arguments again and again"
        if detection.tier == "identical"
        else f"the tool {detection.tool} was called many times with differing arguments"
    )
    if detection.level <= 1:
        return f"You may be going in circles: {did}. {_REFLECT}"
    if detection.level == 2:
        return (
            f"You are going in circles: {did}, although you were told. {detection.tool} does not "
            f"run for the next {BLOCKED_TURNS} turns. Do something else now: use another tool, or "
            "give the best result you have and say what is missing."
        )
    return (
        f"The agent is going in circles: {did}, after two warnings. A person has to decide: go on, "
        "change direction, or stop."
    )


def suppressed_text(name: str) -> str:
    """Return the result of a call that the storm guard kept from running."""
    return (
        f"This call did not run: {name} was issued with these very arguments several times. "
        f"{_REFLECT}"
    )


def blocked_text(name: str) -> str:
    """Return the result of a call of a tool that is taken away."""
    return (
        f"This call did not run: {name} is not available for now, because it was going in "
        "circles. Use another tool, or give the best result you have."
    )
