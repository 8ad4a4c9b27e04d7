"""The projector as a process of its own.

    python -m treadle.engine.telemetry INCARNATION [live] [content]

An engine starts it and holds the other end of its input; when that ends, so does it. A process,
because encoding takes the interpreter for longer than an engine may wait; and one that the
system gives a turn after those of a run: on a machine that is full, spans come later.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from treadle.engine.telemetry.beside import project
from treadle.engine.telemetry.exporting import OtlpExport
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
    logging.basicConfig(
        format="%(asctime)s %(levelname)-7s %(message)s", level=logging.INFO, stream=sys.stderr
    )
    # The exporter says of each try that fails what the projector says of all of them.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    os.nice(NICENESS)
    try:
        modes = sys.argv[2:]
        asyncio.run(main(sys.argv[1], is_live="live" in modes, with_content="content" in modes))
    except KeyboardInterrupt:
        pass
