"""``treadle run show``: where a run stands, and what one step of it, or all, had and handed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.options import Json, Namespace, RunId, Url

if TYPE_CHECKING:
    import msgspec

    from treadle.sdk.client import Client
    from treadle.sdk.client.steps import StepDetail, StepOutput

SHOWN_CHARS_MAX = 4_000
"""Of one value in a terminal: a screen or two. ``--json`` has it whole."""
LINE_CHARS_MAX = 160
"""Of one output among all of a run."""
OUTPUT_BYTES_MAX = 64 * 1024
"""Of one output among all of a run, as JSON: ``--step`` has a larger one."""
_PRETTY = 2


def show(
    run: RunId,
    step: Annotated[
        str | None,
        typer.Option("--step", metavar="STEP", help="Only this step, with its input and output."),
    ] = None,
    outputs: Annotated[
        bool, typer.Option("--outputs", help="With what its steps have put out so far.")
    ] = False,
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Show where a run stands, what it waits for, and what to do."""
    from treadle.cli import runs
    from treadle.sdk.errors import UserError

    if step is not None and outputs:
        raise UserError(
            "--step shows the output of one step and --outputs those of all. Give one of the two."
        )
    if step is not None:
        name = step
        return runs.run(url, namespace, lambda client: _step(client, run, name, as_json=json))
    return runs.run(url, namespace, lambda client: _run(client, run, outputs=outputs, as_json=json))


async def _run(client: Client, run: str, *, outputs: bool, as_json: bool) -> int:
    import msgspec

    from treadle.cli import exits, output, views

    view = await client.get(run, attempts=True)
    found = await client.outputs(run, bytes_max=OUTPUT_BYTES_MAX) if outputs else None
    if as_json:
        output.emit(view if found is None else {**msgspec.structs.asdict(view), "outputs": found})
        return exits.OK
    views.show(view)
    if found is not None:
        output.say("")
        rows = [
            (name, str(each.size_bytes), _in_line(run, name, each)) for name, each in found.items()
        ]
        if rows:
            output.table(("STEP", "BYTES", "OUTPUT"), rows)
        else:
            output.remark("no step has put out anything yet")
    return exits.OK


async def _step(client: Client, run: str, step: str, *, as_json: bool) -> int:
    from treadle.cli import exits, output, views

    found = await client.get_step(run, step)
    if as_json:
        output.emit(found)
        return exits.OK
    views.steps((found.step,))
    if found.step.failure and found.step.failure.traceback:
        output.say(found.step.failure.traceback.rstrip())
    _value("input", found.input)
    _value("output", found.output)
    _failed_items(found)
    for text in found.gone:
        output.remark(f"! {text}")
    return exits.OK


# ---------------------------------------------------------------- leaves


def _value(what: str, value: msgspec.Raw | None) -> None:
    import msgspec

    from treadle.cli import output

    if value is None:
        output.say(f"\nno {what}")
        return
    raw = bytes(value)
    text = msgspec.json.format(raw, indent=_PRETTY).decode(errors="replace")
    output.say(f"\n{what}, {len(raw)} bytes")
    output.say(text[:SHOWN_CHARS_MAX])
    if len(text) > SHOWN_CHARS_MAX:
        output.say(f"… {len(text) - SHOWN_CHARS_MAX} more characters: --json has it whole")


def _failed_items(found: StepDetail) -> None:
    from treadle.cli import output

    if not found.failed_items and not found.failed_items_more:
        return
    output.say("\nfailed items")
    for failure in found.failed_items:
        output.say(f"  {output.one_line(str(failure))}")
    if found.failed_items_more:
        output.say(f"  and {found.failed_items_more} more")


def _in_line(run: str, step: str, found: StepOutput) -> str:
    from treadle.cli import output

    if found.value is None:
        return (
            f"larger than is shown here: {output.command(f'treadle run show {run} --step {step}')}"
        )
    text = bytes(found.value).decode(errors="replace")
    return text if len(text) <= LINE_CHARS_MAX else f"{text[: LINE_CHARS_MAX - 1]}…"
