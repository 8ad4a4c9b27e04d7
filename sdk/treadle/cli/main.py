"""The command ``treadle``: which commands there are, and what an error becomes.

Commands import what they need when they run, so that help and mistakes answer at once.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from treadle.cli import exits, output
from treadle.cli.approvals import app as approvals_app
from treadle.cli.collect import app as collect_app
from treadle.cli.dead import app as dead_app
from treadle.cli.eval_app import app as eval_app
from treadle.cli.event import app as event_app
from treadle.cli.explaining import explain
from treadle.cli.limiting import limits
from treadle.cli.options import Json
from treadle.cli.run import app as run_app
from treadle.cli.serve import dev, engine, http, worker
from treadle.cli.trigger import app as trigger_app
from treadle.cli.workflow import app as workflow_app

_EXITS = "\n".join(f"{code:>5}  {meaning}" for code, meaning in exits.MEANINGS.items())
_HELP = f"""Durable workflows whose steps can loop, on NATS JetStream.

Begin with `treadle demo`, then `treadle dev app.py`.

\b
Exit codes:
{_EXITS}
"""

app = typer.Typer(
    name="treadle",
    help=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(dev)
app.command()(engine)
app.command()(http)
app.command()(worker)
app.command()(explain)
app.command()(limits)
app.add_typer(collect_app, name="collect")
app.add_typer(eval_app, name="eval")
app.add_typer(run_app, name="run")
app.add_typer(approvals_app, name="approvals")
app.add_typer(dead_app, name="dead")
app.add_typer(trigger_app, name="trigger")
app.add_typer(event_app, name="event")
app.add_typer(workflow_app, name="workflow")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        output.say(f"treadle {version('treadle')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


@app.command()
def doctor(
    monitor: Annotated[
        str | None,
        typer.Option("--monitor", metavar="URL", help="The server's monitoring address (http)."),
    ] = None,
    json: Json = False,
    url: Annotated[str | None, typer.Option("--url", metavar="URL")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", metavar="NAME")] = None,
) -> int:
    """Check server, streams and processes, and say how to mend what is wrong."""
    from treadle.cli.doctor import run_doctor

    return run_doctor(url, namespace, monitor, as_json=json)


@app.command()
def demo(
    no_kill: Annotated[
        bool, typer.Option("--no-kill", help="Do not kill the worker half-way.")
    ] = False,
    json: Json = False,
) -> int:
    """See a loop repair a package, lose its worker to kill -9, and resume."""
    from treadle.cli.demo import run_demo

    return run_demo(no_kill=no_kill, json=json)


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code."""
    args = sys.argv[1:] if arguments is None else arguments
    as_json = "--json" in args
    try:
        code = app(args, prog_name="treadle", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        code = _usage(error, as_json=as_json)
    except (KeyboardInterrupt, typer.Abort):
        code = exits.INTERRUPTED
    except Exception as error:  # noqa: BLE001 — the outermost boundary: the rest is a bug
        code = exits.code_of(error)
        output.report(error, as_json=as_json, with_traceback=code == exits.BUG)
    sys.exit(code or exits.OK)


def _usage(error: typer.TyperException, *, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "treadle"
    message = error.format_message().rstrip()
    stop = "" if message.endswith((".", "!", "?")) else "."
    text = f"{message}{stop} Usage: `{command} --help`."
    if as_json:
        output.emit({"error": {"type": "UsageError", "message": text, "command": command}})
    elif not error.format_message():
        output.say(context.get_help() if context else text)
    else:
        output.remark(f"error: {text}")
    return exits.USAGE
