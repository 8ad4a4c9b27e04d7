"""From the bytes of a body to JSON, as strictly as the API reads it."""

from __future__ import annotations

import json
import re

from treadle.worker.agent.testing.refusal import Refused
from treadle.worker.agent.testing.wire import Json, as_object, compact

_NOT_JSON = "The request body is not valid JSON"


def parse(raw: bytes) -> Json:
    """Return the object in a body; raise ``Refused`` for anything that is not strict JSON."""
    try:
        text = raw.decode()
        value: object = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError as exc:
        raise Refused(f"{_NOT_JSON}: {exc}") from exc
    except json.JSONDecodeError as exc:
        raise Refused(f"{_NOT_JSON}: {exc}") from exc
    _check_surrogates(text, value)
    body = as_object(value)
    if body is None:
        raise Refused("Input should be a valid dictionary")
    return body


def _refuse_constant(name: str) -> object:
    raise Refused(f"{_NOT_JSON}: {name} is no JSON number")


def _check_surrogates(text: str, value: object) -> None:
    """Refuse half a surrogate pair: Python's parser lets it pass, UTF-8 cannot hold it."""
    try:
        compact(value).encode()
    except UnicodeEncodeError as exc:
        found = re.search(r"\\u[dD][89a-fA-F]", text)
        at = found.start() if found else 0
        raise Refused(
            f"{_NOT_JSON}: no low surrogate in string: line 1 column {at + 1} (char {at})"
        ) from exc
