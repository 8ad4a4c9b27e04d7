"""The stage of a crash test, in both variants: with message ids and without."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.crash.stage import Stage, open_stage
from tests.nursery import ENGINES, Nursery

from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

Play = Callable[[Callable[[Stage], Awaitable[None]]], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the windows without message ids to ``make test-long``."""
    for item in items:
        if item.get_closest_marker("slow") and "no-ids" in item.name:
            item.add_marker(pytest.mark.long)


@pytest.fixture(params=[True, False], ids=["ids", "no-ids"])
def message_ids(request: pytest.FixtureRequest) -> bool:
    """Whether messages carry ids: nothing may depend on it."""
    return bool(request.param)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """What starts the processes of this test process."""
    made = Nursery(*ENGINES)
    yield made
    made.close()


@pytest.fixture
def play(
    server: NatsServer, nursery: Nursery, settings: Settings, message_ids: bool, tmp_path: Path
) -> Play:
    """Play a story on a stage; afterwards every run has to have ended and to pass the audit."""
    return _player(server, nursery, replace(settings, message_ids=message_ids), tmp_path)


@pytest.fixture
def play_alone(
    own_server: NatsServer, nursery: Nursery, namespace: str, message_ids: bool, tmp_path: Path
) -> Play:
    """The same with a server of its own, for stories that kill it."""
    settings = Settings(url=own_server.url, namespace=namespace, message_ids=message_ids)
    return _player(own_server, nursery, settings, tmp_path)


def _player(server: NatsServer, nursery: Nursery, settings: Settings, directory: Path) -> Play:
    def play(story: Callable[[Stage], Awaitable[None]]) -> None:
        async def on_stage() -> None:
            async with open_stage(server, nursery, settings, directory) as stage:
                await story(stage)

        asyncio.run(on_stage())

    return play
