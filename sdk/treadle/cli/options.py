"""Options that many commands share, and how their texts are read."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from treadle.sdk.errors import UserError
    from treadle.sdk.messages import MetadataValue

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON: one object, or one a line; errors too.")
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="NATS server; by default TREADLE_NATS_URL, the dev server of this directory or of "
        "one above it, or nats://127.0.0.1:4222.",
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="TREADLE_NAMESPACE or treadle by default."),
]
LABEL = "KEY=TEXT|KEY:=JSON"
LABEL_HELP = "Kept with the run, and what lists search; a number, true or false by :=. Repeatable."
RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, help="Longest wait; unlimited by default."),
]


def read_json(option: str, text: str | None) -> Any:
    """Return the value that ``JSON``, ``@file`` or ``-`` stands for; None if not given."""
    import msgspec

    if text is None:
        return None
    raw, source = _read_text(option, text)
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        # What a decoder says of a bare word is about its own reading of it.
        said = "" if text.isidentifier() else f": {exc}"
        raise _error(
            f"{option} {source} is not JSON{said}. Give JSON (a text needs its own quotes: "
            f"{option} '\"text\"'), @FILE for a file, or - for standard input."
        ) from exc


def _read_text(option: str, text: str) -> tuple[bytes, str]:
    if text == "-":
        return sys.stdin.buffer.read(), "from standard input"
    if not text.startswith("@"):
        return text.encode(errors="surrogateescape"), repr(text)
    path = Path(text[1:])
    try:
        return path.read_bytes(), f"in {path}"
    except OSError as exc:
        raise _error(
            f"{option}: {path} cannot be read: {exc.strerror or exc}. Name an existing file "
            "after the @."
        ) from exc


def read_metadata(items: list[str]) -> dict[str, MetadataValue]:
    """Return ``KEY=TEXT`` and ``KEY:=JSON`` as a dict."""
    found: dict[str, MetadataValue] = {}
    for item in items:
        key, separator, value = item.partition("=")
        if not separator or not key.rstrip(":"):
            raise _error(f"--metadata {key!r} has no value. Write it as KEY=TEXT or KEY:=JSON.")
        if key.endswith(":"):
            found[key[:-1]] = read_json(f"--metadata {key}=", value)
        else:
            found[key] = value
    return found


def read_bound(option: str, text: str | None) -> tuple[float, float]:
    """Return (raise to, raise by) of ``50`` or ``+10``; zero is not given."""
    if text is None:
        return 0, 0
    try:
        number = float(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise _error(
            f"{option} {text!r} is not a bound. Give a number greater than 0 to raise it to, or "
            "+NUMBER to raise it by."
        )
    return (0, number) if text.startswith("+") else (number, 0)


def read_count(option: str, text: str | None) -> tuple[int, int]:
    """Return (raise to, raise by) of ``50`` or ``+10``, as whole numbers."""
    to, by = read_bound(option, text)
    if to != int(to) or by != int(by):
        raise _error(f"{option} {text!r} is not a whole number of iterations. Round it.")
    from treadle.sdk.limits import ITERATIONS_MAX

    if max(to, by) > ITERATIONS_MAX:
        raise _error(
            f"{option} {text!r} is more than the {ITERATIONS_MAX} iterations that a loop may have, "
            "because each stays in the run's history. Give a smaller number."
        )
    return int(to), int(by)


def read_duration(option: str, text: str | None) -> tuple[timedelta | None, timedelta | None]:
    """Return (raise to, raise by) of ``60`` or ``+60`` seconds."""
    to_s, by_s = read_bound(option, text)
    try:
        to, by = timedelta(seconds=to_s), timedelta(seconds=by_s)
    except OverflowError as exc:
        raise _error(f"{option} {text!r} is longer than any run. Give fewer seconds.") from exc
    return to or None, by or None


_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read_delay(option: str, text: str | None) -> timedelta | None:
    """Return the delay of ``90``, ``90s``, ``15m``, ``2h`` or ``1d``; without a unit, seconds."""
    if text is None:
        return None
    number, unit_s = text, 1
    if text and text[-1] in _UNITS_S:
        number, unit_s = text[:-1], _UNITS_S[text[-1]]
    try:
        return timedelta(seconds=float(number) * unit_s)
    except (ValueError, OverflowError) as exc:
        raise _error(
            f"{option} {text!r} is not a delay. Write a number and its unit: 90s, 15m, 2h or 1d."
        ) from exc


def _error(text: str) -> UserError:
    # Imported when needed only: help and completion answer without the SDK.
    from treadle.sdk.errors import UserError

    return UserError(text)
