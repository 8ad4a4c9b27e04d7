"""A command that a page shows is one that there is, with arguments that it takes.

Method: each line of a page's console blocks that begins with the program's name is parsed by the
command line, and not run.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main

from treadle.cli.main import app

ROOT = Path(__file__).parents[2]
GROUP: Any = typer.main.get_command(app)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ treadle ((?:\\\n|.)*)$", re.MULTILINE)


def commands(page: Path) -> list[list[str]]:
    """Return the arguments of each command of a page, up to a pipe, a redirection or a comment."""
    found: list[list[str]] = []
    for block in CONSOLE.findall(page.read_text(encoding="utf-8")):
        for line in COMMAND.findall(block):
            words = shlex.split(line.replace("\\\n", " "), comments=True)
            ends = [at for at, word in enumerate(words) if word in ("|", ">", "&&", "&")]
            found.append(words[: min(ends, default=len(words))])
    return found


def parse(arguments: list[str]) -> None:
    """Let the command that is named take its arguments; raise if it does not."""
    command, context, words = GROUP, None, list(arguments)
    while hasattr(command, "commands"):
        context = command.make_context(command.name, words, parent=context)
        _, command, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
    command.make_context(command.name, words, parent=context)


def test_the_pages_show_commands() -> None:
    assert sum(len(commands(page)) for page in PAGES) > 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_is_taken_by_the_command_line(page: Path) -> None:
    faults: list[str] = []
    for arguments in commands(page):
        try:
            parse(arguments)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the page shows what fails
            faults.append(f"treadle {' '.join(arguments)}: {type(exc).__name__}: {exc}")
    assert faults == []
