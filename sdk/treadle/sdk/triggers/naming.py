"""Names of triggers, and the ids and metadata of the runs that they start; pure."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from treadle.sdk.errors import UserError
from treadle.sdk.identifier import ID_CHARS_MAX
from treadle.sdk.ids import check_id
from treadle.sdk.triggers.trigger import CatchUp
from treadle.sdk.wording import one_of

NAME_CHARS_MAX = ID_CHARS_MAX - len("-20260203T040506Z")
"""The id of a run that a trigger starts is its name and the time, and has to be an id."""
CATCH_UPS: tuple[CatchUp, ...] = ("skip", "last", "all")
TRIGGER_KEY = "trigger"
SCHEDULED_KEY = "scheduled_at"
"""Keys of a run's metadata that name its trigger, and the time the firing was scheduled for."""
SUBJECT_KEY = "subject"
MESSAGE_KEY = "message"
"""Keys of a run's metadata that name the message which started it: ``<stream>:<sequence>``."""
OURS = (TRIGGER_KEY, SCHEDULED_KEY, SUBJECT_KEY, MESSAGE_KEY)
"""Keys of metadata that triggers set."""
_DIGEST_CHARS = 16


def check_name(name: object) -> str:
    """Return the text if it may name a trigger; raise ``UserError`` otherwise."""
    text = check_id("trigger name", name)
    if len(text) > NAME_CHARS_MAX:
        raise UserError(
            f"trigger name {text!r} has {len(text)} characters, and {NAME_CHARS_MAX} are allowed, "
            "because the ids of its runs are made of it and a time. Choose a shorter one."
        )
    return text


def check_catch_up(catch_up: str) -> CatchUp:
    """Return the policy; raise ``UserError`` if there is none of that name."""
    none = (
        f"catch-up policy {catch_up!r} does not exist: missed firings can be left out (skip), run "
        "as one (last) or each (all)."
    )
    choose = "Choose one of the three."
    return one_of(catch_up, CATCH_UPS, lambda hint: " ".join(filter(None, (none, hint, choose))))


def run_id(name: str, firing_ms: int) -> str:
    """Return the id of the run that a firing starts: whoever starts it, it is one run."""
    return f"{name}-{_utc(firing_ms):%Y%m%dT%H%M%SZ}"


def message_run_id(name: str, stream: str, sequence: int, stored_us: int) -> str:
    """Return the id of the run that a message starts, however often it is delivered.

    Its time is a part of it: the sequences of a stream that was made anew begin anew.
    """
    return f"{name}-{digest(f'{stream}:{sequence}:{stored_us}')}"


def delivery_run_id(name: str, delivery: str) -> str:
    """Return the id of the run that a delivery or a request starts, given its own id."""
    return f"{name}-{digest(f'delivery:{delivery}')}"


def digest(text: str) -> str:
    """Return 64 bits of a text's hash, hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]


def scheduled_at(firing_ms: int) -> str:
    """Return the time of a firing as RFC 3339 has it, in UTC."""
    return f"{_utc(firing_ms):%Y-%m-%dT%H:%M:%SZ}"


def _utc(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC)
