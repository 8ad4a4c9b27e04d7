"""The pages about metrics and logs: their Python runs, and the command prints what they show.

Method: each block fenced as ``python run`` is executed in order; one that connects a client finds
a real server, an engine and the page's worker.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Run, treadle

from treadle.cli.log_lines import fields
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.sdk.tracing.place import Place
from treadle.worker import capture

__all__ = ["treadle"]

DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(r"^```python run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def _program(page: Path, settings: Settings) -> None:
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    blocks = list(FENCE.finditer(text))
    assert len(blocks) == text.count("```python") > 0
    for found in blocks:
        source = "\n" * text.count("\n", 0, found.start(1)) + found[1]
        code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if "Client.connect" not in found[1]:
            eval(code, names)
            continue
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(names["worker"], workflows=[names["workflow"]], **place):
            returned = eval(code, names)
            if inspect.isawaitable(returned):
                await returned


@pytest.mark.parametrize("page", ["metrics.md", "logs.md"])
def test_the_page_runs_as_one_program_and_the_command_prints_what_it_shows(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    treadle: Run,
    caplog: pytest.LogCaptureFixture,
    page: str,
) -> None:
    caplog.set_level(logging.INFO, "treadle")  # As `treadle worker` does.
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)
    asyncio.run(asyncio.wait_for(_program(DOCS / page, settings), 50))
    if page == "logs.md":
        text = (DOCS / page).read_text(encoding="utf-8")
        shown = re.search(r"^\$ treadle run logs invoice-7\n(.*?)^```", text, re.M | re.S)
        assert shown is not None
        printed = treadle("run", "logs", "invoice-7").out.splitlines()
        # The page leaves out the times.
        assert [line.partition(" ")[2] for line in printed] == shown[1].splitlines()


def test_the_table_of_fields_names_what_a_line_may_have() -> None:
    rows = [
        line for line in (DOCS / "logs.md").read_text("utf-8").splitlines() if line[:3] == "| `"
    ]
    named = set(re.findall(r"`([a-z_.]+)`", "".join(row.split("|")[1] for row in rows)))
    record = logging.makeLogRecord(
        {
            "name": "treadle.worker",
            "msg": "worker.report-failed",
            "exc_info": (ValueError, ValueError("bad"), None),
            "place": Place("r1", "w", "s", 0, 1, "me", "0af7651916cd43dd8448eb211c80319c-01"),
        }
    )
    assert named == set(fields(record))


def test_the_bounds_on_the_page_are_those_of_the_code() -> None:
    text = (DOCS / "logs.md").read_text("utf-8").replace("\n", " ")
    assert f"{capture.LINES_MAX:,} lines or {capture.CHARS_MAX:,} characters" in text
    assert f"of a line {capture.LINE_CHARS_MAX:,} characters" in text
