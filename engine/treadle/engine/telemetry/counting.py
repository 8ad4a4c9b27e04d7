"""What counts beside an engine: a task with its own connection, which nothing waits for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from opentelemetry.metrics import Meter

from treadle.engine.telemetry.instruments import Instruments
from treadle.engine.telemetry.metering import Metering
from treadle.engine.telemetry.outside import Place, beside, keep_doing
from treadle.sdk.settings import Settings


@asynccontextmanager
async def counting(
    meter: Meter | None, settings: Settings, name: str, incarnation: str
) -> AsyncGenerator[None]:
    """Count while the block runs; without a meter do nothing."""
    if meter is None:
        yield
        return
    # Once: a meter keeps what was made of it.
    instruments = Instruments(meter)

    async def count(place: Place) -> None:
        async def is_first() -> bool:
            return await place.is_oldest(incarnation, lambda process: process.measures)

        await Metering(place.js, place.subjects, instruments, is_first=is_first).run()

    async with beside(keep_doing("metrics", f"{name}-metrics", settings, count)):
        yield
