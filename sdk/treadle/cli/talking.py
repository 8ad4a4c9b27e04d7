"""``treadle run steer | follow-up | send``: words to an agent loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from treadle.cli import exits, options, output
from treadle.cli.options import Json, Namespace, RunId, Url

if TYPE_CHECKING:
    from treadle.sdk.client import Client, RunView
    from treadle.sdk.messages import MessageKind

Words = Annotated[
    list[str],
    typer.Argument(
        metavar="[STEP] TEXT",
        help="What to say. STEP may be left out if the run has one agent loop that can hear.",
    ),
]
MessageId = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="Two messages with one id count as one.")
]


def add_to(app: typer.Typer) -> None:
    """Add the commands to ``treadle run``."""
    app.command()(steer)
    app.command("follow-up")(follow_up)
    app.command()(send)


def steer(
    run: RunId,
    words: Words,
    id: MessageId = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Tell an agent something about what it is doing: heard before its next step."""
    return _say(run, words, "steer", id, json, url, namespace)


def follow_up(
    run: RunId,
    words: Words,
    id: MessageId = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Ask an agent for more, heard when it would be done."""
    return _say(run, words, "follow_up", id, json, url, namespace)


def send(
    run: RunId,
    payload: Annotated[str, typer.Option("--payload", metavar="JSON|@FILE|-", help="The message.")],
    step: Annotated[
        str | None, typer.Argument(metavar="STEP", help="The loop; may be left out if it is one.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="steer, follow_up or reply.")
    ] = "steer",
    id: MessageId = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Send any message to a loop, as its handler reads it."""
    from treadle.cli import runs

    value = options.read_json("--payload", payload)

    async def act(client: Client) -> int:
        return await _send(client, run, step, value, kind, id, as_json=json)

    return runs.run(url, namespace, act)


# ------------------------------------------------------------------ leaves


def _say(
    run: str,
    words: list[str],
    kind: MessageKind,
    id: str | None,
    as_json: bool,
    url: str | None,
    namespace: str | None,
) -> int:
    from treadle.cli import runs
    from treadle.sdk.errors import UserError

    if len(words) > 2:
        raise UserError(
            f"{len(words)} words where a step and a text were expected. Put the text in quotes: "
            '"it is late".'
        )
    step = words[0] if len(words) == 2 else None
    if not words[-1].strip():
        raise UserError("The text is empty, so nothing would be heard. Say something.")

    async def act(client: Client) -> int:
        return await _send(client, run, step, words[-1], kind, id, as_json=as_json)

    return runs.run(url, namespace, act)


async def _send(
    client: Client,
    run: str,
    step: str | None,
    payload: Any,
    kind: Any,
    id: str | None,
    *,
    as_json: bool,
) -> int:
    if step is None:
        step = _only_loop(await client.get(run))
    sequence = await client.send(run, step, payload, kind, id)
    if as_json:
        output.emit({"run": run, "step": step, "kind": kind, "sequence": sequence})
    else:
        name = str(kind).replace("_", "-")
        output.say(f"{name} to step {step} of {run} is stored; see it: treadle run show {run}")
    return exits.OK


def _only_loop(view: RunView) -> str:
    """Return the only loop that can hear; raise ``UserError`` if there is none, or several."""
    from treadle.sdk.errors import UserError

    loops = [step for step in view.steps if step.kind == "agent_loop"]
    hearing = [step.id for step in loops if step.status in ("waiting", "active", "parked")]
    begun = [step.id for step in loops if step.status in ("active", "parked")]
    for found in (hearing, begun):
        if len(found) == 1:
            return found[0]
    if view.is_terminal and loops:
        return loops[0].id  # Nobody hears: the error about the run says so.
    have = ", ".join(map(repr, hearing)) or "none"
    raise UserError(
        f"run {view.id!r} has {len(hearing) or 'no'} agent loops that can hear ({have}). "
        + ("Name one of them before the text." if hearing else "Send it a signal instead.")
    )
