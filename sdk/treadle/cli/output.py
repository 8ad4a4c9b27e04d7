"""How commands speak: plain text or colours for a person, JSON lines for a program.

Results go to standard output. Errors go to standard error as text, or, with ``--json``, to
standard output as ``{"error": {"type", "message", ...}}``. Remarks go to standard error.
"""

from __future__ import annotations

import os
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

STYLES = {
    "completed": "green",
    "failed": "bold red",
    "cancelled": "yellow",
    "parked": "bold yellow",
    "running": "cyan",
    "active": "cyan",
    "requested": "dim",
    "waiting": "dim",
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


def emit(value: Any) -> None:
    """Print one JSON line."""
    import msgspec

    _write(msgspec.json.encode(value).decode() + "\n")


def say(text: str, style: str = "") -> None:
    """Print a line of result."""
    if style and sys.stdout.isatty():
        out = console()
        with out.capture() as captured:
            out.print(text, style=style, soft_wrap=True)
        _write(captured.get())
    else:
        _write(f"{text}\n")


def remark(text: str) -> None:
    """Print a line beside the result."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def notes(items: Sequence[Note]) -> None:
    """Print what a person should know, each with the command that helps."""
    for note in items:
        say(f"! {note.text}", "yellow")
        if note.command:
            say(f"    {note.command}")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in aligned columns; known status words get their colour.

    On a narrow terminal the last column wraps and the others stay whole.
    """
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, show_header=bool(headings), header_style="bold")
    for index, heading in enumerate(headings):
        widest = max([len(heading), *(len(row[index]) for row in rows)])
        is_last = index == len(headings) - 1
        grid.add_column(heading, no_wrap=not is_last, min_width=None if is_last else widest)
    for row in rows:
        grid.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    out = console()
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
    text = f"error: {error}"
    if lines:
        what = f"{type(error).__name__}: {error}"
        text = f"{lines}error: {what}. This is a bug of Treadle; please report it."
    if sys.stderr.isatty():
        console(sys.stderr).print(text, style="red", soft_wrap=True)
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
