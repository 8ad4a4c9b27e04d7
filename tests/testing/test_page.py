"""The page about testing runs as one program, and says what is tried.
Method: its blocks fenced as ``python run`` are executed in order, without a server."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
FENCE = re.compile(r"^```python run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.timeout(120)


async def program() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    page = PAGE.read_text(encoding="utf-8")
    for found in FENCE.finditer(page):
        source = "\n" * page.count("\n", 0, found.start(1)) + found[1]
        code = compile(source, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        returned = eval(code, names)
        if inspect.isawaitable(returned):
            await returned
    return names


def test_the_page_runs_and_its_broken_handler_is_caught() -> None:
    names = asyncio.run(program())
    assert {each.by for each in names["report"].boundaries} == {"worker", "engine"}
    assert "everything delivered twice" in names["message"]
