"""Metadata of a run: labels with values of four types, by which runs are found.

text      "acme"
number    12.5, 3      compared as numbers
bool      true
time      a text: RFC 3339 in UTC with microseconds, so that the order of texts is that of times
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from treadle.sdk.errors import InvalidPayload
from treadle.sdk.messages import MetadataValue

Given = MetadataValue | datetime
"""A value as it may be given."""
CHARS_MAX = 8192
"""A page of text: labels, not data."""
INTEGER_MAX = 2**53
"""Beyond it numbers of JSON are not exact everywhere."""


def checked(metadata: Mapping[str, Given]) -> dict[str, MetadataValue]:
    """Return the metadata as it is stored; raise ``InvalidPayload`` for any other type or size."""
    # Typed, but what reaches here at run time is whatever the caller has.
    for key in metadata:
        if not isinstance(key, str) or not key:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidPayload(
                f"metadata {key!r}",
                f"keys are texts, and this is {type(key).__name__} {key!r}",
                "Name it by a text such as 'customer'.",
            )
    values = {key: stored(f"metadata {key!r}", value) for key, value in metadata.items()}
    size_chars = sum(len(key) + len(str(value)) for key, value in values.items())
    if size_chars > CHARS_MAX:
        raise InvalidPayload(
            "metadata",
            f"it takes {size_chars} characters, and {CHARS_MAX} are allowed, because the "
            "run's document carries it through every transition",
            "Put it into the input.",
        )
    return values


def stored(what: str, value: object) -> MetadataValue:
    """Return a value as it is stored; raise ``InvalidPayload`` that names ``what``."""
    match value:
        case bool() | str():
            return value
        case int() if abs(value) <= INTEGER_MAX:
            return value
        case float() if math.isfinite(value):
            return value
        case datetime() if value.tzinfo is not None:
            return time_text(value)
        case datetime():
            problem = f"the time {value.isoformat()} has no time zone"
            remedy = "Give one, such as datetime.now(UTC)."
        case int() | float():
            problem = f"{value!r} is no number that JSON keeps exactly"
            remedy = f"Pass a finite number up to {INTEGER_MAX}, or a text."
        case _:
            problem = (
                "values are texts, numbers, bools and times, and this is "
                f"{type(value).__name__} {value!r}"
            )
            remedy = "Pass str(value), or put it into the input."
    raise InvalidPayload(what, problem, remedy)


def time_text(at: datetime) -> str:
    """Return a time as it is stored: earlier times are smaller texts."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
