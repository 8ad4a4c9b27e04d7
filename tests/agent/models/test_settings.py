"""Models are found by name and priced by a table; the small parts below hold their promises.

Method: the functions themselves; a package is missing because its import is refused.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.models.wire import ask

from treadle.sdk.errors import UserError
from treadle.worker.agent.core.conversation import Usage
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.models.openai import OpenAICompatibleModel
from treadle.worker.agent.models.prices import Price, PriceTable
from treadle.worker.agent.models.resolve import resolve_model
from treadle.worker.agent.models.sse import EVENT_BYTES_MAX, SseDecoder, SseEvent
from treadle.worker.agent.models.text import Halves, MalformedAnswer, parse_json, whole_characters
from treadle.worker.agent.testing import FakeAnthropic, text, turn

# ------------------------------------------------------------------ names


def test_a_model_is_found_by_provider_and_name() -> None:
    model = resolve_model("anthropic:claude-x")
    assert isinstance(model, AnthropicModel)
    assert (model.provider, model.name) == ("anthropic", "claude-x")
    assert resolve_model(model) is model


def test_a_local_server_is_found_by_its_address() -> None:
    model = resolve_model("openai:org/qwen@8b:free@http://127.0.0.1:1234/v1")
    assert isinstance(model, OpenAICompatibleModel)
    assert (model.provider, model.name) == ("openai", "org/qwen@8b:free")


def test_the_environment_gives_key_and_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        with FakeAnthropic([turn(text("ok"))], api_key="from-env") as fake:
            for name, value in fake.env.items():
                monkeypatch.setenv(name, value)
            model = resolve_model("anthropic:claude-x")
            await model.respond(ask())
            await model.close()

    asyncio.run(story())
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert resolve_model("openai:m").name == "m"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("claude-x", "names no provider"),
        ("anthropic:", "names no model"),
        ("openai:@http://x", "names no model"),
        ("other:m", "provider 'other', which is not known"),
        ("openai:m", "has no address"),
    ],
)
def test_a_name_that_says_too_little_is_refused_with_what_to_write(
    name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UserError, match=words) as refused:
        resolve_model(name)
    assert "Write" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "package"), [("anthropic:m", "anthropic"), ("openai:m@http://x/v1", "httpx2")]
)
def test_a_missing_package_says_which_extra_to_install(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("anthropic", "openai", "faults"):
        monkeypatch.delitem(sys.modules, f"treadle.worker.agent.models.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=r"pip install 'treadle\[agent\]'") as refused:
        resolve_model(name)
    assert package in str(refused.value)


# ------------------------------------------------------------------ prices


def test_a_cost_counts_every_kind_of_token_and_is_rounded_up() -> None:
    table = PriceTable({"m": Price(input=3, output=15, cache_read=0.3, cache_write=3.75)})
    usage = Usage(input_tokens=1000, output_tokens=10, cache_read_tokens=101, cache_write_tokens=4)
    assert table.cost_micros("m-2", usage) == 3000 + 150 + 31 + 15


def test_an_unknown_model_has_no_cost_and_nothing_is_built_in() -> None:
    assert PriceTable({}).cost_micros("claude-opus-5", Usage(input_tokens=1)) is None
    assert PriceTable({"gpt": Price(input=1, output=1)}).cost_micros("claude", Usage()) is None


def test_the_longest_start_of_the_name_decides() -> None:
    prices = {
        "a": Price(input=1, output=1),
        "a-b": Price(input=5, output=1),
        "": Price(input=9, output=9),
    }
    table = PriceTable(prices)
    costs = [table.cost_micros(name, Usage(input_tokens=10)) for name in ("a-b-c", "a-c", "z")]
    assert costs == [50, 10, 90]


def test_cached_input_without_a_price_costs_as_much_as_any_other() -> None:
    table = PriceTable({"m": Price(input=2, output=1)})
    assert table.cost_micros("m", Usage(cache_read_tokens=10, cache_write_tokens=1)) == 22


@given(
    tokens=st.integers(0, 10**12),
    price=st.decimals(0, 1000, places=4, allow_nan=False, allow_infinity=False),
)
def test_a_cost_is_exact(tokens: int, price: float) -> None:
    table = PriceTable({"m": Price(input=float(price), output=0)})
    exact = tokens * int(price * 10_000)
    assert table.cost_micros("m", Usage(input_tokens=tokens)) == -(-exact // 10_000)


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_a_price_that_is_no_sum_of_money_is_refused(wrong: float) -> None:
    with pytest.raises(UserError, match="cache_read"):
        Price(input=1, output=1, cache_read=wrong)


# ------------------------------------------------------------------ streams and texts

STREAM = 'event: a\ndata: {"x":\ndata: 1}\n\n: note\n\ndata:two ü🧵\n\nid: 3\n\nevent: b\ndata\n\n'
EVENTS = [SseEvent("a", '{"x":\n1}'), SseEvent("", "two ü🧵"), SseEvent("b", "")]


@given(
    cuts=st.lists(st.integers(0, len(STREAM.encode()) * 2), max_size=20),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_events_are_the_same_wherever_the_stream_is_cut(cuts: list[int], line_end: str) -> None:
    # What follows lets a last "\r" be told from the first half of "\r\n".
    raw = STREAM.replace("\n", line_end).encode() + b":"
    places = sorted({0, len(raw), *(cut for cut in cuts if cut < len(raw))})
    decoder = SseDecoder()
    pieces = [raw[a:b] for a, b in itertools.pairwise(places)]
    assert [event for piece in pieces for event in decoder.feed(piece)] == EVENTS


def test_an_event_without_its_end_is_not_given_out() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: 1\n") == []
    assert decoder.feed(b"") == []


def test_an_event_without_bounds_is_refused() -> None:
    decoder = SseDecoder()
    piece = b"x" * (EVENT_BYTES_MAX // 4)
    for _ in range(4):
        decoder.feed(piece)
    with pytest.raises(ValueError, match="larger than"):
        decoder.feed(b"x")


def test_lines_without_bounds_are_refused_too() -> None:
    decoder = SseDecoder()
    piece = b"data: " + b"x" * (EVENT_BYTES_MAX // 4) + b"\n"
    with pytest.raises(ValueError, match="larger than"):
        for _ in range(5):
            decoder.feed(piece)


@given(text=st.text(), cut=st.integers(0, 50))
def test_text_is_whole_however_its_halves_arrive(text: str, cut: int) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    halves = [
        units[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(units), 2)
    ]
    joiner = Halves()
    shown = joiner.push("".join(halves[:cut])) + joiner.push("".join(halves[cut:]))
    assert whole_characters("".join(halves)) == text
    assert shown == text


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_json_is_read_as_it_was_written(value: object) -> None:
    assert parse_json(json.dumps(value), "x") == value


@pytest.mark.parametrize("raw", ["", "{", "NaN", "[1,]", "{'a': 1}", "1 2", "[" * 100_000])
def test_what_is_no_json_is_refused(raw: str) -> None:
    with pytest.raises(MalformedAnswer, match="it is no JSON"):
        parse_json(raw, "it")
