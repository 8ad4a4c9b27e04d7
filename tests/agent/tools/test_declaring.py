"""From a function to a tool: its schema, its options, its faults.
Method: functions as users write them, in three docstring styles, and wrong ones."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import check_tools, make_tool, tool, tool_from_schema
from treadle.worker.agent.tools.errors import InvalidTool


class Side(Enum):
    BUY = "buy"
    SELL = "sell"


class Line(BaseModel):
    sku: str
    count: int = Field(ge=1)


@dataclass
class Deps:
    region: str


@tool(idempotent=True)
async def read_order(order_id: str, limit: int = 10) -> str:
    """Read one order.

    Its lines are left out.

    Args:
        order_id: The order's number,
            e.g. "O-104".
        limit: Most notes.

    Returns:
        Something for programmers.

    Raises:
        KeyError: never told to a model.
    """
    return f"{order_id}/{limit}"


def test_name_schema_and_descriptions_come_from_the_function() -> None:
    assert read_order.name == "read_order"
    assert read_order.description == "Read one order.\n\nIts lines are left out."
    assert read_order.input_schema == {
        "type": "object",
        "properties": {
            "order_id": {"type": "string", "description": 'The order\'s number, e.g. "O-104".'},
            "limit": {"type": "integer", "description": "Most notes.", "default": 10},
        },
        "required": ["order_id"],
        "additionalProperties": False,
    }


def test_numpy_and_rest_docstrings_are_read_alike() -> None:
    def numpy(a: int, b: int) -> int:
        """Add.

        Parameters
        ----------
        a, b : int
            A summand.
        """
        return a + b

    def rest(a: int, b: int) -> int:
        """Add.

        :param a: A summand.
        :param b: A summand.
        """
        return a + b

    for function in (numpy, rest):
        made = tool(function)
        assert made.description == "Add."
        shown = made.input_schema["properties"]
        assert [shown[n]["description"] for n in "ab"] == ["A summand.", "A summand."]


def test_a_tool_is_still_the_function() -> None:
    @tool
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert add(1) == 3
    assert asyncio.run(read_order("O-1", limit=2)) == "O-1/2"


def test_options_have_the_documented_defaults() -> None:
    @tool
    def plain() -> None: ...

    assert (plain.idempotent, plain.sequential, plain.timeout_s) == (False, True, 60.0)
    assert (plain.output_bytes_max, plain.attempts_max) == (64 * 1024, 3)
    assert read_order.sequential is False
    slow = make_tool(lambda: None, name="slow", timeout=timedelta(minutes=2), sequential=False)
    assert (slow.timeout_s, slow.sequential) == (120.0, False)
    assert read_order.spec.idempotent and read_order.spec.name == "read_order"


def test_complex_types_arrive_as_what_they_are_annotated_with() -> None:
    @tool
    def order(
        lines: list[Line],
        side: Side,
        when: date,
        mode: Literal["fast", "slow"] = "fast",
        note: Annotated[str | None, Field(max_length=5, description="Kept.")] = None,
    ) -> None: ...

    bound = order.bind({"lines": [{"sku": "a", "count": 2}], "side": "buy", "when": "2026-01-31"})
    assert bound == {
        "lines": [Line(sku="a", count=2)],
        "side": Side.BUY,
        "when": date(2026, 1, 31),
        "mode": "fast",
        "note": None,
    }
    shown = order.input_schema["properties"]
    assert shown["note"]["description"] == "Kept."
    assert shown["mode"] == {"enum": ["fast", "slow"], "type": "string", "default": "fast"}


def test_any_name_may_be_a_parameter() -> None:
    @tool
    def odd(schema: str, json: str, model_config: int, _private: int, self_: str) -> None: ...

    given = {"schema": "a", "json": "b", "model_config": 1, "_private": 2, "self_": "c"}
    assert odd.bind(given) == given


def test_the_context_is_no_parameter_of_the_model() -> None:
    @tool
    async def lookup(ctx: ToolContext[Deps], key: str) -> str:
        return ctx.deps.region + key

    assert lookup.takes_context and list(lookup.input_schema["properties"]) == ["key"]


def test_methods_partials_and_callable_objects_are_tools() -> None:
    class Shop:
        def price(self, sku: str) -> int:
            """Say the price."""
            return len(sku)

        async def __call__(self, sku: str) -> int:
            return 1

    bound = tool(Shop().price)
    assert (bound.name, bound.description, bound.is_async) == ("price", "Say the price.", False)
    called = make_tool(Shop(), name="shop")
    assert called.is_async and list(called.input_schema["properties"]) == ["sku"]
    partial = make_tool(functools.partial(read_order.function, limit=3), name="three")
    assert partial.bind({"order_id": "a"})["limit"] == 3


def test_one_error_names_every_fault_of_a_tool() -> None:
    def bad(a, b: Callable[[], int], *rest: int, ctx: ToolContext[None], **more: int) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(InvalidTool) as raised:
        tool(name="no spaces", timeout=0, max_output=1, max_attempts=0)(bad)
    text = str(raised.value)
    for named in (
        "'a' has no annotation", "'b' has a type", "*rest has no schema", "**more has no schema",
        "'ctx' is a ToolContext but not the first", "'no spaces'", "timeout is 0",
        "max_output is 1", "max_attempts is 0",
    ):  # fmt: skip
        assert named in text, named
    assert len(raised.value.problems) == 9


@pytest.mark.parametrize("name", ["", "a" * 65, "a.b", "ä", "a\n"])
def test_a_name_that_the_model_apis_refuse_is_refused(name: str) -> None:
    if not name:
        return
    with pytest.raises(InvalidTool, match="1 to 64"):
        make_tool(lambda: None, name=name)


def test_more_definitions_that_cannot_serve_are_refused() -> None:
    def stream(a: int) -> Any:
        yield a

    def hidden(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def field(a: int = Field(ge=1)) -> None: ...

    def positional(a: int, /) -> None: ...

    for function, match in [
        (stream, "generator"),
        (hidden, "Nowhere"),
        (field, "Annotated"),
        (positional, "positional only"),
    ]:
        with pytest.raises(InvalidTool, match=match):
            tool(function)
    with pytest.raises(InvalidTool, match="contradict"):
        tool(effect="once", idempotent=True)(lambda: None)
    with pytest.raises(InvalidTool, match="read_only=True contradict"):
        tool(effect="once", read_only=True)(lambda: None)


def test_a_tool_that_only_reads_is_idempotent_and_not_the_other_way_round() -> None:
    @tool(read_only=True)
    def read() -> None: ...

    @tool(idempotent=True)
    def write() -> None: ...

    served = tool_from_schema("served", "", {"type": "object"}, _call, read_only=True)
    assert [(each.idempotent, each.sequential) for each in (read, served)] == [(True, False)] * 2
    assert not write.read_only


def test_two_tools_of_one_name_are_refused_with_all_other_faults() -> None:
    def bad(*a: int) -> None: ...

    twin = tool_from_schema("read_order", "", {"type": "object"}, _call)
    with pytest.raises(InvalidTool) as raised:
        check_tools([read_order, twin, bad])
    assert len(raised.value.problems) == 2
    assert "2 tools have this name" in str(raised.value)


def test_a_plain_function_becomes_a_tool_that_is_not_idempotent() -> None:
    def act(a: int) -> int:
        return a

    tools = check_tools([act, read_order])
    assert list(tools) == ["act", "read_order"] and not tools["act"].idempotent


def test_a_rule_of_approval_that_fails_asks() -> None:
    @tool(requires_approval=lambda args: args["amount"] > 100)
    def pay(amount: int, note: str = "") -> None: ...

    assert pay.needs_approval({"amount": 101}) and not pay.needs_approval({"amount": 100})
    assert pay.needs_approval({"amount": "many"})
    broken = make_tool(lambda: None, name="x", requires_approval=lambda args: args["nothing"])
    assert broken.needs_approval({})


def test_the_key_of_a_call_is_its_place_or_the_tools_own() -> None:
    place = {"run": "r", "step": "s", "call_id": "toolu_1"}
    assert read_order.idempotency_key({}, **place) == "r:s:toolu_1"
    own = make_tool(lambda: None, name="x", key=lambda args: f"order-{args['id']}")
    assert own.idempotency_key({"id": 3}, **place) == "order-3"
    none = make_tool(lambda: None, name="x", key=lambda args: None)
    with pytest.raises(TypeError, match="no text"):
        none.idempotency_key({}, **place)


async def _call(ctx: ToolContext[Any], arguments: dict[str, Any]) -> object:
    return arguments
