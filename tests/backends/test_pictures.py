"""Pictures of one run in each backend, in the folder TRACE_SHOTS; the documentation shows them.

Method: an agent whose worker is killed in its second turn, and a browser without a window.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from tests.agent.durable.stand import stand
from tests.backends import pictures
from tests.backends.backend import Backend, Shown
from tests.backends.checking import shown
from tests.telemetry import scenarios
from tests.telemetry.researcher import playing

from treadle.engine.telemetry.exporting import OtlpExport
from treadle.sdk.settings import Settings

PACE_S = 0.15
"""Of each tool, so that there is something to see."""


@pytest.mark.timeout(600)
@pytest.mark.skipif(pictures.browser() is None, reason="there is no chromium")
def test_the_run_of_a_killed_worker_is_pictured(
    backend: Backend, settings: Settings, tmp_path: Path
) -> None:
    async def story() -> Shown:
        export = OtlpExport()
        try:
            async with stand(settings, tmp_path, playing(PACE_S), export.send) as place:
                run = await scenarios.researched(place, dies_in=1, pace_s=PACE_S)
                spans = await shown(backend, place.client, run)
                return next(span for span in spans if "worker lost" in span.name)
        finally:
            export.close()

    page = backend.page(asyncio.run(story()))
    picture = Path(os.environ["TRACE_SHOTS"]).resolve() / f"trace-{backend.name}.png"
    pictures.take(page, picture, tmp_path / "profile")
