"""How commands speak: plain text or colours for a person, JSON lines for a program.

Results go to standard output. Errors go to standard error as text, or, with ``--json``, to
standard output as ``{"error": {"type", "message", ...}}``. Remarks go to standard error.

What users' code and other clients have put into a text must not steer the terminal it is shown
on: every text for a person passes ``visible`` here.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

import typer

from treadle.cli import exits

if TYPE_CHECKING:
    from rich.console import Console

    from treadle.sdk.client import Note

WIDTH_OFF_TERMINAL = 200
"""Columns of a table in a pipe: nothing is cut that a person would search for."""
WRAPPED_CHARS_MIN = 24
"""A column that wraps is at least so wide; narrower ones are unreadable."""
CUT_CHARS_MIN = 4
"""A column that is cut to less says nothing and is left out."""
BARS_COLUMNS_MIN = 100
"""On a narrower terminal bars are left out: they break the lines they are in."""
_GAP = "  "
_typed: list[str] = []

# Control characters, and those that reorder what is shown. A line's end and a tab are harmless.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

STYLES = {
    "completed": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "parked": "bold yellow",
    "paused": "bold yellow",
    "running": "cyan",
    "active": "cyan",
    "requested": "dim",
    "unreadable": "bold red",
    "waiting": "dim",
    "not reached": "dim",
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
}


def console(stream: TextIO | None = None) -> Console:
    """Return a console on standard output or the stream; colours on a terminal only."""
    from rich.console import Console

    out = stream or sys.stdout
    width = None if out.isatty() else WIDTH_OFF_TERMINAL
    return Console(file=out, width=width, highlight=False, markup=False, emoji=False)


def width() -> int:
    """Return the columns there are."""
    return console().width


def has_bars() -> bool:
    """Whether there is room for bars beside what they are of."""
    return width() >= BARS_COLUMNS_MIN


def emit(value: Any) -> None:
    """Print one JSON line."""
    import msgspec

    _write(msgspec.json.encode(value).decode() + "\n")


def visible(text: str) -> str:
    """Return the text with control characters as JSON would escape them."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Return the text on one line, so that no value can be taken for a line of its own."""
    return visible(re.sub(r"\n\s*|\t", " ", text.rstrip()))


def say(text: str, style: str = "") -> None:
    """Print a line of result."""
    piece(f"{text}\n", style)


def piece(text: str, style: str = "") -> None:
    """Print a part of a line of result."""
    text = visible(text)
    if style and sys.stdout.isatty():
        out = console()
        with out.capture() as captured:
            out.print(text, style=style, soft_wrap=True, end="")
        _write(captured.get())
    else:
        _write(text)


def remark(text: str) -> None:
    """Print a line beside the result."""
    sys.stderr.write(f"{visible(text)}\n")
    sys.stderr.flush()


def notes(items: Sequence[Note]) -> None:
    """Print what a person should know, each with the command that helps."""
    for note in items:
        say(f"! {note.text}", "yellow")
        if note.command:
            say(f"    {command(note.command)}")


def typed_with(url: str | None, namespace: str | None) -> None:
    """Keep which server and namespace this command was told to use, for those it suggests."""
    options = ("--url", url if url and "@" not in url else None), ("--namespace", namespace)
    _typed.clear()
    _typed.extend(f" {name} {shlex.quote(value)}" for name, value in options if value)


def command(text: str) -> str:
    """Return a suggested command as it has to be typed beside this one.

    A URL with a password is left out: who has it knows it, and it is not for a screen.
    """
    place = "".join(_typed)
    parts = text.split(" && ")
    return " && ".join(f"{part}{place}" if part.startswith("treadle ") else part for part in parts)


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, cut_last: bool = False
) -> None:
    """Print rows in aligned columns; known status words get their colour.

    On a narrow terminal the last column wraps, or is cut, and the others stay whole.
    """
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    cells = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(headings, *cells, strict=True)]
    out = console()
    left = out.width - sum(width + len(_GAP) for width in widths[:-1])
    # Too narrow for the others already: the terminal breaks the lines, and nothing is lost.
    widths[-1] = min(widths[-1], left if cut_last else max(left, WRAPPED_CHARS_MIN))
    if widths[-1] < CUT_CHARS_MIN and cut_last and any(row[-1] for row in cells):
        headings, widths = headings[:-1], widths[:-1]
    grid = Table(box=None, padding=(0, len(_GAP), 0, 0), pad_edge=False, header_style="bold")
    for index, (heading, width) in enumerate(zip(headings, widths, strict=True)):
        wraps = index == len(cells[0]) - 1 and not cut_last if cells else False
        grid.add_column(heading, width=width, no_wrap=not wraps, overflow="ellipsis")
    for row in cells:
        grid.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row[: len(widths)]))
    out.width = max(out.width, sum(width + len(_GAP) for width in widths))
    with out.capture() as captured:
        out.print(grid)
    _write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def error_of(error: BaseException) -> dict[str, Any]:
    """Return an error as data: its type, its message, and the values it carries."""
    import msgspec

    values = {
        name: msgspec.to_builtins(value, enc_hook=repr)
        for name, value in vars(error).items()
        if not name.startswith("_")
    }
    return {"error": {"type": type(error).__name__, "message": str(error), **values}}


def report(error: BaseException, *, as_json: bool, with_traceback: bool = False) -> None:
    """Say what went wrong; the traceback only of a bug, for its report."""
    lines = "".join(traceback.format_exception(error)) if with_traceback else ""
    if as_json:
        data = error_of(error)
        if lines:
            data["error"]["traceback"] = lines
        emit(data)
        return
    message, kind = str(error), type(error).__name__
    text = f"error: {message or kind}"
    if lines:
        what = f"{kind}: {message}".rstrip(".: ")
        text = f"{lines}error: {what}. This is a bug of Treadle; please report it."
    if sys.stderr.isatty():
        console(sys.stderr).print(visible(text), style="red", soft_wrap=True)
    else:
        remark(text)


def _write(text: str) -> None:
    """Write to standard output; a reader who has seen enough (`| head`) ends the command well."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as exc:
        # What Python still holds must go nowhere, or the exit would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(exits.OK) from exc
