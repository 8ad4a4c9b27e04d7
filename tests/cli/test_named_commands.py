"""A command that a message tells people to run is one that there is, with the options it names.
Method: every text of the source that begins with the program's name, against the commands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import typer.main
from typer import core

from treadle.cli.default_command import DefaultGroup
from treadle.cli.main import app

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"(?:^|`)treadle ([a-z][^`\n.;]*)")
"""A command stands in backquotes, or is the whole text, as in the notes about a run."""

NAMED_ANYWHERE = "treadle "


def texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts of a module, what is put into them as ``X``."""
    match node:
        case ast.JoinedStr(values=values):
            yield "".join(
                str(each.value) if isinstance(each, ast.Constant) else "X" for each in values
            )
        case ast.Constant(value=str(text)):
            yield text
        case _:
            for child in ast.iter_child_nodes(node):
                yield from texts(child)


def commands_named() -> list[tuple[str, str]]:
    found = {
        (match[1].strip(), path.relative_to(ROOT).as_posix())
        for part in ("sdk", "engine", "worker")
        for path in sorted((ROOT / part).rglob("*.py"))
        if NAMED_ANYWHERE in (source := path.read_text("utf-8"))
        for text in texts(ast.parse(source))
        for match in NAMED.finditer(text)
    }
    return sorted(found)


def test_every_command_that_a_message_names_exists_with_its_options() -> None:
    root, wrong = typer.main.get_command(app), list[str]()
    named = commands_named()
    assert len(named) > 40
    for text, file in named:
        command, words = root, text.split()
        while isinstance(command, core.TyperGroup) and words and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        if isinstance(command, core.TyperGroup):
            # The name of a group alone, or ``eval FILE``: it has a command that is left out.
            is_there = command is not root and (not words or isinstance(command, DefaultGroup))
            options = set[str]()
        else:
            is_there = True
            known = {option for parameter in command.params for option in parameter.opts}
            options = {word for word in words if word.startswith("--")} - known
        if options or not is_there:
            wrong.append(f"{file}: treadle {text}")
    assert wrong == []
