"""Whether traces have content: what models were told and said, what tools were given and returned.

OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT
    NO_CONTENT (default)        none
    SPAN_ONLY, SPAN_AND_EVENT   on spans
    EVENT_ONLY                  none: no log records are exported for it to be on
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_ON = frozenset({"SPAN_ONLY", "SPAN_AND_EVENT"})
_OFF = frozenset({"", "NO_CONTENT"})


def is_on(env: Mapping[str, str] = os.environ) -> bool:
    """True when the environment asks for content on spans."""
    return _given(env) in _ON


def problem(env: Mapping[str, str] = os.environ) -> str:
    """Return why what the environment asks for is not done; empty if it is."""
    given = _given(env)
    if given in _ON or given in _OFF:
        return ""
    instead = "Set it to SPAN_ONLY for content on spans, or to NO_CONTENT."
    if given == "EVENT_ONLY":
        return (
            f"{VARIABLE} is EVENT_ONLY, and no content is exported: it would be on log records, "
            f"which are not exported over OTLP. {instead}"
        )
    return (
        f"{VARIABLE} is {given[:40]!r}, which is not one of NO_CONTENT, SPAN_ONLY, EVENT_ONLY and "
        f"SPAN_AND_EVENT, and is taken as NO_CONTENT. {instead}"
    )


def warn(log: logging.Logger, env: Mapping[str, str] = os.environ) -> None:
    """Say at a process's start why what its environment asks for is not done."""
    if said := problem(env):
        log.warning("telemetry.content-is-off %s", said)


def _given(env: Mapping[str, str]) -> str:
    return env.get(VARIABLE, "").strip().upper()
