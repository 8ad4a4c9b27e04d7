"""Fixture files: what is read, and that whatever is wrong is said at once, with its path.

Method: texts in the format of the fixtures, the one of the pattern's page among them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from treadle.sdk.errors import UserError
from treadle.worker.agent.evals import (
    Case,
    InvalidCases,
    MockedResult,
    load_cases,
    parse_cases,
)

SEED = {
    "case_id": "shipping_lookup_repeated_failure",
    "goal": "Investigate whether an order arrived late.",
    "mocked_tools": {
        "shipping.read_delivery_status": [
            {"status": "retryable_error", "reason": "upstream_timeout"},
            {"status": "retryable_error", "reason": "upstream_timeout"},
        ]
    },
    "expected": {
        "stop_reason": "needs_human",
        "max_tool_calls": 2,
        "forbidden_tools": ["refunds.issue_refund"],
        "requires_trace_events": ["proposal", "validation", "tool_result", "stop"],
    },
}


def problems(text: str, *, is_json: bool = False) -> dict[str, str]:
    with pytest.raises(InvalidCases) as raised:
        parse_cases(text, source="cases.yaml", is_json=is_json)
    return {problem.path: problem.text for problem in raised.value.problems}


def test_the_fixture_of_the_pattern_is_read_as_it_stands() -> None:
    (case,) = parse_cases(json.dumps(SEED), is_json=True)
    assert case.case_id == "shipping_lookup_repeated_failure"
    assert case.mocked_tools["shipping.read_delivery_status"][1] == MockedResult(
        status="retryable_error", reason="upstream_timeout"
    )
    assert case.expected.stop_reason == "needs_human"
    assert case.expected.requires_trace_events[-1] == "stop"
    assert case.model is None, "without a script the agent's own model is asked"


def test_one_case_a_list_and_a_mapping_with_cases_are_read_alike() -> None:
    one = parse_cases(json.dumps(SEED), is_json=True)
    assert parse_cases(json.dumps([SEED]), is_json=True) == one
    assert parse_cases(json.dumps({"cases": [SEED]})) == one


def test_live_is_the_model_of_the_agent() -> None:
    (case,) = parse_cases(json.dumps({**SEED, "model": "live"}), is_json=True)
    assert case.model is None


def test_a_bare_text_stands_for_the_field_that_matters_most() -> None:
    (case,) = parse_cases(
        """
case_id: short
goal: Read.
model: [{calls: [read_order]}, All is well.]
replies: {read_order: approve}
expected: {evidence: [read_order]}
"""
    )
    assert case.model is not None
    assert case.model[0].calls[0].tool == "read_order"
    assert case.model[1].text == "All is well."
    assert case.replies["read_order"].verdict == "approve"
    assert case.expected.evidence[0].tool == "read_order"


def test_everything_that_is_wrong_is_said_at_once_with_its_path() -> None:
    found = problems(
        """
- case_id: ""
  goal: x
  gaol: y
  mocked_tools:
    read: [{status: okay}, {status: ok, reason: because}, {status: error, output: 1}]
    write: []
  model: [{calls: [{tool: 1}], error: {kind: overlaoded}}]
  expected: {stop_reason: finished, max_tool_calls: -1, requires_trace_events: [proposal, prop]}
- goal: z
  expected: {}
"""
    )
    assert set(found) == {
        "[0].gaol",
        "[0].mocked_tools.read[0].status",
        "[0].model[0].calls[0].tool",
        "[0].model[0].error.kind",
        "[0].expected.stop_reason",
        "[1].case_id",
    }
    assert "Did you mean 'goal'?" in found["[0].gaol"]
    assert "Did you mean 'overloaded'?" in found["[0].model[0].error.kind"]


def test_what_a_case_means_is_judged_as_well() -> None:
    found = problems(
        """
- case_id: ""
  goal: " "
  mocked_tools:
    read:
      - {status: ok, reason: because}
      - {status: error, output: 1}
      - {status: malformed, output: 1}
    write: []
  expected: {max_tool_calls: -1, requires_trace_events: [proposal, prop]}
- {case_id: a, goal: z, expected: {}}
- {case_id: a, goal: z, expected: {max_tool_calls: 0}}
"""
    )
    assert set(found) == {
        "[0].case_id",
        "[0].goal",
        "[0].mocked_tools.read[0].reason",
        "[0].mocked_tools.read[1].output",
        "[0].mocked_tools.read[2].output",
        "[0].mocked_tools.write",
        "[0].expected.max_tool_calls",
        "[0].expected.requires_trace_events[1]",
        "[1].expected",
        "[2].case_id",
    }


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", "file"),
        ("{", "line 1, column 2"),
        ('{"case_id": "a", "case_id": "b", "goal": "g", "expected": {}}', "case_id"),
        ("3", "case"),
        ("[]", "cases"),
        ('[{"case_id": "a", "goal": 3, "expected": []}]', "[0].goal"),
    ],
)
def test_a_text_that_holds_no_case_is_refused(text: str, path: str) -> None:
    assert path in problems(text, is_json=True)


def test_a_duplicate_key_and_a_tag_in_yaml_are_refused() -> None:
    assert "goal" in problems("case_id: a\ngoal: b\ngoal: c\nexpected: {max_tool_calls: 0}\n")
    assert problems("case_id: !!python/name:os.system a\ngoal: b\nexpected: {}\n")


def test_a_file_is_named_in_what_is_wrong_with_it(tmp_path: Path) -> None:
    for name, content, says in (
        ("a.txt", b"", ".yaml, .yml or .json"),
        ("b.json", b"\xff", "not UTF-8"),
        ("c.yaml", b"", "it is empty"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name) as raised:
            load_cases(tmp_path / name)
        assert says in str(raised.value)
    with pytest.raises(UserError, match="Name an existing file"):
        load_cases(tmp_path / "none.yaml")


def test_an_example_of_every_field_is_known_to_the_reader() -> None:
    fields = set(Case.__struct_fields__)
    assert fields == {"case_id", "goal", "mocked_tools", "model", "replies", "expected"}
