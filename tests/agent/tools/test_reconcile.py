"""A call that had begun when its worker died: run again, known, or for a person.
Method: tools with and without a reconciliation, and ones whose reconciliation fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.tools.stage import Recorder, call

from treadle.worker.agent.core.calls import ToolResult
from treadle.worker.agent.tools.calling import reconcile_call
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import check_tools, make_tool


def reconciled(timeout: float = 60, **options: Any) -> ToolResult | None:
    def refund(order: str, cents: int = 5) -> None:
        raise AssertionError("it must not run")

    made = check_tools([make_tool(refund, name="refund", timeout=timeout, **options)])
    begun = call("refund", "t1", order="O-1")
    return asyncio.run(reconcile_call(begun, made, Recorder().env(deps="db")))


def test_an_idempotent_call_is_run_again() -> None:
    assert reconciled(idempotent=True) is None


def test_an_unsafe_call_without_reconciliation_is_for_a_person() -> None:
    result = reconciled()
    assert result is not None and (result.status, result.effect) == ("unsafe", "unknown")


@pytest.mark.parametrize("is_async", [True, False])
def test_what_had_happened_is_taken_as_the_result(is_async: bool) -> None:
    seen: list[Any] = []

    def find(ctx: ToolContext[str], args: Any) -> Any:
        seen.append((ctx.deps, ctx.idempotency_key, args))
        return {"refund": 7}

    async def find_later(ctx: ToolContext[str], args: Any) -> Any:
        return find(ctx, args)

    result = reconciled(reconcile=find_later if is_async else find, effect="once")
    assert result is not None
    assert (result.status, result.content, result.effect) == ("ok", '{"refund":7}', "committed")
    assert seen == [("db", "r1:s1:t1", {"order": "O-1", "cents": 5})]


def test_what_certainly_did_not_happen_is_run() -> None:
    assert reconciled(reconcile=lambda ctx, args: None) is None


def test_a_reconciliation_that_fails_never_lets_the_call_run_again() -> None:
    def broken(ctx: object, args: object) -> object:
        raise ConnectionError("ledger is away")

    async def slow(ctx: object, args: object) -> object:
        return await asyncio.sleep(60)

    for options, why in [({"reconcile": broken}, "ledger"), ({"reconcile": slow}, "too long")]:
        result = reconciled(timeout=0.05, **options)
        assert result is not None and result.status == "unsafe" and why in str(result.content)


def test_a_tool_that_is_gone_is_for_a_person() -> None:
    result = asyncio.run(reconcile_call(call("gone"), {}, Recorder().env()))
    assert result is not None and result.status == "unsafe"
