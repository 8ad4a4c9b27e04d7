"""``treadle approvals``: what people are asked, and their answers."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli import options
from treadle.cli.options import Json, Namespace, Url

app = typer.Typer(
    name="approvals", help="See what runs ask people, and answer.", no_args_is_help=True
)

AskId = Annotated[
    str, typer.Argument(metavar="ID", help="What is asked: `treadle approvals list`.")
]
OfRun = Annotated[
    str | None,
    typer.Option("--run", metavar="RUN", help="Only of this run; needed if an id is not unique."),
]
By = Annotated[
    str | None,
    typer.Option("--by", metavar="NAME", help="Who answers; the user of this system by default."),
]
Text = Annotated[str, typer.Option("--text", metavar="TEXT", help="Kept with the answer.")]
Hash = Annotated[
    str | None,
    typer.Option("--hash", metavar="HEX", help="Only if the arguments have this hash: its start."),
]


@app.command("list")
def list_(
    run: OfRun = None, json: Json = False, url: Url = None, namespace: Namespace = None
) -> int:
    """List what is asked, oldest first."""
    from treadle.cli import approving, runs

    return runs.run(url, namespace, lambda client: approving.list_(client, run, as_json=json))


@app.command()
def show(
    id: AskId, run: OfRun = None, json: Json = False, url: Url = None, namespace: Namespace = None
) -> int:
    """Show one, with all its arguments."""
    from treadle.cli import approving, runs

    return runs.run(url, namespace, lambda client: approving.show(client, id, run, as_json=json))


@app.command()
def approve(
    id: AskId,
    run: OfRun = None,
    hash: Hash = None,
    input: Annotated[
        str | None,
        typer.Option(
            "--input", metavar="JSON|@FILE|-", help="Run it with these arguments instead."
        ),
    ] = None,
    text: Text = "",
    by: By = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Let a call run, as it is or with other arguments."""
    from treadle.cli import approving, runs

    edited = options.read_json("--input", input)
    given = approving.Given(id, run, hash, text, by)
    return runs.run(
        url, namespace, lambda client: approving.approve(client, given, edited, as_json=json)
    )


@app.command()
def reject(
    id: AskId,
    run: OfRun = None,
    hash: Hash = None,
    text: Text = "",
    by: By = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Refuse a call or a question; the model reads the text."""
    from treadle.cli import approving, runs

    given = approving.Given(id, run, hash, text, by)
    return runs.run(url, namespace, lambda client: approving.reject(client, given, as_json=json))


@app.command()
def answer(
    id: AskId,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="The answer.")],
    run: OfRun = None,
    hash: Hash = None,
    by: By = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Answer a question; of a call, give its result instead of running it."""
    from treadle.cli import approving, runs

    given = approving.Given(id, run, hash, text, by)
    return runs.run(url, namespace, lambda client: approving.answer(client, given, as_json=json))
