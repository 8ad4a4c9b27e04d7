"""The page about debounce and batch: its Python runs, and what it names is there.
Method: the block is executed as it stands, against a real server, an engine and a worker."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest
from tests.pages import block_of, served

from treadle.engine import collect_log, collecting
from treadle.engine.collector import RECORD_KEPT_MS, REMEMBERED_S
from treadle.sdk.collected import WINDOW_COUNT, WINDOW_FIRST, WINDOW_KEY, WINDOW_LAST
from treadle.sdk.document import parse_definition
from treadle.sdk.limits import COLLECTED_MAX, COLLECTED_WAIT_S_MAX
from treadle.sdk.payload import PAYLOAD_BYTES_MAX
from treadle.sdk.settings import Settings
from treadle.sdk.testing import simulate

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "debounce-and-batch.md").read_text()


@pytest.mark.slow
def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    told = served(block_of("debounce-and-batch.md"), settings, monkeypatch)
    assert told == ["document 1 as of version 9", "3 news: rain, sun, wind"]


def test_a_batch_is_simulated_with_its_list() -> None:
    page = block_of("debounce-and-batch.md")
    run = asyncio.run(simulate(page["digest"], ["rain", "sun"], page["worker"]))
    assert run.result() == "2 news: rain, sun"
    assert 'simulate(digest, ["rain", "sun"], worker)' in PAGE


def test_a_simulated_batch_takes_nothing_but_a_list_of_inputs() -> None:
    page = block_of("debounce-and-batch.md")
    for wrong in ("rain", [], [["rain"]]):
        run = asyncio.run(simulate(page["digest"], wrong, page["worker"]))
        assert (run.status, run.reason) == ("failed", "invalid_input")


def test_what_the_page_names_is_there() -> None:
    for key in (WINDOW_FIRST, WINDOW_LAST, WINDOW_COUNT, WINDOW_KEY):
        assert f"`{key}`" in PAGE
    assert f"`max_size` is 1 to {COLLECTED_MAX}" in PAGE
    assert COLLECTED_WAIT_S_MAX == REMEMBERED_S == 7 * 24 * 3600
    assert PAYLOAD_BYTES_MAX == 512 * 1024 and "512 KiB" in PAGE
    assert RECORD_KEPT_MS == 24 * 3600 * 1_000 and "until a day after" in PAGE
    for module, line in ((collect_log, "collected-unusable"), (collecting, "collected-gone")):
        assert f"engine.{line}" in inspect.getsource(module) and f"engine.{line}" in PAGE
    written = PAGE.partition("`collect: {")[2].partition("}`")[0]
    text = f"name: w\nsteps: [{{kind: task, id: a, type: a}}]\ncollect: {{{written}}}\n"
    assert parse_definition(text, "yaml").collect is not None
