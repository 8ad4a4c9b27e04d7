"""Values of users to JSON and back: inputs, outputs, checkpoints, signals.

msgspec Structs, dataclasses, pydantic models and plain JSON types (with datetime, Decimal, UUID,
bytes and enums as msgspec writes them), also inside lists and dicts. Refused by the sender, before
anything is stored: what has no JSON form, what the receiver would refuse, and what would change
silently (NaN and Infinity would become null). Never pickle: stored data names no class.

How pydantic is reached is in ``models.py``; where in a value a fault lies, in ``payload_fault.py``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol, TypeVar, overload

import msgspec

from treadle.sdk import models
from treadle.sdk.errors import InvalidPayload
from treadle.sdk.limits import DEPTH_MAX
from treadle.sdk.payload_fault import non_finite_in, unencodable_in

PAYLOAD_BYTES_MAX = 512 * 1024
"""Half of NATS' default ``max_payload`` of 1 MiB: an envelope and headers come on top, and an
iteration's task carries its last failure beside the input."""

GATHERED_BYTES_MAX = 64 * 1024 * 1024
"""Of what is put together from several messages, such as the results of a map: whoever reads it
holds all of it."""

MESSAGE_BYTES_LEAST = 2 * PAYLOAD_BYTES_MAX
"""What a server has to take for every payload of the size above to be stored."""

DECODERS_MAX = 1024
"""Types whose decoders are kept. A process handles a few for each task type."""

T = TypeVar("T")

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
#: What each bracket does to the depth, indexed by its byte.
_DEEPER = [1 if byte in b"[{" else -1 for byte in range(256)]


class _Decoder(Protocol):
    def decode(self, raw: bytes, /) -> Any: ...


def small_server(max_payload_bytes: int) -> tuple[str, str] | None:
    """Return what is wrong with a server that takes only so much, and the remedy; or None."""
    if max_payload_bytes >= MESSAGE_BYTES_LEAST:
        return None
    return (
        f"the server takes messages of at most {max_payload_bytes} bytes (max_payload), and values "
        f"may have {PAYLOAD_BYTES_MAX}: a step with a larger one than fits fails",
        f"set max_payload: {MESSAGE_BYTES_LEAST} in the server's configuration",
    )


def encode(what: str, value: object) -> bytes:
    """Return the value as JSON; raise ``InvalidPayload`` that names ``what``."""
    try:
        raw = _encoder.encode(value)
    except RecursionError as exc:
        raise _too_deep(what) from exc
    except (TypeError, ValueError, ArithmeticError, msgspec.MsgspecError) as exc:
        raise InvalidPayload(what, *(unencodable_in(value, _encoder) or _unencodable(exc))) from exc
    _check_bounds(what, raw)
    # msgspec writes NaN as null: only a value with a null in its JSON has to be looked through.
    if b"null" in raw and (fault := non_finite_in(value)):
        raise InvalidPayload(what, *fault)
    return raw


@overload
def decode(
    what: str, raw: bytes | msgspec.Raw, type_: type[T], *, bytes_max: int = PAYLOAD_BYTES_MAX
) -> T: ...
@overload
def decode(
    what: str, raw: bytes | msgspec.Raw, type_: Any = Any, *, bytes_max: int = PAYLOAD_BYTES_MAX
) -> Any: ...
def decode(
    what: str, raw: bytes | msgspec.Raw, type_: Any = Any, *, bytes_max: int = PAYLOAD_BYTES_MAX
) -> Any:
    """Return the value of that type that the JSON holds; raise ``InvalidPayload`` naming ``what``.

    The JSON may come from anyone: its size and depth are checked before it is read.
    """
    decoder = _decoder_of(what, type_)
    raw = bytes(raw)
    _check_bounds(what, raw, bytes_max)
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as exc:
        why = f"it does not fit {models.name_of(type_)}: {exc}"
        raise InvalidPayload(what, why, "Correct the value, or the type that is expected") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidPayload(what, f"it is not JSON: {exc}", "Send JSON in UTF-8") from exc
    except RecursionError as exc:
        raise _too_deep(what) from exc


def json_schema(type_: Any) -> dict[str, Any]:
    """Return the JSON schema of a type; raise ``InvalidPayload`` if it can have none."""
    try:
        return models.json_schema(type_)
    except (TypeError, ValueError, NameError) as exc:
        raise _unsupported("JSON schema", type_, exc) from exc


def check_bytes(what: str, size_bytes: int) -> None:
    """Raise ``InvalidPayload`` that names ``what`` if that is too large for one message."""
    if size_bytes > PAYLOAD_BYTES_MAX:
        raise InvalidPayload(
            what,
            f"it takes {size_bytes} bytes as JSON, and {PAYLOAD_BYTES_MAX} are allowed, because it "
            "travels in one message",
            "Keep large data in a file or object store and pass a reference to it",
        )


def _check_bounds(what: str, raw: bytes, bytes_max: int = PAYLOAD_BYTES_MAX) -> None:
    if len(raw) > bytes_max:
        is_one = bytes_max == PAYLOAD_BYTES_MAX
        raise InvalidPayload(
            what,
            f"it takes {len(raw)} bytes as JSON, and {bytes_max} are allowed, because it "
            f"{'travels in one message' if is_one else 'is held in memory as a whole'}",
            "Keep large data in a file or object store and pass a reference to it",
        )
    if _depth(raw) > DEPTH_MAX:
        raise _too_deep(what)


def _depth(raw: bytes) -> int:
    """Return how deep the JSON is nested; exact only above the limit."""
    brackets = raw.count(b"[") + raw.count(b"{")
    if brackets <= DEPTH_MAX:
        return brackets
    outside_strings = _STRING.sub(b"", raw).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_DEEPER.__getitem__, outside_strings)), default=0)


def _too_deep(what: str) -> InvalidPayload:
    return InvalidPayload(
        what,
        f"it is nested deeper than {DEPTH_MAX} levels, or holds itself",
        "Flatten it: pass references or a list of entries",
    )


def _unencodable(exc: Exception) -> tuple[str, str]:
    return f"it has no JSON form: {exc}", "Correct the value, or how its type is serialised"


def _unsupported(what: str, type_: Any, exc: Exception) -> InvalidPayload:
    remedy = "Use a msgspec Struct, a dataclass, a pydantic model or plain JSON types"
    if isinstance(exc, NameError):
        # Annotations are text until they are looked up, and only a module's names are found.
        remedy = "Define or import it at the top of the module, not in a function or TYPE_CHECKING"
    return InvalidPayload(
        what, f"values of type {models.name_of(type_)} cannot be read from JSON: {exc}", remedy
    )


def _decoder_of(what: str, type_: Any) -> _Decoder:
    try:
        hash(type_)
    except TypeError:  # An Annotated type with unhashable metadata.
        build = _build_decoder
    else:
        build = _cached_decoder
    try:
        return build(type_)
    except (TypeError, ValueError, NameError) as exc:
        raise _unsupported(what, type_, exc) from exc


def _build_decoder(type_: Any) -> _Decoder:
    try:
        return msgspec.json.Decoder(type_, dec_hook=models.from_plain)
    except TypeError:
        # msgspec has no unions of models; pydantic may.
        adapter = models.adapter(type_)
        if adapter is None:
            raise
        return adapter


_cached_decoder = lru_cache(maxsize=DECODERS_MAX)(_build_decoder)
_encoder = msgspec.json.Encoder(enc_hook=models.to_plain)
