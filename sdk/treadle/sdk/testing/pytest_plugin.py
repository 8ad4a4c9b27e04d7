"""pytest fixture: ``pytest_plugins = ["treadle.sdk.testing.pytest_plugin"]``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from treadle.sdk.server import NatsServer


@pytest.fixture(scope="session")
def treadle_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a real nats-server of this test session; pass it to ``local(url=...)``."""
    store: Path = tmp_path_factory.mktemp("treadle-nats")
    server = NatsServer.start(store)
    yield server.url
    server.stop()
