"""The index as a process of its own: ``python -m treadle.engine.index INCARNATION``.

A process, because reading a hundred thousand documents takes the interpreter for longer than an
engine may wait, and its memory is given back with it.
"""

from __future__ import annotations

import sys

from treadle.engine.index.beside import keep
from treadle.engine.telemetry.supervising import serve
from treadle.sdk.settings import Settings

if __name__ == "__main__":
    serve(keep(Settings.from_env(), "index", sys.argv[1]))
