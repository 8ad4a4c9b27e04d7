"""``treadle run journal`` and ``treadle eval record``: an agent's journal, for people and tests."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli import exits, output
from treadle.cli.evals import check_extra
from treadle.cli.options import Json, Namespace, RunId, Url

if TYPE_CHECKING:
    from treadle.sdk.settings import Settings
    from treadle.worker.agent.core.checkpoints import AgentCheckpoint

Step = Annotated[
    str | None,
    typer.Option("--step", metavar="STEP", help="Of several loops of the run, this one."),
]


def journal(
    run: RunId,
    step: Step = None,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """List what an agent's run has stored, and where a worker would go on."""
    check_extra()
    from treadle.sdk.settings import Settings
    from treadle.worker.agent.stored import checkpoints

    settings = Settings.from_env(url=url, namespace=namespace)

    async def listed() -> list[AgentCheckpoint]:
        return await checkpoints(run, await _step(run, step, settings), settings)

    _show(asyncio.run(listed()), as_json=json)
    return exits.OK


def _show(found: list[AgentCheckpoint], *, as_json: bool) -> None:
    if as_json:
        for each in found:
            output.emit(each)
        return
    output.table(
        ("#", "ITERATION", "TURN", "AT", "BYTES", "AFTER", "ABOUT"),
        [
            (
                str(each.number),
                str(each.iteration),
                str(each.turn),
                datetime.fromtimestamp(each.at_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3],
                str(each.size_bytes),
                each.kind,
                each.about,
            )
            for each in found
        ],
    )
    last = found[-1]
    output.say(f"after #{last.number} ({last.kind}) a worker goes on: {last.goes_on}")


def record(
    run: RunId,
    out: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FILE", help="Where the cassette is written."),
    ],
    step: Step = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Write a run of an agent as a cassette: a test that replays without tokens."""
    check_extra()
    from treadle.sdk.errors import UserError
    from treadle.sdk.settings import Settings
    from treadle.worker.agent.evals import Cassette, fetch

    settings = Settings.from_env(url=url, namespace=namespace)
    path = Path(out)
    if path.exists() and not force:
        raise UserError(
            f"{out} exists, and a recording is not replaced by accident. Choose another name, or "
            "give --force."
        )

    async def fetched() -> Cassette:
        return await fetch(run, await _step(run, step, settings), settings)

    cassette = asyncio.run(fetched())
    try:
        cassette.save(path)
    except OSError as exc:
        raise UserError(
            f"{out} cannot be written: {exc.strerror or exc}. Name a file in a directory that "
            "exists and may be written to."
        ) from exc
    if json:
        output.emit({"cassette": out, "run": run, "entries": len(cassette.entries)})
    else:
        output.say(f"{out}: {len(cassette.entries)} entries of step {cassette.agent!r}")
        output.remark(f"replay it: treadle eval --cassette {out} --agent APP:NAME")
    return exits.OK


async def _step(run: str, step: str | None, settings: Settings) -> str:
    """Return the step that was named, or the only loop of the run."""
    from treadle.cli.views import loops_of
    from treadle.sdk.client import Client
    from treadle.sdk.errors import UserError

    if step is not None:
        return step
    async with Client.connect(settings=settings) as client:
        loops = sorted(loops_of(await client.get(run)))
    if len(loops) == 1:
        return loops[0]
    have = ", ".join(loops) or "none"
    raise UserError(
        f"run {run!r} has {len(loops)} agent loops ({have}), and one has to be chosen. Name it "
        "with --step."
    )
