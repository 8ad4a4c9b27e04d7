"""The page about payloads: its Python moves a value that no message holds, and its numbers hold.

Method: the block is executed as it stands, against a real server, an engine and a worker.
"""

from __future__ import annotations

import pytest
from tests.pages import DOCS, block_of, served

from treadle.engine.inputs import INLINE_BYTES_MAX
from treadle.sdk.payload import GATHERED_BYTES_MAX, PAYLOAD_BYTES_MAX
from treadle.sdk.settings import Settings

PAGE = (DOCS / "payloads.md").read_text(encoding="utf-8")


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    result = served(block_of("payloads.md"), settings, monkeypatch)
    assert result == 2_000_000 > PAYLOAD_BYTES_MAX


def test_the_page_names_the_bounds_that_there_are() -> None:
    assert "**512 KiB**" in PAGE and PAYLOAD_BYTES_MAX == 512 * 1024
    assert "from 64 KiB on" in PAGE and INLINE_BYTES_MAX == 64 * 1024
    assert "up to 64 MiB" in PAGE and GATHERED_BYTES_MAX == 64 * 1024 * 1024
