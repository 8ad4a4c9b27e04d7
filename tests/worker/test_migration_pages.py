"""The pages for those who come from elsewhere run, each as one program.

Method: blocks fenced as ``python run`` are executed in order, in memory; others are compiled.
"""

from __future__ import annotations

import ast
import asyncio
import re

import pytest
from tests.pages import DOCS, program_of

FENCE = re.compile(r"^```python(?: run)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("source", ["temporal", "hatchet", "celery", "inngest"])
def test_the_page_runs(source: str) -> None:
    name = f"migrating-from-{source}.md"
    asyncio.run(program_of(name))
    page = (DOCS / name).read_text(encoding="utf-8")
    assert page.count("```python run") >= 2
    for block in FENCE.findall(page):
        compile(block, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
