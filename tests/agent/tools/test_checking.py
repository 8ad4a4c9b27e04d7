"""From a proposed block to a checked call.
Method: blocks as models send them, right, slightly wrong and wrong, against typed tools."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from pydantic import BaseModel, HttpUrl

from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.tools.canonical import args_hash
from treadle.worker.agent.tools.checking import check_arguments, check_call, check_calls
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import check_tools, tool, tool_from_schema


class Filter(BaseModel):
    field: str
    values: list[str] = []


@tool
def search(
    query: str,
    tags: list[str] | None = None,
    limit: int = 10,
    where: Filter | None = None,
    kind: Literal["a", "b"] = "a",
    source: HttpUrl | None = None,
    numbers: list[int] | None = None,
) -> None:
    """Search."""


@tool
def nothing() -> None: ...


async def _call(ctx: ToolContext[Any], arguments: dict[str, Any]) -> object:
    return arguments


remote = tool_from_schema(
    "remote",
    "",
    {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "array"}},
        "required": ["path"],
        "additionalProperties": False,
    },
    _call,
)
TOOLS = check_tools([search, nothing, remote])


def check(input_: object, name: str = "search") -> ToolCall:
    return check_call({"type": "tool_use", "id": "t1", "name": name, "input": input_}, TOOLS)


def test_arguments_that_fit_are_executed_as_they_are() -> None:
    call = check({"query": "x", "limit": 3})
    assert call.decision == "execute" and call.input == {"query": "x", "limit": 3}
    assert call.args_hash == args_hash({"limit": 3.0, "query": "x"}) and not call.repairs
    assert check({}, "nothing").decision == "execute"
    assert check(None, "nothing").decision == "execute"


@pytest.mark.parametrize(
    ("given", "mended"),
    [
        ({"limit": None}, {}),
        ({"tags": '["a", "b"]'}, {"tags": ["a", "b"]}),
        ({"tags": {}}, {"tags": []}),
        ({"tags": "a"}, {"tags": ["a"]}),
        ({"where": '{"field": "f"}'}, {"where": {"field": "f"}}),
        ({"where": {"field": "f", "values": "v"}}, {"where": {"field": "f", "values": ["v"]}}),
        ({"source": "[the page](https://a.example/x)"}, {"source": "https://a.example/x"}),
        ({"limit": 3.0}, {"limit": 3}),
        ({"numbers": [1.0, 2]}, {"numbers": [1, 2]}),
    ],
)
def test_a_small_mistake_is_mended_and_said(given: dict[str, Any], mended: dict[str, Any]) -> None:
    call = check({"query": "x", **given})
    assert call.decision == "execute", call.reason
    assert call.input == {"query": "x", **mended}
    assert call.args_hash == args_hash(call.input) and len(call.repairs) == 1


def test_arguments_sent_as_json_text_are_read() -> None:
    assert check('{"query": "x"}').input == {"query": "x"}


def test_what_fits_is_never_mended() -> None:
    call = check({"query": "[a](b)", "tags": ["[1]", "{}"]})
    assert call.input == {"query": "[a](b)", "tags": ["[1]", "{}"]} and not call.repairs


def test_a_reason_names_each_wrong_field_and_the_schema() -> None:
    call = check({"limit": "many", "kind": "c", "extra": 1})
    assert call.decision == "invalid"
    assert call.input == {"limit": "many", "kind": "c", "extra": 1}
    for part in ("query: Field required", "limit: ", 'not "many"', "kind:", "extra:", '"required"'):
        assert part in call.reason, part
    assert "truncat" not in call.reason.lower() and "cut" not in call.reason.lower()


def test_missing_arguments_are_never_executed_as_an_empty_call() -> None:
    for given in ({}, None, "", "not json", []):
        assert check(given).decision == "invalid"


def test_a_repair_that_does_not_suffice_leaves_what_was_sent() -> None:
    call = check({"query": 7, "tags": "a"})
    assert call.decision == "invalid" and call.input["tags"] == "a" and not call.repairs
    assert "query" in call.reason


def test_text_that_looks_like_a_number_is_no_number() -> None:
    assert check({"query": "x", "limit": "5"}).decision == "invalid"
    assert check({"query": "x", "limit": True}).decision == "invalid"


def test_an_unknown_tool_is_named_with_the_one_that_was_meant() -> None:
    call = check({}, "serach")
    assert call.decision == "invalid"
    assert "'serach'" in call.reason and "'search'" in call.reason and "remote" in call.reason
    assert check({}, "x" * 500).reason.count("x") < 100


def test_half_a_character_is_replaced_on_the_way_in() -> None:
    call = check({"query": "a\ud83d", "where": '{"field": "\\ud83d"}'})
    assert call.input == {"query": "a\ufffd", "where": {"field": "\ufffd"}}
    str(call.input).encode()


def test_what_is_no_json_is_refused_with_a_stable_hash() -> None:
    one, other = check({"query": math.nan}), check({"query": math.nan})
    assert one.decision == "invalid" and one.input == {} and one.args_hash == other.args_hash
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"query": deep}
    assert "nested deeper" in check(deep).reason
    bomb = "[" * 100 + "]" * 100
    assert check({"query": "x", "tags": bomb}).decision in ("invalid", "execute")


def test_equal_mistakes_have_equal_hashes() -> None:
    assert (
        check({"limit": "x", "kind": 1}).args_hash == check({"kind": 1.0, "limit": "x"}).args_hash
    )


def test_one_id_for_two_different_calls_executes_both() -> None:
    blocks = [
        {"id": "t1", "name": "search", "input": {"query": "a"}},
        {"id": "t1", "name": "search", "input": {"query": "b"}},
    ]
    assert [c.decision for c in check_calls(blocks, TOOLS)] == ["execute", "execute"]


def test_one_id_with_the_same_arguments_executes_once() -> None:
    blocks = [
        {"id": "t1", "name": "search", "input": {"query": "a", "limit": 1}},
        {"id": "t1", "name": "search", "input": {"limit": 1.0, "query": "a"}},
        {"id": "t2", "name": "search", "input": {"query": "a", "limit": 1}},
    ]
    assert [c.decision for c in check_calls(blocks, TOOLS)] == ["execute", "duplicate", "execute"]


def test_a_tool_known_by_its_schema_alone_is_checked_and_mended_too() -> None:
    assert check({"path": "p", "lines": "a"}, "remote").input == {"path": "p", "lines": ["a"]}
    assert check({"path": "p", "lines": None}, "remote").input == {"path": "p"}
    wrong = check({"lines": [], "more": 1}, "remote")
    assert "path: Field required" in wrong.reason and "more:" in wrong.reason


def test_arguments_edited_by_an_approver_are_checked_alike() -> None:
    call = check({"query": "x"})
    edited = ToolCall(id="t1", name="search", input={"query": 1}, args_hash="")
    assert check_arguments(edited, search).decision == "invalid"
    assert check_arguments(call, search).decision == "execute"


def test_many_faults_are_not_all_listed() -> None:
    call = check({"query": "x", **{f"extra{i}": i for i in range(100)}})
    assert "and 80 more" in call.reason
