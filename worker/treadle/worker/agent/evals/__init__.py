"""Evaluations of an agent's trajectory: what it did on its way, not only what it answered.

    cases = load_cases("cases.yaml")
    suite = await run_suite(agent, cases)          # mocked tools, scripted or live model
    cassette = await fetch("run-id", "step")        # a durable run as an offline test
    cassette = record(result.entries)              # any other run's journal
    differences = diff(cassette, await replay(agent, cassette))

On the command line: ``treadle eval FILE --agent app.py:agent``.
"""

from treadle.worker.agent.evals.case import (
    Case,
    Expected,
    MockedResult,
    NeededEvidence,
    ScriptedCall,
    ScriptedError,
    ScriptedReply,
    ScriptedTurn,
    ScriptedUsage,
)
from treadle.worker.agent.evals.cassette import Cassette, record, replay
from treadle.worker.agent.evals.diffing import Difference, diff
from treadle.worker.agent.evals.fetching import fetch
from treadle.worker.agent.evals.metrics import Metrics, SuiteResult, measure, run_suite
from treadle.worker.agent.evals.reading import InvalidCases, cases_from, load_cases, parse_cases
from treadle.worker.agent.evals.running import CaseResult, run_case
from treadle.worker.agent.evals.scripts import RecordedModel, ScriptedModel
from treadle.worker.agent.evals.trajectory import Call, Trajectory, Turn, trajectory

__all__ = [
    "Call",
    "Case",
    "CaseResult",
    "Cassette",
    "Difference",
    "Expected",
    "InvalidCases",
    "Metrics",
    "MockedResult",
    "NeededEvidence",
    "RecordedModel",
    "ScriptedCall",
    "ScriptedError",
    "ScriptedModel",
    "ScriptedReply",
    "ScriptedTurn",
    "ScriptedUsage",
    "SuiteResult",
    "Trajectory",
    "Turn",
    "cases_from",
    "diff",
    "fetch",
    "load_cases",
    "measure",
    "parse_cases",
    "record",
    "replay",
    "run_case",
    "run_suite",
    "trajectory",
]
