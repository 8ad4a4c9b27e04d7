"""Signatures of webhook deliveries: HMAC-SHA256, as the sender makes them. Pure.

    standard  webhook-signature: v1,<base64>     over  id.timestamp.body    (standardwebhooks.com)
    github    x-hub-signature-256: sha256=<hex>  over  body                 without a time
    stripe    stripe-signature: t=<s>,v1=<hex>   over  timestamp.body       the id is in the body
    hmac      <header>: [sha256=]<hex>           over  timestamp.body

Everything is compared in constant time, and nothing is read of a body that is not signed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import NamedTuple, assert_never

import msgspec

from treadle.sdk.triggers.trigger import Webhook

WHSEC = "whsec_"
"""Before a secret in base64, as senders of the standard scheme hand it out."""
ID_CHARS_MAX = 256


class Unsigned(Exception):
    """A delivery that cannot be shown to come from its sender; the text is for whoever sends it."""


class _Claim(NamedTuple):
    """What a delivery says of itself."""

    id: str
    timestamp: str
    signed: bytes
    signatures: tuple[str, ...]
    is_base64: bool = False


class _Event(msgspec.Struct):
    id: str = ""


def delivery_of(
    on: Webhook, secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now_s: float
) -> str:
    """Return the id of a delivery, the same whenever it is repeated; raise ``Unsigned``.

    ``headers`` are by their names in lower case.
    """
    claim = _claim(on, headers, body)
    if claim.timestamp:
        _check_time(claim.timestamp, on.tolerance_s, now_s)
    if not any(_is_signed(secret, claim) for secret in secrets):
        raise Unsigned("the signature is not that of this body. Sign it with the trigger's secret.")
    if on.scheme == "stripe":
        return _id_in(body) or _digest(claim)
    return claim.id or _digest(claim)


def _claim(on: Webhook, headers: Mapping[str, str], body: bytes) -> _Claim:
    match on.scheme:
        case "standard":
            delivery = _header(headers, "webhook-id")
            timestamp = _header(headers, "webhook-timestamp")
            listed = _header(headers, "webhook-signature").split()
            found = tuple(each[3:] for each in listed if each.startswith("v1,"))
            signed = f"{delivery}.{timestamp}.".encode() + body
            return _Claim(delivery, timestamp, signed, found, is_base64=True)
        case "github":
            signature = _header(headers, "x-hub-signature-256").removeprefix("sha256=")
            return _Claim(_header(headers, "x-github-delivery"), "", body, (signature,))
        case "stripe":
            parts = [p.split("=", 1) for p in _header(headers, "stripe-signature").split(",")]
            pairs = [(part[0].strip(), part[1]) for part in parts if len(part) == 2]
            timestamp = next((value for key, value in pairs if key == "t"), "")
            found = tuple(value for key, value in pairs if key == "v1")
            if not timestamp:
                raise Unsigned("header stripe-signature has no t=, the time. Send it.")
            return _Claim("", timestamp, f"{timestamp}.".encode() + body, found)
        case "hmac":
            timestamp = _header(headers, on.timestamp_header or "x-timestamp")
            signature = _header(headers, on.signature_header or "x-signature")
            delivery = headers.get(on.id_header or "idempotency-key", "")
            _check_id(delivery)
            signed = f"{timestamp}.".encode() + body
            return _Claim(delivery, timestamp, signed, (signature.removeprefix("sha256="),))
        case _:
            assert_never(on.scheme)


def _header(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "").strip()
    if not value:
        raise Unsigned(f"header {name} is missing, so the delivery cannot be checked. Send it.")
    if not name.endswith(("-signature", "-256")):
        _check_id(value)
    return value


def _check_id(value: str) -> None:
    if len(value) > ID_CHARS_MAX:
        raise Unsigned(f"a header has {len(value)} characters, and {ID_CHARS_MAX} are read.")


def _check_time(timestamp: str, tolerance_s: int, now_s: float) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise Unsigned("the timestamp is no number of seconds since 1970. Send Unix seconds.")
    away_s = abs(now_s - int(timestamp))
    if away_s > tolerance_s:
        raise Unsigned(
            f"the timestamp is {away_s:.0f} s away from this clock, and {tolerance_s} s are "
            "allowed, so that nobody repeats what was overheard. Send it anew, or set the clock."
        )


def _is_signed(secret: str, claim: _Claim) -> bool:
    try:
        key = (
            base64.b64decode(secret.removeprefix(WHSEC), validate=True)
            if claim.is_base64 and secret.startswith(WHSEC)
            else secret.encode()
        )
    except (binascii.Error, ValueError):
        return False
    made = hmac.new(key, claim.signed, hashlib.sha256).digest()
    text = base64.b64encode(made).decode() if claim.is_base64 else made.hex()
    # All of them, so that the time tells nothing of which one it was.
    matches = [hmac.compare_digest(text.encode(), each.encode()) for each in claim.signatures]
    return any(matches)


def _id_in(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=_Event).id[:ID_CHARS_MAX]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _digest(claim: _Claim) -> str:
    return hashlib.sha256(claim.signed).hexdigest()
