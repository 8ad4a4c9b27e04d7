"""``treadle dead``: what failed or could not be read, and what to do about it."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli.choosing import OfWorkflow
from treadle.cli.options import Json, Namespace, Url

app = typer.Typer(
    name="dead", help="See dead letters, replay them, discard them.", no_args_is_help=True
)

Number = Annotated[int, typer.Argument(metavar="N", help="Which letter: `treadle dead list`.")]
Numbers = Annotated[
    list[int], typer.Argument(metavar="N...", help="Which letters: `treadle dead list`.")
]


@app.command("list")
def list_(
    workflow: OfWorkflow = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only of it.")] = None,
    reason: Annotated[
        str | None,
        typer.Option(
            "--reason",
            metavar="REASON",
            help="Only run_failed, corrupt_event, poison_event, unknown_run or unusable_message.",
        ),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Those that were replayed or discarded too.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    cursor: Annotated[
        int | None,
        typer.Option("--cursor", metavar="N", help="Go on where another list has ended."),
    ] = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """List dead letters, newest first."""
    from treadle.cli import letters, runs

    wanted = letters.Wanted(workflow, run, reason, all_, limit, cursor)
    place = runs.place_of(url, namespace)
    return runs.run(
        url, namespace, lambda client: letters.list_(client, wanted, place, as_json=json)
    )


@app.command()
def show(
    number: Number,
    body: Annotated[
        bool, typer.Option("--body", help="Only the bytes of the message, as they are.")
    ] = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Show a letter: what it is, why, since when, of which run, and the message."""
    from treadle.cli import letters, runs

    return runs.run(
        url,
        namespace,
        lambda client: letters.show(client, number, as_json=json, is_body=body),
    )


@app.command()
def replay(
    numbers: Numbers,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Also what was replayed, retried or discarded, or is left to a parent."
        ),
    ] = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Publish the messages of letters once more, or try their failed runs again."""
    from treadle.cli import letters, runs

    return runs.run(
        url,
        namespace,
        lambda client: letters.replay(client, numbers, again=again, as_json=json),
    )


@app.command()
def discard(
    numbers: Numbers,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Kept with the letter.")
    ] = "",
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Mark letters as done; they are kept, and leave the list."""
    from treadle.cli import letters, runs

    return runs.run(
        url, namespace, lambda client: letters.discard(client, numbers, reason, as_json=json)
    )
