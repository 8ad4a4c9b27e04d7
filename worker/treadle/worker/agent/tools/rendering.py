"""From what a tool returned or raised to what the model sees. Pure.

Never empty, never a ``repr``: a value without a JSON form is an error that names its type.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, NamedTuple, cast

import msgspec

from treadle.sdk import models
from treadle.sdk.payload_fault import non_finite_in, unencodable_in
from treadle.worker.agent.core.conversation import Block
from treadle.worker.agent.tools.canonical import well_formed, well_formed_json
from treadle.worker.agent.tools.results import Content
from treadle.worker.agent.tools.tool import OUTPUT_BYTES_MAX

NO_OUTPUT = "(no output)"
ERROR_CHARS_MAX = 2_000
"""Longer messages are usually a whole response body; its beginning names the fault."""

_encoder = msgspec.json.Encoder(enc_hook=models.to_plain)


class Unrenderable(Exception):
    """Raised for a value that cannot be shown to a model."""


class Rendered(NamedTuple):
    """What the model sees of a result."""

    content: str | list[Block]
    full_bytes: int = 0
    """Size of the whole when it was cut, else 0."""
    whole: bytes = b""
    """The whole when it was cut."""


def render(value: object, bytes_max: int) -> Rendered:
    """Return the value as content; raise ``Unrenderable``."""
    if isinstance(value, Content):
        return _blocks(value, bytes_max)
    text = _text(value)
    if not text.strip():
        return Rendered(NO_OUTPUT)
    return cut(text, bytes_max)


def cut(text: str, bytes_max: int, reference: str = "") -> Rendered:
    """Return the text, its middle left out if it is longer than that many bytes as UTF-8.

    ``reference`` says what has become of the whole.
    """
    text = well_formed(text)
    raw = text.encode()
    if len(raw) <= bytes_max:
        return Rendered(text)
    where = f"; {reference}" if reference else ""
    notice = f"\n[... {len(raw)} bytes in all: the middle is left out{where} ...]\n"
    room = max(0, bytes_max - len(notice.encode()))
    tail = room // 2
    # Bytes of a character that was cut through are dropped.
    head_text = raw[: room - tail].decode("utf-8", "ignore")
    tail_text = raw[len(raw) - tail :].decode("utf-8", "ignore") if tail else ""
    return Rendered(f"{head_text}{notice}{tail_text}", len(raw), raw)


def error_text(error: BaseException) -> str:
    """Return the exception's type and message, bounded, without a traceback."""
    name = type(error).__name__
    try:
        message = str(error)
    except Exception as broken:  # noqa: BLE001 — a user's __str__ may raise anything
        message = f"(its text cannot be read: {type(broken).__name__})"
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        message = "; ".join([message, *(error_text(each) for each in group.exceptions[:5])])
    message = well_formed(message)
    if len(message) > ERROR_CHARS_MAX:
        message = f"{message[:ERROR_CHARS_MAX]}…"
    return f"{name}: {message}" if message.strip() else name


def _text(value: object) -> str:
    kind, whole = type(value).__name__, value
    if value is None:
        return ""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise Unrenderable(f"it is {kind}; return text, or Content for an image")
    if isinstance(value, (list, tuple, set, frozenset)) and not cast("Sized", value):
        return "The tool returned an empty list."
    if isinstance(value, dict) and not value:
        return "The tool returned an empty object."
    try:
        if fault := non_finite_in(whole):
            raise Unrenderable(fault[0])
        return _encoder.encode(whole).decode()
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(whole, enc_hook=models.to_plain, str_keys=True)
        return _encoder.encode(well_formed_json(plain)).decode()
    except (TypeError, ValueError, ArithmeticError, RecursionError, msgspec.MsgspecError) as exc:
        raise Unrenderable(_why(whole, exc)) from exc


def _why(value: object, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply, or holds itself"
    fault = unencodable_in(value, _encoder)
    return fault[0] if fault else f"it is of type {type(value).__name__}: {error_text(error)}"


def _blocks(content: Content, bytes_max: int) -> Rendered:
    if not content.blocks:
        return Rendered(NO_OUTPUT)
    blocks: list[Block] = []
    full_bytes = 0
    for block in content.blocks:
        if block.get("type") == "text":
            shown = cut(str(block.get("text", "")), bytes_max)
            full_bytes += shown.full_bytes
            # The API refuses empty text blocks.
            block = {**block, "text": shown.content if str(shown.content).strip() else NO_OUTPUT}
        blocks.append(cast("dict[str, Any]", well_formed_json(block)))
    try:
        size = len(_encoder.encode(blocks))
    except (TypeError, ValueError) as exc:
        raise Unrenderable(_why(blocks, exc)) from exc
    if size > OUTPUT_BYTES_MAX:
        raise Unrenderable(f"its content takes {size} bytes, and {OUTPUT_BYTES_MAX} are allowed")
    return Rendered(blocks, full_bytes)
