"""Work that comes again: sweeps of every engine, deliveries that are handed back."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

_log = logging.getLogger("treadle.engine")


async def sweep_every(period_s: float, sweep: Callable[[], Awaitable[Any]], failed: str) -> None:
    """Sweep again and again, until cancelled; ``failed`` is logged with what a sweep raises."""
    while True:
        # Engines that started together should not sweep together.
        await asyncio.sleep(period_s * random.uniform(0.5, 1.0))
        try:
            await sweep()
        except Exception as exc:  # noqa: BLE001 — the next sweep looks again
            _log.warning(failed, exc)


def later_ms(deliveries: int, first_ms: int, most_ms: int) -> int:
    """Return how long a delivery waits that was handed back: it doubles with each try."""
    return min(first_ms << min(deliveries - 1, 16), most_ms)
