"""A process beside an engine, for work that may take the interpreter for long.

The engine holds the other end of its input; when that ends, so does it. What it logs the engine
says (``relaying.py``).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

from treadle.engine.telemetry.outside import RETRY_S
from treadle.engine.telemetry.relaying import LINE_BYTES_MAX, RelayHandler, relay
from treadle.sdk.settings import Settings

STOP_S = 3.0
"""What such a process has to end in, once its engine does; then it is killed."""
NICENESS = 10
"""The system gives it a turn after the engine."""

_log = logging.getLogger("treadle.telemetry")


async def supervise(name: str, module: str, arguments: Sequence[str], settings: Settings) -> None:
    """Keep a process alive that runs the module, until cancelled."""
    while True:
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-m", module, *arguments],
            env={**os.environ, **settings.to_env()},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            # What a terminal sends to the engine's group is for the engine to pass on.
            start_new_session=True,
        )
        assert process.stderr is not None
        saying = asyncio.create_task(relay(process.stderr))
        try:
            status = await process.wait()
            await saying
            _log.warning("telemetry.%s-ended status=%d; again in %g s", name, status, RETRY_S)
        finally:
            await _end(process)
            saying.cancel()
        await asyncio.sleep(RETRY_S)


def serve(work: Coroutine[Any, Any, None]) -> None:
    """Do the work in this process, which an engine has started, until that engine ends."""
    root = logging.getLogger()
    root.addHandler(RelayHandler())
    root.setLevel(logging.INFO)
    os.nice(NICENESS)
    try:
        asyncio.run(_until_left(work))
    except KeyboardInterrupt:
        pass


async def _until_left(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    await asyncio.to_thread(sys.stdin.buffer.read)
    task.cancel()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
