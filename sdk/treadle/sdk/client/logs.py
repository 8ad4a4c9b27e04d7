"""What handlers have logged in a run: the lines on its output stream, each once.

Those of attempts that were given up are there too: they are what tells why.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from treadle.sdk.chunks import LEVELS, Logged, LogValue
from treadle.sdk.client.store import Store
from treadle.sdk.client.streaming import stream
from treadle.sdk.errors import UserError


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line that a handler or a tool has logged."""

    sequence: int
    """Its place in the output stream: pass it as ``after`` to go on behind it."""
    time_ms: int
    """When it was logged, by the worker's clock; milliseconds since the epoch."""
    step: str
    iteration: int
    attempt: int
    level: str
    """``debug``, ``info``, ``warning``, ``error`` or ``critical``."""
    logger: str
    text: str
    fields: dict[str, LogValue]
    """What was given as ``extra``."""
    traceback: str


async def logs(
    store: Store,
    run: str,
    *,
    step: str | None,
    iteration: int | None,
    level: str,
    after: int,
    follow: bool,
) -> AsyncIterator[LogLine]:
    """Yield the stored lines behind a sequence; with ``follow``, until the run has ended."""
    least = LEVELS.get(level.lower())
    if least is None:
        raise UserError(f"level {level!r} is none. Give one of {', '.join(LEVELS)}.")
    if iteration is not None and iteration < 0:
        raise UserError(f"iteration is {iteration}: iterations count from 0. Name one, or none.")
    said: dict[str, tuple[int, int, int]] = {}
    async for item in stream(store, run, step, after, follow=follow):
        chunk = item.chunk
        place = (chunk.iteration, chunk.attempt, chunk.n)
        last, said[item.step] = said.get(item.step), place
        if not isinstance(chunk, Logged) or place == last:
            continue
        if LEVELS.get(chunk.level, 0) < least or iteration not in (None, chunk.iteration):
            continue
        yield LogLine(
            sequence=item.sequence,
            time_ms=chunk.time_ms,
            step=item.step,
            iteration=chunk.iteration,
            attempt=chunk.attempt,
            level=chunk.level,
            logger=chunk.logger,
            text=chunk.text,
            fields=chunk.fields,
            traceback=chunk.traceback,
        )
