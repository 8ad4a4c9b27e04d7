"""Whether and how an engine that the command starts exports traces: by the environment."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from treadle.sdk.errors import UserError
from treadle.sdk.tracing import capture

if TYPE_CHECKING:
    from treadle.engine.telemetry.beside import Tracing

_log = logging.getLogger("treadle.telemetry")

MODES = {"": False, "final": False, "live": True}


def tracing() -> Tracing:
    """Return how an engine exports; raise ``UserError`` if it should and cannot."""
    from treadle.engine.telemetry import exporting
    from treadle.engine.telemetry.beside import Tracing

    if not exporting.is_wanted():
        return Tracing()
    exporting.check_extra()
    capture.warn(_log)
    return Tracing(as_process=True, is_live=are_live(), with_content=capture.is_on())


def are_live() -> bool:
    """Return what TREADLE_TRACE_MODE asks for; raise ``UserError`` for what is no mode."""
    mode = os.environ.get("TREADLE_TRACE_MODE", "").strip().lower()
    if mode not in MODES:
        raise UserError(
            f"TREADLE_TRACE_MODE is {mode!r}, which is no mode. Set it to final (runs and steps "
            "are exported as they end) or live (as they begin, too)."
        )
    return MODES[mode]
