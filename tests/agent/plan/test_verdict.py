"""The gate: only a review whose last json block says DONE lets work through.
Method: properties over texts of all kinds, and the ways in which reviews go wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.worker.agent.plan import parse_verdict
from treadle.worker.agent.plan.verdict import TEXT_CHARS_MAX

DONE = '{"verdict": "DONE"}'
TEXTS = st.text() | st.lists(
    st.sampled_from(
        [
            "```json",
            "```",
            "\n",
            DONE,
            '{"verdict": "NEEDS_FIX"}',
            '"DONE"',
            "{",
            "}",
            "[",
            "\\",
            "x",
        ]
    ),
    max_size=12,
).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def block(value: Any) -> str:
    return f"```json\n{value if isinstance(value, str) else json.dumps(value)}\n```"


@given(TEXTS)
def test_every_text_has_a_verdict_that_can_be_stored(text: str) -> None:
    found = parse_verdict(text)
    assert found.verdict in ("DONE", "NEEDS_FIX")
    assert not (found.verdict == "DONE" and found.problem)
    for said in (*found.findings, found.summary, found.problem):
        said.encode()


@given(TEXTS, st.text().filter(lambda text: "```json" not in text.lower()))
def test_a_done_in_the_last_block_is_done_whatever_stands_around_it(
    before: str, after: str
) -> None:
    assert parse_verdict(f"{before}\n{block(DONE)}{after}").verdict == "DONE"


@given(TEXTS, JSON)
def test_any_other_last_block_is_not_done(before: str, value: Any) -> None:
    is_done = isinstance(value, dict) and value.get("verdict") == "DONE"
    expected = "DONE" if is_done else "NEEDS_FIX"
    assert parse_verdict(f"{block(DONE)}{before}\n{block(value)}").verdict == expected


@given(TEXTS)
def test_a_text_without_the_word_is_not_done(text: str) -> None:
    assert parse_verdict(text.replace("DONE", "").replace("\\", "")).verdict == "NEEDS_FIX"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no block"),
        ("DONE", "no block"),
        (DONE, "no block"),
        (f"```\n{DONE}\n```", "no block"),
        (f"```json\n{DONE}", "does not end"),
        (f"```json\n{DONE}\n{DONE}\n```", "more than one value"),
        ('```json\n{"verdict": "DONE"\n```', "no JSON"),
        ("```json\n" + "[" * 100_000 + "\n```", "no JSON"),
        ("```json\n" + "1" * 10_000 + "\n```", "no JSON"),
        ('```json\n{"verdict": "NEEDS_FIX", "verdict": "DONE"}\n```', "occurs twice"),
        (block([{"verdict": "DONE"}]), "no object"),
        (block({"verdict": "done"}), "'verdict'"),
        (block({"verdict": "DONE."}), "'verdict'"),
        (block({"verdict": ["DONE"]}), "'verdict'"),
        (block({"verdict": True}), "'verdict'"),
        (block({"Verdict": "DONE"}), "'verdict'"),
        (f"{block(DONE)}\nWait.\n```json {{}} ```", "'verdict'"),
        (f"{block(DONE)}\nIt should have said ```json", "no JSON"),
    ],
)
def test_what_is_not_a_readable_done_needs_a_fix_and_says_why(text: str, problem: str) -> None:
    found = parse_verdict(text)
    assert found.verdict == "NEEDS_FIX"
    assert problem in found.problem


def test_the_last_of_several_blocks_counts() -> None:
    late = f"{block({'verdict': 'NEEDS_FIX', 'findings': ['x']})} On second thought: {block(DONE)}"
    assert parse_verdict(late).verdict == "DONE"
    early = f"{block(DONE)} No: {block({'verdict': 'NEEDS_FIX', 'findings': ['x']})}"
    assert parse_verdict(early).findings == ("x",)


def test_a_fence_inside_a_text_of_the_block_does_not_end_it() -> None:
    value = {"verdict": "NEEDS_FIX", "findings": ["Close the block with ``` first."]}
    assert parse_verdict(block(value)).findings == ("Close the block with ``` first.",)


def test_findings_are_read_in_every_form_and_the_whole_review_stands_for_none() -> None:
    one = block({"verdict": "NEEDS_FIX", "findings": " a "})
    assert parse_verdict(one).findings == ("a",)
    mixed = block({"verdict": "NEEDS_FIX", "findings": ["a", {"file": "b.py"}, " "]})
    assert parse_verdict(mixed).findings == ("a", '{"file": "b.py"}')
    none = f"The tests fail. {block({'verdict': 'NEEDS_FIX', 'findings': 3})}"
    assert parse_verdict(none).findings == (none,)


def test_of_a_long_review_without_a_verdict_the_end_is_kept() -> None:
    (kept,) = parse_verdict("x" * 20_000 + " The tests fail.").findings
    assert kept.endswith("The tests fail.")
    assert len(kept) < TEXT_CHARS_MAX + 10
