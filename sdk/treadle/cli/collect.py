"""``treadle collect``: starts that become part of a run with others, and those that wait."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli import options
from treadle.cli.default_command import DefaultGroup
from treadle.cli.options import Json, Namespace, Url

if TYPE_CHECKING:
    from treadle.sdk.client import Client
    from treadle.sdk.client.windows import WindowView


class _CollectGroup(DefaultGroup):
    default = "start"


app = typer.Typer(
    name="collect",
    help="Collect starts of a workflow that is debounced or batched; list those that wait.",
    no_args_is_help=True,
    cls=_CollectGroup,
)


@app.command()
def start(
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
    """Collect a start; the word `start` may be left out."""
    from treadle.cli import exits, output, runs

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


@app.command(name="list")
def list_(
    workflow: Annotated[
        str | None, typer.Argument(metavar="[WORKFLOW]", help="Only starts of this one.")
    ] = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """List the starts that are collected and are no run yet."""
    from treadle.cli import runs

    return runs.run(url, namespace, lambda client: _list(client, workflow, as_json=json))


async def _list(client: Client, workflow: str | None, *, as_json: bool) -> int:
    from treadle.cli import exits, output

    views = await client.collected(workflow)
    if as_json:
        for view in views:
            output.emit(view)
    elif views:
        rows = [_row(view, time.time_ns() // 1_000_000) for view in views]
        output.table(("WORKFLOW", "KEY", "COLLECTED", "OPENED", "CLOSES", "STARTS"), rows)
    else:
        output.remark("no start waits to become part of a run")
    return exits.OK


def _row(view: WindowView, now_ms: int) -> tuple[str, ...]:
    from treadle.sdk.times import age

    left_ms = view.closes_ms - now_ms
    closes = f"in {age(left_ms)}" if left_ms > 0 else f"due {age(-left_ms)} ago"
    return (
        view.workflow,
        view.key or "-",
        f"{view.count} of {view.size_max}" if view.size_max else str(view.count),
        f"{age(now_ms - view.opened_ms)} ago",
        "closed, waits for an engine" if view.is_closed else closes,
        f"{view.first} to {view.last}" if view.last > view.first else str(view.first),
    )
