"""``treadle run trace``: its arguments. What it shows is in ``trace_tree.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli import exits
from treadle.cli.options import Json, Namespace, RunId, Url

if TYPE_CHECKING:
    from treadle.sdk.client import Client


def trace(
    run: RunId,
    limit: Annotated[
        int,
        typer.Option("--limit", min=2, help="Iterations shown of each loop: its first and last."),
    ] = 40,
    web: Annotated[
        bool, typer.Option("--web", help="Print the link to your backend, from TREADLE_TRACE_URL.")
    ] = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Show what a run did and how long each part took, without any backend."""
    from treadle.cli import output, runs, trace_tree

    async def act(client: Client) -> int:
        found = await client.trace(run)
        if web:
            trace_tree.link(found, as_json=json)
        elif json:
            output.emit(found)
        else:
            trace_tree.show(found, limit)
        return exits.OK

    return runs.run(url, namespace, act)
