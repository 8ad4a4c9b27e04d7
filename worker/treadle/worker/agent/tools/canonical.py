"""One byte form for equal arguments: what approvals are bound to and repetitions are found by.

Equal means equal as JSON: the order of keys does not count, and 1 is 1.0. Pure.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any, cast

from treadle.sdk.limits import DEPTH_MAX


def canonical_json(value: object) -> bytes:
    """Return the one JSON text of the value; raise ``ValueError`` if it has none."""
    return json.dumps(
        _plain(value, 0),
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
    ).encode()


def args_hash(arguments: object) -> str:
    """Return the sha256 of the canonical JSON, in hex."""
    return hashlib.sha256(canonical_json(arguments)).hexdigest()


def well_formed(text: str) -> str:
    """Return the text as UTF-8 can hold it.

    Two halves of a character that lie side by side are joined, a lone one is replaced.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def well_formed_json(value: object, depth: int = 0) -> Any:
    """Return a JSON value with all its texts well formed; raise ``ValueError`` if too deep."""
    if depth > DEPTH_MAX:
        raise ValueError(f"it is nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, dict):
        members = cast("dict[object, object]", value)
        return {well_formed_json(k): well_formed_json(v, depth + 1) for k, v in members.items()}
    if isinstance(value, (list, tuple)):
        return [well_formed_json(item, depth + 1) for item in cast("list[object]", value)]
    return value


def _plain(value: object, depth: int) -> object:
    if depth > DEPTH_MAX:
        raise ValueError(f"it is nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, str):
        return well_formed(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} is no number of JSON")
        return int(value) if value.is_integer() else value
    if isinstance(value, (list, tuple)):
        return [_plain(item, depth + 1) for item in cast("list[object]", value)]
    if isinstance(value, dict):
        members = cast("dict[object, object]", value)
        if not all(isinstance(key, str) for key in members):
            raise ValueError("a key is no text")
        return {well_formed(str(key)): _plain(item, depth + 1) for key, item in members.items()}
    raise ValueError(f"a {type(value).__name__} is no JSON value")
