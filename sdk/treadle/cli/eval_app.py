"""``treadle eval FILE...`` and ``treadle eval record RUN``: one word, and a command below it."""

from __future__ import annotations

import typer

from treadle.cli.default_command import DefaultGroup
from treadle.cli.evals import evaluate
from treadle.cli.journals import record


class _EvalGroup(DefaultGroup):
    default = "run"


app = typer.Typer(
    name="eval",
    help="Check what agents do on their way. `treadle eval FILE...` is `treadle eval run FILE...`.",
    no_args_is_help=True,
    cls=_EvalGroup,
)
app.command(_EvalGroup.default)(evaluate)
app.command()(record)
