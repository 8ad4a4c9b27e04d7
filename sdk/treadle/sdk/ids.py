"""Names and ids: what they may hold, and fresh ones.

An id becomes a token of a NATS subject, so a dot, a wildcard, white space or a non-ASCII
character would address something else. It also becomes an argument of commands, where a leading
hyphen would make an option of it. They are refused at the edge, never escaped.
"""

from __future__ import annotations

import itertools
import os
import secrets

from treadle.sdk.errors import InvalidId
from treadle.sdk.identifier import is_id

_process_nonce = ""


def check_id(field: str, text: object) -> str:
    """Return the text if it is a valid id; raise ``InvalidId`` that names the field."""
    if not is_id(text):
        raise InvalidId(field, text)
    assert isinstance(text, str)
    return text


def new_run_id() -> str:
    """Return a fresh run id: 80 random bits, hexadecimal."""
    return secrets.token_hex(10)


def new_nonce() -> str:
    """Return a fresh nonce: 48 random bits of this process and a count, hexadecimal."""
    return f"{_process_nonce}{next(_nonces):x}"


def _renew() -> None:
    global _process_nonce
    _process_nonce = secrets.token_hex(6)


# One draw per process instead of one per message: the hot path takes several.
_nonces = itertools.count()
_renew()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
