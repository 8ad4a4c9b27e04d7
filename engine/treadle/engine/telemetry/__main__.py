"""The projector as a process of its own.

    python -m treadle.engine.telemetry INCARNATION [live] [content]

An engine starts it and holds the other end of its input; when that ends, so does it. A process,
because encoding takes the interpreter for longer than an engine may wait; and one that the
system gives a turn after those of a run: on a machine that is full, spans come later. What it logs
the engine says.
"""

from __future__ import annotations

import logging
import sys

from treadle.engine.telemetry.beside import project
from treadle.engine.telemetry.exporting import OtlpExport
from treadle.engine.telemetry.supervising import serve
from treadle.sdk.settings import Settings

if __name__ == "__main__":
    # The exporter says of each try that fails what the projector says of all of them.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    incarnation, *modes = sys.argv[1:]
    settings, send = Settings.from_env(), OtlpExport().send
    serve(project(settings, "projector", incarnation, send, "live" in modes, "content" in modes))
