"""Responses to HTTP requests: are the status and the headers of a respond step sound?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from treadle.sdk import wording
from treadle.sdk.definition import RespondStep
from treadle.sdk.errors import Problem
from treadle.sdk.limits import HEADERS_MAX, TEXT_CHARS_MAX

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}\Z")
_VALUE = re.compile(r"[\t\x20-\x7e]*\Z")
FRAMING = frozenset(
    (
        *("connection", "content-length", "date", "keep-alive", "server", "te", "trailer"),
        *("transfer-encoding", "treadle-run-id", "upgrade"),
    )
)
"""Headers that say how a message is carried: the gateway's own."""


def problems_of(step: RespondStep, path: str) -> Iterator[Problem]:
    """Yield what is wrong with the headers of a response."""
    headers = wording.field(path, "headers")
    if len(step.headers) > HEADERS_MAX:
        yield Problem(
            headers,
            f"there are {len(step.headers)} headers, and {HEADERS_MAX} are allowed. Put the rest "
            "into the body.",
        )
        return
    for name, value in step.headers.items():
        where = wording.field(headers, wording.key(name))
        if not _NAME.match(name):
            yield Problem(where, "this cannot be the name of a header. Write it like x-request-id.")
        elif name.lower() in FRAMING:
            yield Problem(where, "the gateway sets this header itself. Leave it out.")
        elif not _VALUE.match(value) or len(value) > TEXT_CHARS_MAX:
            yield Problem(
                where,
                f"{wording.shown(value)} cannot be the value of a header: printable ASCII of at "
                f"most {TEXT_CHARS_MAX} characters is. Put anything else into the body.",
            )
    names = [name.lower() for name in step.headers]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield Problem(headers, f"header {wording.shown(name)} is there twice. Remove one.")
