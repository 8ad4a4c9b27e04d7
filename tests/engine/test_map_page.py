"""The page about maps: its Python runs, and its numbers are those of the code.
Method: the block is executed as it stands, against a real server, an engine and a worker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.pages import block_of, program_of, served

from treadle.engine.core.lists import LIST_BYTES_MAX
from treadle.engine.core.maps import CHUNKS_AIMED, CHUNKS_PER_PARALLEL
from treadle.engine.inputs import INLINE_BYTES_MAX
from treadle.sdk.definition import MAX_PARALLEL
from treadle.sdk.limits import ITEMS_MAX, LOSSES_MAX, PARALLEL_MAX
from treadle.sdk.payload import GATHERED_BYTES_MAX, PAYLOAD_BYTES_MAX
from treadle.sdk.settings import Settings
from treadle.sdk.testing import simulate
from treadle.worker.items import ABANDONED_MAX, SAVE_MS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "map.md").read_text()
FOUND = {"best": {"shop": "south", "price": 5}, "missing": [1]}


@pytest.fixture
def page() -> dict[str, Any]:
    return block_of("map.md")


def test_the_page_runs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, page: dict[str, Any]
) -> None:
    assert served(page, settings, monkeypatch) == FOUND


def test_a_simulation_of_it_comes_to_the_same(page: dict[str, Any]) -> None:
    run = asyncio.run(simulate(page["workflow"], "paint", page["worker"]))
    assert run.result() == FOUND


def test_the_outputs_of_the_page_are_those_of_the_code() -> None:
    asyncio.run(program_of("map.md"))


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"0 to {ITEMS_MAX:,} items" in PAGE
    assert f"({MAX_PARALLEL} unless said otherwise, {PARALLEL_MAX:,} at most)" in PAGE
    assert f"up to {CHUNKS_AIMED} items has one" in PAGE
    assert CHUNKS_PER_PARALLEL == 4 and "or four for each" in PAGE
    assert (PAYLOAD_BYTES_MAX, LIST_BYTES_MAX) == (512 << 10, 16 << 20)
    assert f"have {INLINE_BYTES_MAX >> 10} KiB together" in PAGE
    assert f"at most {GATHERED_BYTES_MAX >> 20} MiB, and" in PAGE
    assert SAVE_MS == 1_000 and "about once a second" in PAGE
    assert f"after {LOSSES_MAX + 1} losses" in PAGE
    assert ABANDONED_MAX == 8 and "when eight of them" in PAGE
