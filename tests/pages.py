"""Runs what a page of the documentation shows: its Python, as it stands."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from treadle.sdk.settings import Settings
from treadle.sdk.testing import local

DOCS = Path(__file__).resolve().parents[1] / "docs"
BOUND_S = 30.0


def block_of(name: str, fence: str = "python") -> dict[str, Any]:
    """Run the only block of a page with this fence; return the names it has defined."""
    page = DOCS / name
    fenced = rf"^```{fence}\n(.*?)^```$"
    (block,) = re.findall(fenced, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, str(page), "exec", dont_inherit=True), names)
    return names


async def program_of(name: str) -> dict[str, Any]:
    """Run the blocks of a page that are fenced as ``python run``, as one program.

    What a block raises names the line of the page.
    """
    page = DOCS / name
    text = page.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    for found in re.finditer(r"^```python run\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        source = "\n" * text.count("\n", 0, found.start(1)) + found[1]
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        returned = eval(compile(source, str(page), "exec", flags=flags, dont_inherit=True), names)
        if inspect.isawaitable(returned):
            await returned
    return names


def served(names: dict[str, Any], settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what the page's ``main`` comes to on a real server, with an engine and its worker."""
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)
    workflows = [names["workflow"]] if "workflow" in names else []

    async def story() -> Any:
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(names["worker"], workflows=workflows, **place):
            return await names["main"]()

    return asyncio.run(asyncio.wait_for(story(), BOUND_S))
