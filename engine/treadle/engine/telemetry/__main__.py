"""The projector as a process of its own.

    python -m treadle.engine.telemetry INCARNATION [live] [content]

An engine starts it and holds the other end of its input; when that ends, so does it. A process,
because encoding takes the interpreter for longer than an engine may wait; and one that the
system gives a turn after those of a run: on a machine that is full, spans come later. What it logs
the engine says.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from treadle.engine.telemetry.beside import project
from treadle.engine.telemetry.exporting import OtlpExport
from treadle.engine.telemetry.relaying import RelayHandler
from treadle.sdk.settings import Settings

NICENESS = 10


async def main(incarnation: str, *, is_live: bool, with_content: bool) -> None:
    export = OtlpExport()
    work = asyncio.create_task(
        project(Settings.from_env(), "projector", incarnation, export.send, is_live, with_content)
    )
    await asyncio.to_thread(sys.stdin.buffer.read)
    work.cancel()


if __name__ == "__main__":
    root = logging.getLogger()
    root.addHandler(RelayHandler())
    root.setLevel(logging.INFO)
    # The exporter says of each try that fails what the projector says of all of them.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    os.nice(NICENESS)
    try:
        modes = sys.argv[2:]
        asyncio.run(main(sys.argv[1], is_live="live" in modes, with_content="content" in modes))
    except KeyboardInterrupt:
        pass
