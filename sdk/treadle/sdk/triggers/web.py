"""What may be a webhook or an HTTP trigger, and where its secret is; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import get_args

from treadle.sdk.errors import UserError
from treadle.sdk.payload import PAYLOAD_BYTES_MAX
from treadle.sdk.triggers.trigger import Http, Scheme, Webhook
from treadle.sdk.wording import one_of, shown

SCHEMES: tuple[Scheme, ...] = get_args(Scheme)
TOLERANCE_S_MAX = 24 * 3600
TIMEOUT_S_MAX = 3600.0
"""A request that waits holds a connection of everybody on its way."""
PATH_CHARS_MAX = 200
KEPT_HEADERS_MAX = 32
_HEADER = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}\Z")
_PATH = re.compile(r"[A-Za-z0-9._~-]+(?:/[A-Za-z0-9._~-]+)*\Z")
_SECRET = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*\Z|file:/.+\Z")


def check_webhook(on: Webhook) -> None:
    """Raise ``UserError`` if no delivery could be told apart from a forged one."""
    _check_secret(on.secret)
    check_scheme(on.scheme)
    named = (on.signature_header, on.timestamp_header, on.id_header)
    if on.scheme != "hmac" and any(named):
        raise UserError(
            f"scheme {on.scheme!r} has headers of its own, so signature_header, timestamp_header "
            "and id_header would not be read. Leave them out, or choose the scheme hmac."
        )
    _check_headers(filter(None, named))
    if not 1 <= on.tolerance_s <= TOLERANCE_S_MAX:
        raise UserError(
            f"tolerance_s is {on.tolerance_s}, and must be from 1 to {TOLERANCE_S_MAX} seconds: "
            "within it a delivery that somebody has overheard can be sent again. Correct it."
        )
    _check_request(on)


def check_scheme(scheme: str) -> Scheme:
    """Return the scheme; raise ``UserError`` if there is none of that name."""
    none = (
        f"scheme {scheme!r} is none of {', '.join(SCHEMES)}, the ways in which deliveries are "
        "signed."
    )
    return one_of(scheme, SCHEMES, lambda hint: f"{none} {hint or 'Choose one of them.'}")


def check_http(on: Http) -> None:
    """Raise ``UserError`` if no request could be served like this."""
    if on.secret:
        _check_secret(on.secret)
    if on.path and (len(on.path) > PATH_CHARS_MAX or not _PATH.match(on.path)):
        raise UserError(
            f"path {shown(on.path)} cannot be that of a trigger: parts of the characters A-Z a-z "
            f"0-9 . _ ~ - with / between, {PATH_CHARS_MAX} at most, are allowed, without /api/ "
            "before them. Write it like orders/quote."
        )
    if not 0 < on.timeout_s <= TIMEOUT_S_MAX:
        raise UserError(
            f"timeout_s is {on.timeout_s:g}, and must be above 0 and at most {TIMEOUT_S_MAX:g}: "
            "a request that waits holds a connection. Correct it; the client can ask again."
        )
    _check_request(on)


def _check_request(on: Webhook | Http) -> None:
    if not 1 <= on.body_bytes_max <= PAYLOAD_BYTES_MAX:
        raise UserError(
            f"body_bytes_max is {on.body_bytes_max}, and must be from 1 to {PAYLOAD_BYTES_MAX}, "
            "because the body is the input of a run. Correct it."
        )
    if len(on.headers) > KEPT_HEADERS_MAX:
        raise UserError(
            f"headers names {len(on.headers)} headers, and {KEPT_HEADERS_MAX} are allowed: they "
            "travel with each input. Name fewer."
        )
    _check_headers(on.headers)


def _check_headers(names: Iterable[str]) -> None:
    for name in names:
        if not _HEADER.match(name):
            raise UserError(
                f"header {shown(name)} cannot be the name of one: lower case letters, digits, - "
                "and _ are expected. Write it like x-github-event."
            )


def _check_secret(secret: str) -> None:
    if not _SECRET.match(secret):
        # Not shown: it may be the secret itself.
        raise UserError(
            "secret does not say where the gateway finds the secret, which is not stored. Write "
            "env:NAME for an environment variable, or file:/PATH for a file with its whole path."
        )
