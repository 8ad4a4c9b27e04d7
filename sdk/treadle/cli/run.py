"""``treadle run``: the arguments of its commands. What they do is in ``runs.py``."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli import acting, options, talking, timelines
from treadle.cli.journals import journal
from treadle.cli.options import Json, Namespace, RunId, Timeout, Url
from treadle.cli.run_list import list_
from treadle.cli.run_logs import logs
from treadle.cli.run_show import show
from treadle.cli.trace import trace

app = typer.Typer(name="run", help="Start runs, look at them, act on them.", no_args_is_help=True)
app.command("list")(list_)
app.command()(journal)
app.command()(logs)
app.command()(show)
app.command()(trace)

_VALUE = "JSON|@FILE|-"


@app.command()
def start(
    name: Annotated[str, typer.Argument(metavar="WORKFLOW", help="A registered workflow.")],
    input: Annotated[
        str | None, typer.Option("--input", metavar=_VALUE, help="The run's input.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="RUN", help="Starting one id twice gives one run; --each: RUN-1, ..."
        ),
    ] = None,
    metadata: Annotated[
        list[str] | None,
        typer.Option("--metadata", metavar=options.LABEL, help=options.LABEL_HELP),
    ] = None,
    lane: Annotated[
        str | None,
        typer.Option("--lane", metavar="NAME", help="Of a lane's runs one is active at a time."),
    ] = None,
    singleton: Annotated[
        str | None,
        typer.Option(
            "--singleton",
            metavar="queue|skip|cancel_older",
            help="What it does if its lane is taken.",
        ),
    ] = None,
    priority: Annotated[
        int,
        typer.Option("--priority", metavar="N", help="-100 to 100; higher ones wait less."),
    ] = 0,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME", help="Begin then, as 2027-01-31T09:00:00+01:00."),
    ] = None,
    in_: Annotated[
        str | None, typer.Option("--in", metavar="DELAY", help="Begin after 90s, 15m, 2h or 1d.")
    ] = None,
    version_policy: Annotated[
        str | None,
        typer.Option(
            "--version-policy", metavar="pin|latest", help="Whether its loops take newer versions."
        ),
    ] = None,
    each: Annotated[
        str | None,
        typer.Option("--each", metavar="FILE|-", help="A run for each line: its input as JSON."),
    ] = None,
    id_by: Annotated[
        str | None,
        typer.Option(
            "--id-by", metavar="EXPR", help="Of --each: the run's id, such as input['order']."
        ),
    ] = None,
    at_once: Annotated[
        int, typer.Option("--at-once", metavar="N", min=1, max=256, help="Of --each.")
    ] = 16,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show what happens until it ends.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end, print the result.")
    ] = False,
    timeout: Timeout = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Start a run of a registered workflow."""
    from treadle.cli import runs

    value = options.read_json("--input", input)
    pairs = options.read_metadata(metadata or [])
    request = runs.Start(
        name,
        value,
        id,
        pairs,
        lane=lane,
        singleton=singleton,
        priority=priority,
        start_at=at,
        start_after=options.read_delay("--in", in_),
        version_policy=version_policy,
        watch=watch,
        wait=wait,
        timeout_s=timeout,
    )
    if each is not None:
        from treadle.cli.each import Each
        from treadle.cli.each import start as start_each

        lines = Each(each, id_by or "", at_once)
        return start_each(url, namespace, request, lines, as_json=json)
    if id_by is not None:
        from treadle.sdk.errors import UserError

        raise UserError("--id-by is of --each. Give --id, or the file with --each.")
    return runs.run(url, namespace, lambda client: runs.start(client, request, as_json=json))


@app.command()
def children(run: RunId, json: Json = False, url: Url = None, namespace: Namespace = None) -> int:
    """List the runs that the steps of a run have started."""
    from treadle.cli import runs

    return runs.run(url, namespace, lambda client: runs.children(client, run, as_json=json))


@app.command()
def watch(
    run: RunId,
    timeout: Timeout = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Show what happened and happens in a run, until it ends."""
    from treadle.cli import runs

    return runs.run(url, namespace, lambda client: runs.watch(client, run, timeout, as_json=json))


@app.command()
def tail(
    run: RunId,
    step: Annotated[
        str | None, typer.Option("--step", metavar="STEP", help="Only what this step says.")
    ] = None,
    after: Annotated[
        int,
        typer.Option("--after", metavar="SEQ", min=0, help="Go on behind this sequence; 0 is all."),
    ] = 0,
    follow: Annotated[
        bool,
        typer.Option("--follow/--no-follow", help="Until the run has ended, or what is there."),
    ] = True,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Show what a run says while it works: text, reports, tools."""
    from treadle.cli import runs, tail

    return runs.run(
        url,
        namespace,
        lambda client: tail.tail(client, run, step, after, follow=follow, as_json=json),
    )


@app.command()
def history(run: RunId, json: Json = False, url: Url = None, namespace: Namespace = None) -> int:
    """Print every stored event of a run, as it was sent."""
    from treadle.cli import runs

    return runs.run(url, namespace, lambda client: runs.history(client, run, as_json=json))


@app.command()
def result(
    run: RunId,
    timeout: Timeout = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Wait for a run's end and print its result as JSON."""
    from treadle.cli import runs

    return runs.run(url, namespace, lambda client: runs.result(client, run, timeout, as_json=json))


acting.add_to(app)


@app.command()
def signal(
    run: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the signal.")],
    payload: Annotated[
        str | None, typer.Option("--payload", metavar=_VALUE, help="What the run receives.")
    ] = None,
    id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Two signals with one id count as one."),
    ] = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Send a signal to a run."""
    from treadle.cli import runs

    value = options.read_json("--payload", payload)
    return runs.run(
        url, namespace, lambda client: runs.signal(client, run, name, value, id, as_json=json)
    )


app.command()(timelines.timeline)
app.command()(timelines.diff)
talking.add_to(app)
