"""The page about streams: its Python runs as one program, and its table names every chunk.

Method: each block fenced as ``python run`` is executed in order; one that connects a client finds
a real server, an engine and the page's worker. What the command prints is compared with the page.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from tests.cli.conftest import Run, treadle

from treadle.sdk import chunks
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local

__all__ = ["treadle"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "streams.md"
TEXT = PAGE.read_text(encoding="utf-8")
FENCE = re.compile(r"^```python run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def _execute(source: str, line: int, names: dict[str, Any]) -> None:
    code = compile("\n" * line + source, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    returned = eval(code, names)
    if inspect.isawaitable(returned):
        await returned


async def _program(settings: Settings) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for found in FENCE.finditer(TEXT):
        line = TEXT.count("\n", 0, found.start(1))
        if "Client.connect" not in found[1]:
            await _execute(found[1], line, names)
            continue
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(names["worker"], workflows=[names["workflow"]], **place):
            await _execute(found[1], line, names)


def test_the_page_runs_as_one_program_and_the_command_prints_what_it_shows(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, treadle: Run
) -> None:
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)
    asyncio.run(asyncio.wait_for(_program(settings), 50))
    shown = re.search(r"^\$ treadle run tail report-104 .*?\n(.*?)^\$", TEXT, re.M | re.S)
    assert shown is not None
    printed = treadle("run", "tail", "report-104").out
    assert [line.rstrip() for line in printed.splitlines()] == shown[1].splitlines()


def test_no_python_on_the_page_is_left_unrun() -> None:
    assert len(FENCE.findall(TEXT)) == TEXT.count("```python") == 3


def test_the_table_names_every_chunk_with_its_kind() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("| `")]
    table = "\n".join(rows)
    for kind in get_args(chunks.Chunk):
        assert f"`{kind.__name__}`" in table
        is_stored = kind is not chunks.Unknown
        assert (f"`{kind.__struct_config__.tag}`" in table) == is_stored
