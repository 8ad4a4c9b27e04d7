"""What follows when a phase's conversation has ended. Pure.

    explore ──> findings        plan ──> plan        implement ──> review ──DONE──> end
                                                         ^            │
                                                         └─ NEEDS_FIX ┘   at most so many reviews

From one phase to the next goes a ``Brief`` and nothing else: no phase sees the conversation of
another.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, assert_never, get_args

import msgspec

from treadle.sdk.errors import clause
from treadle.worker.agent.core.entries import Stopped
from treadle.worker.agent.core.stops import Limit
from treadle.worker.agent.plan.prompts import Prompts, fill
from treadle.worker.agent.plan.verdict import (
    Verdict,
    Word,
    parse_verdict,
    unreadable,
    verdict_of,
)
from treadle.worker.agent.tools.rendering import cut

Phase = Literal["explore", "plan", "implement", "review"]
OnNeedsFix = Literal["fail", "complete"]

NEEDS_FIX = "needs_fix"
"""Type of the failure of a build whose last review was not content."""
REQUEST_BYTES_MAX = 64 * 1024
"""It stands in each phase's goal. What is longer belongs where the tools can read it."""
CARRIED_BYTES_MAX = 32 * 1024
"""Of each text that one phase leaves for the next: some 8,000 tokens, more than a report or a plan
should have. Five of them, in the goal and beside it, still fit into one record."""


class Brief(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All that a phase knows of those before it."""

    request: str
    findings: str = ""
    """What exploring has found."""
    plan: str = ""
    work: str = ""
    """The implementer's account of what was done."""
    fixes: tuple[str, ...] = ()
    """What the last review wants mended."""
    reviews: int = 0
    """Reviews so far."""


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the whole workflow came to: the output of its last step."""

    verdict: Word
    """``DONE``, or ``NEEDS_FIX`` after the last review if that completes the step."""
    reviews: int
    summary: str
    """The reviewer's."""
    findings: tuple[str, ...]
    """Of the last review."""
    work: str
    """The implementer's account."""
    plan: str


class Begin(NamedTuple):
    """Another conversation begins."""

    phase: Phase
    brief: Brief


class End(NamedTuple):
    """The step completes."""

    output: Brief | PlanResult


class Unfinished(NamedTuple):
    """The step fails: its last review was not content."""

    message: str


Following = Begin | End | Unfinished


class Gate(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and how strictly, work is reviewed."""

    max_review_cycles: int
    on_needs_fix: OnNeedsFix


def following(
    phase: Phase, brief: Brief, stop: Stopped, gate: Gate, limit: str = ""
) -> Following | None:
    """Return what follows a conversation that has stopped.

    ``None``: nothing of the plan's, the step waits or fails as that of any agent. ``limit`` names
    the bound of the step that is reached: nothing can begin any more.
    """
    if stop.reason == "needs_human":
        return None
    if phase == "review":
        return _reviewed(brief, _verdict(stop), gate, limit)
    text = _result(stop)
    if text is None:
        return None
    match phase:
        case "explore":
            return End(_with(brief, findings=text))
        case "plan":
            return End(_with(brief, plan=text))
        case "implement":
            brief = _with(brief, work=text)
            if limit:
                return _unfinished(
                    brief, unreadable(f"there was none: {limit} came first", ""), gate
                )
            return Begin("review", brief)
        case _:
            assert_never(phase)


def goal(phase: Phase, brief: Brief, prompts: Prompts) -> str:
    """Return what the phase is asked."""
    template = "fix" if phase == "implement" and brief.reviews else phase
    values = {
        "REQUEST": brief.request,
        "FINDINGS": brief.findings,
        "PLAN": brief.plan,
        "WORK": brief.work,
        "FIXES": "\n".join(f"- {fix}" for fix in brief.fixes),
    }
    return fill(getattr(prompts, template), values)


def _reviewed(brief: Brief, verdict: Verdict, gate: Gate, limit: str) -> Following:
    fixes = verdict.findings
    if verdict.problem:
        fixes = (f"The review gave no verdict: {clause(verdict.problem)}. What it said:", *fixes)
    brief = _with(brief, reviews=brief.reviews + 1, fixes=_bounded(fixes))
    if verdict.verdict == "DONE":
        return End(_resulting(brief, verdict))
    if brief.reviews < gate.max_review_cycles and not limit:
        return Begin("implement", brief)
    return _unfinished(brief, verdict, gate)


def _unfinished(brief: Brief, verdict: Verdict, gate: Gate) -> End | Unfinished:
    if gate.on_needs_fix == "complete":
        return End(_resulting(brief, verdict))
    points = "; ".join(brief.fixes) or verdict.problem
    return Unfinished(
        f"the work is not done after {brief.reviews} of {gate.max_review_cycles} reviews: {points}"
    )


def _resulting(brief: Brief, verdict: Verdict) -> PlanResult:
    return PlanResult(
        verdict=verdict.verdict,
        reviews=brief.reviews,
        summary=_short(verdict.summary),
        findings=brief.fixes,
        work=brief.work,
        plan=brief.plan,
    )


def _verdict(stop: Stopped) -> Verdict:
    # A review that was cut short at a bound has not seen everything, whatever it says.
    if stop.reason != "completed":
        return unreadable(f"it stopped with {stop.reason} {stop.detail}".strip(), stop.text)
    output = msgspec.json.decode(stop.output)
    if isinstance(output, str):
        return parse_verdict(output)
    if output is None:
        return parse_verdict(stop.text)
    return verdict_of(output, bytes(stop.output).decode())


def _result(stop: Stopped) -> str | None:
    """Return what a conversation gave as text; ``None`` if it gave nothing that counts."""
    output = msgspec.json.decode(stop.output)
    if stop.reason != "completed" and (stop.reason not in get_args(Limit) or output is None):
        return None
    if output is None:
        output = stop.text
    if not isinstance(output, str):
        output = msgspec.json.format(bytes(stop.output), indent=2).decode()
    return _short(output)


def _bounded(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return as many of the texts as may be carried, the last of them cut."""
    kept: list[str] = []
    left = CARRIED_BYTES_MAX
    for text in texts:
        if left < 512:
            return (*kept, "(More was found; this is as much as is carried.)")
        kept.append(str(cut(text, left).content))
        left -= len(kept[-1].encode())
    return tuple(kept)


def _short(text: str) -> str:
    return str(cut(text, CARRIED_BYTES_MAX).content)


def _with(brief: Brief, **changes: object) -> Brief:
    return msgspec.structs.replace(brief, **changes)
