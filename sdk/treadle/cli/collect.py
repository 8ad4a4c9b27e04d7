"""``treadle collect``: a start that becomes part of a run with others."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli import options
from treadle.cli.options import Json, Namespace, Url


def collect(
    name: Annotated[str, typer.Argument(metavar="WORKFLOW", help="One that collects its starts.")],
    input: Annotated[
        str | None, typer.Option("--input", metavar="JSON|@FILE|-", help="The start's input.")
    ] = None,
    id: Annotated[
        str, typer.Option("--id", metavar="ID", help="Collecting one id twice is one start.")
    ] = "",
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Collect a start of a workflow that is debounced or batched."""
    from treadle.cli import exits, output, runs
    from treadle.sdk.client import Client

    value = options.read_json("--input", input)

    async def collected(client: Client) -> int:
        receipt = await client.collect(name, value, id)
        if json:
            output.emit(
                {"workflow": name, "key": receipt.key, "id": id, "sequence": receipt.sequence}
            )
        else:
            of_key = f" of {receipt.key}" if receipt.key else ""
            output.say(f"collected for {name}{of_key}: start {receipt.sequence}")
        return exits.OK

    return runs.run(url, namespace, collected)
