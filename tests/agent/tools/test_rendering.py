"""What the model sees of a result: never empty, never a repr, never too much.
Method: values of every kind, through the executor."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.agent.tools.stage import Recorder, call, execute, run_one

from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.tools.declaring import make_tool, tool
from treadle.worker.agent.tools.rendering import cut
from treadle.worker.agent.tools.results import Content, Ended, Terminate


class Model(BaseModel):
    when: date


class Record(msgspec.Struct):
    n: int


@dataclass
class Data:
    n: int


class Opaque:
    pass


def returning(value: Any, **options: Any) -> ToolResult:
    async def give() -> Any:
        return value

    return run_one(make_tool(give, name="give", **options))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("text", "text"),
        (7, "7"),
        (True, "true"),
        ({"a": [1, 2.5]}, '{"a":[1,2.5]}'),
        (Model(when=date(2026, 1, 31)), '{"when":"2026-01-31"}'),
        (Record(1), '{"n":1}'),
        ([Data(1)], '[{"n":1}]'),
        ({"k": Model(when=date(2026, 1, 31))}, '{"k":{"when":"2026-01-31"}}'),
    ],
)
def test_text_is_shown_as_it_is_and_data_as_json(value: object, shown: str) -> None:
    result = returning(value)
    assert (result.status, result.content) == ("ok", shown)


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        (None, "(no output)"),
        ("", "(no output)"),
        (" \n\t", "(no output)"),
        ([], "The tool returned an empty list."),
        ((), "The tool returned an empty list."),
        ({}, "The tool returned an empty object."),
        (Content([]), "(no output)"),
        (Terminate(None), "(no output)"),
    ],
)
def test_an_empty_result_is_an_explicit_fact(value: object, fact: str) -> None:
    assert returning(value).content == fact


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Opaque(), "Opaque"),
        ({"a": [Opaque()]}, "a[0] is of type Opaque"),
        (b"raw", "bytes"),
        (float("nan"), "nan"),
        ({1j: 2}, "complex"),
        (lambda: None, "function"),
    ],
)
def test_a_result_without_a_json_form_is_an_error_that_names_its_type(
    value: object, named: str
) -> None:
    result = returning(value)
    assert (result.status, result.error_type, result.effect) == (
        "error", "unrenderable", "committed",
    )  # fmt: skip
    assert named in str(result.content) and "object at 0x" not in str(result.content)


def test_a_value_that_holds_itself_is_an_error() -> None:
    value: list[Any] = []
    value.append(value)
    assert returning(value).error_type == "unrenderable"


def test_a_long_output_keeps_its_beginning_and_its_end_with_a_notice() -> None:
    result = returning("A" * 100_000 + "Z" * 100_000)
    text = str(result.content)
    assert result.full_bytes == 200_000 and len(text.encode()) <= 64 * 1024
    assert text.startswith("A" * 30_000) and text.endswith("Z" * 30_000)
    assert "200000 bytes in all" in text


def test_the_whole_of_a_long_output_is_kept_and_referred_to() -> None:
    recorder = Recorder()

    async def keep(call: ToolCall, whole: bytes) -> str:
        recorder.kept[call.id] = whole
        return f"output/{call.id}"

    @tool
    def give() -> str:
        return "ä" * 100_000

    result = execute([call("give", "t1")], [give], keep=keep)[0]
    assert recorder.kept == {"t1": "ä".encode() * 100_000}
    assert "output/t1" in str(result.content) and len(str(result.content).encode()) <= 64 * 1024


def test_a_cap_relative_to_the_window_goes_before_the_tools_own() -> None:
    @tool
    def give() -> str:
        return "x" * 50_000

    result = execute([call("give")], [give], output_bytes_max=1_000)[0]
    assert len(str(result.content)) <= 1_000 and result.full_bytes == 50_000


@given(st.text(alphabet="aé€😀", max_size=400), st.integers(120, 400))
def test_a_cut_never_splits_a_character(text: str, bytes_max: int) -> None:
    shown = cut(text, bytes_max)
    raw = str(shown.content).encode()
    assert len(raw) <= bytes_max and "\ufffd" not in str(shown.content)
    if len(text.encode()) <= bytes_max:
        assert shown.content == text and not shown.full_bytes


@pytest.mark.parametrize(
    "value",
    ["a\ud83d", {"k\ude00": ["\ud83d"]}, Record, Content([{"type": "text", "text": "\ud83d"}])],
)
def test_half_a_character_in_a_result_is_replaced(value: Any) -> None:
    result = returning({"x": "\ud83d"} if value is Record else value)
    assert result.status == "ok"
    msgspec.json.encode(result)
    assert "\ufffd" in str(result.content)


def test_an_error_is_bounded_and_readable_whatever_it_is() -> None:
    class Awkward(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    async def act(n: int) -> None:
        raise [ValueError("x" * 100_000), Awkward(), ValueError("\ud83d"), KeyError()][n]

    acting = make_tool(act, name="act")
    results = execute([call("act", str(n), n=n) for n in range(4)], [acting])
    assert len(str(results[0].content)) < 2_100
    assert "cannot be read" in str(results[1].content)
    assert results[2].content == "ValueError: \ufffd" and results[3].content == "KeyError"


def test_content_blocks_pass_as_they_are() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    result = returning(Content([{"type": "text", "text": "see"}, image]))
    assert result.content == [{"type": "text", "text": "see"}, image]
    empty = returning(Content([{"type": "text", "text": ""}, image]))
    assert empty.content == [{"type": "text", "text": "(no output)"}, image]
    big = returning(Content([{"type": "image", "data": "A" * 300_000}]))
    assert big.error_type == "unrenderable"


def test_a_tool_can_ask_that_the_turn_be_the_last() -> None:
    done = returning(Terminate({"a": 1}))
    assert done.terminate and done.content == '{"a":1}'
    assert returning("x", terminate=True).terminate and not returning("x").terminate
    assert not returning(Opaque(), terminate=True).terminate


def test_a_tool_can_say_itself_how_its_call_ended() -> None:
    result = returning(Ended(result="no", status="refused", error_type="closed"))
    assert (result.status, result.effect, result.error_type) == ("refused", "none", "closed")
    assert returning(Ended(result="", status="error")).effect == "unknown"


def test_a_plain_function_may_return_an_awaitable() -> None:
    async def later() -> str:
        return "x"

    assert run_one(make_tool(lambda: later(), name="late")).content == "x"
