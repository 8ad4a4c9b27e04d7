"""A place for servers, and a look that none is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.mcp.place import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Where the test's servers leave their traces; all of them have ended with the test."""
    made = Place(tmp_path)
    yield made
    deadline = time.monotonic() + 10
    while made.alive and time.monotonic() < deadline:
        time.sleep(0.02)
    assert made.alive == [], "servers outlived the test"
