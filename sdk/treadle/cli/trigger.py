"""``treadle trigger``: the arguments of its commands. What they do is in ``triggers.py``."""

from __future__ import annotations

from typing import Annotated

import typer

from treadle.cli import options
from treadle.cli.options import Json, Namespace, Url

app = typer.Typer(
    name="trigger", help="Start runs at times, for messages and over HTTP.", no_args_is_help=True
)
create_app = typer.Typer(name="create", help="Create a trigger of a kind.", no_args_is_help=True)
app.add_typer(create_app, name="create")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the trigger.")]


Workflow = Annotated[str, typer.Argument(metavar="WORKFLOW", help="A registered workflow.")]
Version = Annotated[
    str | None, typer.Option("--version", metavar="HASH", help="Not the newest one at the firing.")
]
Metadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar=options.LABEL, help=options.LABEL_HELP),
]
Lane = Annotated[
    str | None,
    typer.Option("--lane", metavar="NAME", help="Of a lane's runs one is active at a time."),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Also if the name stands for another trigger.")
]


@create_app.command()
def cron(
    name: Name,
    workflow: Workflow,
    expression: Annotated[
        str,
        typer.Argument(
            metavar="EXPRESSION", help="'0 9 * * mon-fri', @daily and the like, or '@every 30s'."
        ),
    ],
    tz: Annotated[
        str, typer.Option("--tz", metavar="ZONE", help="Time zone, such as Europe/Berlin.")
    ] = "UTC",
    catch_up: Annotated[
        str,
        typer.Option(
            "--catch-up",
            metavar="skip|last|all",
            help="What becomes of firings that were missed while nothing ran.",
        ),
    ] = "skip",
    input: Annotated[
        str | None, typer.Option("--input", metavar="JSON|@FILE|-", help="Input of the runs.")
    ] = None,
    version: Version = None,
    metadata: Metadata = None,
    lane: Lane = None,
    replace: Replace = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Start runs of a workflow at times."""
    from treadle.cli import runs, triggers
    from treadle.sdk.triggers.naming import check_catch_up
    from treadle.sdk.triggers.trigger import Cron

    wanted = triggers.Wanted(
        name=name,
        workflow=workflow,
        on=Cron(expression, tz, check_catch_up(catch_up)),
        input=options.read_json("--input", input),
        version=version,
        metadata=options.read_metadata(metadata or []),
        lane=lane,
        replace=replace,
    )
    return runs.run(url, namespace, lambda client: triggers.create(client, wanted, as_json=json))


@create_app.command()
def subject(
    name: Name,
    workflow: Workflow,
    subject: Annotated[
        str,
        typer.Argument(metavar="SUBJECT", help="Of NATS, such as orders.created or 'orders.*'."),
    ],
    max_in_flight: Annotated[
        int,
        typer.Option("--max-in-flight", metavar="N", help="Runs under way at once; 0 is any."),
    ] = 0,
    version: Version = None,
    metadata: Metadata = None,
    lane: Lane = None,
    replace: Replace = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Start a run of a workflow for each message on a NATS subject."""
    from treadle.cli import runs, triggers
    from treadle.sdk.triggers.trigger import Subject

    wanted = triggers.Wanted(
        name=name,
        workflow=workflow,
        on=Subject(subject, max_in_flight),
        version=version,
        metadata=options.read_metadata(metadata or []),
        lane=lane,
        replace=replace,
    )
    return runs.run(url, namespace, lambda client: triggers.create(client, wanted, as_json=json))


Secret = typer.Option(
    "--secret", metavar="env:NAME|file:/PATH", help="Where the gateway finds it; it is not stored."
)
Headers = Annotated[
    list[str] | None,
    typer.Option("--header", metavar="NAME", help="A header that runs are given; repeatable."),
]


@create_app.command()
def webhook(
    name: Name,
    workflow: Workflow,
    secret: Annotated[str, Secret],
    scheme: Annotated[
        str,
        typer.Option(
            "--scheme", metavar="standard|github|stripe|hmac", help="How deliveries are signed."
        ),
    ] = "standard",
    signature_header: Annotated[
        str, typer.Option("--signature-header", metavar="NAME", help="Of the scheme hmac.")
    ] = "",
    timestamp_header: Annotated[
        str, typer.Option("--timestamp-header", metavar="NAME", help="Of the scheme hmac.")
    ] = "",
    id_header: Annotated[
        str, typer.Option("--id-header", metavar="NAME", help="Of the scheme hmac.")
    ] = "",
    tolerance: Annotated[
        int,
        typer.Option("--tolerance", metavar="SECONDS", help="How old a delivery may be."),
    ] = 300,
    headers: Headers = None,
    version: Version = None,
    metadata: Metadata = None,
    lane: Lane = None,
    replace: Replace = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Start a run for each signed delivery to POST /hooks/NAME of `treadle http`."""
    from treadle.cli import runs, triggers
    from treadle.sdk.triggers.trigger import Webhook
    from treadle.sdk.triggers.web import check_scheme

    on = Webhook(
        secret=secret,
        scheme=check_scheme(scheme),
        signature_header=signature_header,
        timestamp_header=timestamp_header,
        id_header=id_header,
        tolerance_s=tolerance,
        headers=tuple(headers or ()),
    )
    wanted = triggers.Wanted(
        name=name,
        workflow=workflow,
        on=on,
        version=version,
        metadata=options.read_metadata(metadata or []),
        lane=lane,
        replace=replace,
    )
    return runs.run(url, namespace, lambda client: triggers.create(client, wanted, as_json=json))


@create_app.command()
def http(
    name: Name,
    workflow: Workflow,
    path: Annotated[
        str, typer.Option("--path", metavar="PATH", help="Behind /api/; by default the name.")
    ] = "",
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", help="How long a request waits."),
    ] = 30,
    secret: Annotated[str, Secret] = "",
    cancels: Annotated[
        bool, typer.Option("--cancel-on-disconnect", help="End the run if its client goes away.")
    ] = False,
    headers: Headers = None,
    version: Version = None,
    metadata: Metadata = None,
    lane: Lane = None,
    replace: Replace = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Start a run for each request to POST /api/PATH of `treadle http`, and answer it."""
    from treadle.cli import runs, triggers
    from treadle.sdk.triggers.trigger import Http

    on = Http(
        path=path, timeout_s=timeout, secret=secret, cancels=cancels, headers=tuple(headers or ())
    )
    wanted = triggers.Wanted(
        name=name,
        workflow=workflow,
        on=on,
        version=version,
        metadata=options.read_metadata(metadata or []),
        lane=lane,
        replace=replace,
    )
    return runs.run(url, namespace, lambda client: triggers.create(client, wanted, as_json=json))


@app.command("list")
def list_(json: Json = False, url: Url = None, namespace: Namespace = None) -> int:
    """List the triggers with their next firings."""
    from treadle.cli import runs, triggers

    return runs.run(url, namespace, lambda client: triggers.list_(client, as_json=json))


@app.command()
def show(name: Name, json: Json = False, url: Url = None, namespace: Namespace = None) -> int:
    """Show a trigger: its next five firings, its last one and the run, and what is amiss."""
    from treadle.cli import runs, triggers

    return runs.run(url, namespace, lambda client: triggers.show(client, name, as_json=json))


@app.command()
def pause(name: Name, json: Json = False, url: Url = None, namespace: Namespace = None) -> int:
    """Let a trigger start nothing until it is resumed."""
    from treadle.cli import runs, triggers

    return runs.run(url, namespace, lambda client: triggers.pause(client, name, as_json=json))


@app.command()
def resume(name: Name, json: Json = False, url: Url = None, namespace: Namespace = None) -> int:
    """Let a paused trigger fire again, from now on."""
    from treadle.cli import runs, triggers

    return runs.run(url, namespace, lambda client: triggers.resume(client, name, as_json=json))


@app.command()
def delete(name: Name, json: Json = False, url: Url = None, namespace: Namespace = None) -> int:
    """Delete a trigger; its runs stay."""
    from treadle.cli import runs, triggers

    return runs.run(url, namespace, lambda client: triggers.delete(client, name, as_json=json))


@app.command()
def fire(
    name: Name,
    id: Annotated[
        str | None, typer.Option("--id", metavar="RUN", help="Firing one id twice gives one run.")
    ] = None,
    input: Annotated[
        str | None,
        typer.Option("--input", metavar="JSON|@FILE|-", help="Not the trigger's own input."),
    ] = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Start a run of a trigger now, once; its next firing stays as it is."""
    from treadle.cli import runs, triggers

    given = () if input is None else (options.read_json("--input", input),)
    return runs.run(
        url, namespace, lambda client: triggers.fire(client, name, id, given, as_json=json)
    )
