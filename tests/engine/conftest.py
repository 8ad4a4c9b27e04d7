"""The stand of an engine test, and its variants with and without message ids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from tests.engine.stand import Stand, open_stand

from treadle.sdk.settings import Settings

Play = Callable[[Callable[[Stand], Awaitable[None]]], None]


@pytest.fixture
def play(settings: Settings) -> Play:
    """Play a story on a stand."""
    return _player(settings)


@pytest.fixture(params=[True, False], ids=["ids", "no-ids"])
def play_both(settings: Settings, request: pytest.FixtureRequest) -> Play:
    """The same, with message ids and without."""
    return _player(replace(settings, message_ids=bool(request.param)))


def _player(settings: Settings) -> Play:
    def play(story: Callable[[Stand], Awaitable[None]]) -> None:
        async def on_stand() -> None:
            async with open_stand(settings) as stand:
                await story(stand)

        asyncio.run(on_stand())

    return play
