"""``treadle event``: events that are published to the namespace."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli import options
from treadle.cli.options import Json, Namespace, Url

app = typer.Typer(
    name="event", help="Publish events that steps of any run wait for.", no_args_is_help=True
)


@app.callback()
def event() -> None:
    """Publish events that steps of any run wait for."""


@app.command()
def publish(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the event: order.paid.")],
    payload: Annotated[
        str | None,
        typer.Option("--payload", metavar="JSON", help="What the steps receive; - reads stdin."),
    ] = None,
    id: Annotated[
        str,
        typer.Option("--id", metavar="ID", help="Publishing one id twice is one event."),
    ] = "",
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Publish an event; every step that waits for it completes with its payload."""
    from treadle.cli import exits, output, runs
    from treadle.sdk.client import Client

    value = options.read_json("--payload", payload)

    async def published(client: Client) -> int:
        found = await client.publish_event(name, value, id)
        if json:
            told = {"event": name, "id": id, "sequence": found.sequence}
            output.emit({**told, "repeated": found.is_repeated})
        elif found.is_repeated:
            output.say(f"{name} with id {id} was published before: event {found.sequence}")
        else:
            output.say(f"published {name}: event {found.sequence}")
        return exits.OK

    return runs.run(url, namespace, published)
