"""A suite: several cases, and how the agent fares over all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from treadle.worker.agent.agent import Agent
from treadle.worker.agent.evals.case import Case
from treadle.worker.agent.evals.running import CaseResult, run_case
from treadle.worker.agent.evals.trajectory import Call, Trajectory

ESCALATED = "needs_human"
_INVALID = ("invalid", "denied", "unavailable")


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Measures of a suite; a rate is ``None`` when there is nothing to take it of."""

    cases: int
    passed: int
    completion_rate: float | None
    """Of all cases: the run completed."""
    correct_stop_rate: float | None
    """Of the cases that expect a stop reason: it was that one."""
    invalid_action_rate: float | None
    """Of the proposed calls: not allowed, or not fit to run."""
    repeated_action_rate: float | None
    """Of the proposed calls: the same tool with the same arguments as earlier in the run."""
    escalation_accuracy: float | None
    """Of the cases that expect a stop reason: a person was asked exactly if one should be."""
    replay_success: float | None
    """Of the repetitions from saved states: the same way to the same end."""
    tokens: int
    cost_usd: float
    tool_calls: int
    latency_ms: float | None
    """Median of the cases."""
    latency_ms_max: int


class SuiteResult(msgspec.Struct, frozen=True, kw_only=True):
    """The results of all cases, in their order."""

    results: tuple[CaseResult, ...]
    metrics: Metrics

    @property
    def passed(self) -> bool:
        """True if every case is as expected."""
        return all(result.passed for result in self.results)


async def run_suite(
    agent: Agent[Any],
    cases: Iterable[Case],
    *,
    deps: Any = None,
    replay: bool = True,
    on_result: Callable[[CaseResult], None] = lambda _: None,
) -> SuiteResult:
    """Run the cases one after the other; ``on_result`` hears of each as it ends."""
    results: list[CaseResult] = []
    for case in cases:
        result = await run_case(agent, case, deps=deps, replay=replay)
        on_result(result)
        results.append(result)
    return SuiteResult(results=tuple(results), metrics=measure(results))


def measure(results: Sequence[CaseResult]) -> Metrics:
    """Return the measures of these results. Pure."""
    stops = [
        (each.case.expected.stop_reason, each.stop_reason)
        for each in results
        if each.case.expected.stop_reason is not None
    ]
    proposed = [call for each in results for call in each.trajectory.calls]
    latencies = [each.duration_ms for each in results]
    used = [each.used for each in results]
    return Metrics(
        cases=len(results),
        passed=sum(each.passed for each in results),
        completion_rate=_rate(each.stop_reason == "completed" for each in results),
        correct_stop_rate=_rate(wanted == found for wanted, found in stops),
        invalid_action_rate=_rate(call.decision in _INVALID for call in proposed),
        repeated_action_rate=_rate(
            repeated for each in results for repeated in _repeated(each.trajectory)
        ),
        escalation_accuracy=_rate(
            (wanted == ESCALATED) == (found == ESCALATED) for wanted, found in stops
        ),
        replay_success=_share(
            sum(each.replays_ok for each in results), sum(each.replays for each in results)
        ),
        # All that was read or written: of the context of each call, and of its answer.
        tokens=sum(each.usage.context_tokens for each in used),
        cost_usd=sum(each.cost_micro_usd for each in used) / 1_000_000,
        tool_calls=sum(each.tool_calls for each in used),
        latency_ms=statistics.median(latencies) if latencies else None,
        latency_ms_max=max(latencies, default=0),
    )


def _repeated(found: Trajectory) -> list[bool]:
    seen: set[tuple[str, bytes]] = set()
    repeated: list[bool] = []
    for call in found.calls:
        mark = _mark(call)
        repeated.append(mark in seen)
        seen.add(mark)
    return repeated


def _mark(call: Call) -> tuple[str, bytes]:
    return call.name, msgspec.json.encode(call.args, order="sorted")


def _rate(found: Iterable[bool]) -> float | None:
    facts = list(found)
    return _share(sum(facts), len(facts))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
