"""``treadle eval FILE...`` and ``treadle eval record RUN``: one word, and a command below it."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from treadle.cli.evals import evaluate
from treadle.cli.journals import record

_DEFAULT = "run"
_HELP = ("-h", "--help")


class _DefaultGroup(TyperGroup):
    """Takes what is no command of the group for arguments of its default command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in _HELP:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="eval",
    help="Check what agents do on their way. `treadle eval FILE...` is `treadle eval run FILE...`.",
    no_args_is_help=True,
    cls=_DefaultGroup,
)
app.command(_DEFAULT)(evaluate)
app.command()(record)
