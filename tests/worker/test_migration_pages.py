"""The pages for those who come from elsewhere run, each as one program.

Method: blocks fenced as ``python run`` are executed in order, in memory; others are compiled.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(r"^```python( run)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("source", ["temporal", "hatchet", "celery"])
def test_the_page_runs(source: str) -> None:
    page = DOCS / f"migrating-from-{source}.md"

    async def program() -> int:
        names: dict[str, Any] = {"__name__": "page"}
        count = 0
        for is_run, block in FENCE.findall(page.read_text(encoding="utf-8")):
            code = compile(block, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            returned = eval(code, names) if is_run else None
            if inspect.isawaitable(returned):
                await returned
            count += bool(is_run)
        return count

    assert asyncio.run(program()) >= 2
