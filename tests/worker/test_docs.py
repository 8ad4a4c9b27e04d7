"""The page about handlers runs as one program, and its tables name all there is.

Method: its blocks fenced as ``python run`` are executed in order, without a server.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.pages import program_of

from treadle.sdk import Retry
from treadle.sdk.messages import StepFailed
from treadle.sdk.testing import simulate
from treadle.worker import LoopContext, TaskContext, Worker

PAGE = Path(__file__).resolve().parents[2] / "docs" / "handlers.md"
FOR_THE_AGENT_RUNTIME = {
    *("append_record", "report_parts", "read_records", "newest_record", "shared", "address"),
}


def test_the_page_runs_and_what_it_checkpoints_counts_once_if_the_verdict_is_lost() -> None:
    names = asyncio.run(program_of("handlers.md"))
    handlers = names["worker"].handlers
    worker = Worker()
    worker.handler("fetch")(handlers["fetch"].function)

    @worker.handler("read")
    async def read(ctx: LoopContext[list[str]]) -> Any:
        verdict = await handlers["read"].function(ctx)
        if ctx.attempt == 1:
            raise ConnectionError("lost after the checkpoint")
        return verdict

    run = asyncio.run(simulate(names["workflow"], ["a", "b", "c"], worker))
    assert (run.result(), run.step("read").iterations) == (3, 3)
    failed = [each.event for each in run.history if isinstance(each.event, StepFailed)]
    assert [each.step for each in failed] == ["fetch", *["read"] * 3]


@pytest.mark.parametrize("context", [TaskContext, LoopContext])
def test_the_page_names_all_that_a_context_has(context: type) -> None:
    page = PAGE.read_text(encoding="utf-8")
    public = {name for name in dir(context) if not name.startswith("_")}
    missing = {name for name in public if not re.search(rf"\b{name}\b", page)}
    assert missing <= FOR_THE_AGENT_RUNTIME


def test_the_page_names_all_options_of_a_retry() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in Retry.__struct_fields__)
