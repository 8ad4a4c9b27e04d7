"""One short trial, so that the chaos runner itself is exercised in every run of the suite.

``make chaos`` plays longer ones.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.chaos.schedule import schedule
from tests.chaos.trial import Trial
from tests.crash.stage import open_stage
from tests.nursery import ENGINES, Nursery

from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

pytestmark = pytest.mark.slow

SEED = 11
SECONDS = 5.0


def test_a_schedule_is_a_function_of_its_seed() -> None:
    assert schedule(3, 16, 1.0) == schedule(3, 16, 1.0)
    assert schedule(3, 16, 1.0) != schedule(4, 16, 1.0)


def test_every_promise_holds_in_a_short_trial(
    own_server: NatsServer, namespace: str, tmp_path: Path
) -> None:
    async def play() -> None:
        settings = Settings(url=own_server.url, namespace=namespace, message_ids=False)
        async with open_stage(own_server, nursery, settings, tmp_path) as stage:
            report = await Trial(stage, seed=SEED, seconds=SECONDS).run()
        assert not report.violations, "\n".join(report.violations)
        assert report.committed > 100
        assert sum(report.faults.values()) == len(schedule(SEED, SECONDS, 1.0))

    nursery = Nursery(*ENGINES)
    try:
        asyncio.run(play())
    finally:
        nursery.close()
