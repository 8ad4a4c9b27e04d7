"""What the commands of ``treadle dead`` do, given a client."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from treadle.cli import exits, output
from treadle.sdk.client import Client
from treadle.sdk.client.dead_letters import Replayed
from treadle.sdk.client.letters import DeadLetterView
from treadle.sdk.errors import ServerError, TreadleError
from treadle.sdk.times import date

SHOWN_BYTES_MAX = 4_096
"""Of a message that is no text: a person sees its kind in the first lines of a dump."""
_ROW = 16


class Wanted(NamedTuple):
    """Which letters are listed."""

    workflow: str | None
    run: str | None
    reason: str | None
    all: bool
    limit: int
    cursor: int | None


async def list_(client: Client, wanted: Wanted, place: str, *, as_json: bool) -> int:
    page = await client.dead_letters.list(**wanted._asdict())
    if as_json:
        for letter in page.letters:
            output.emit(letter)
        if page.cursor is not None:
            output.emit({"cursor": page.cursor})
        return exits.OK
    if page.letters:
        output.table(
            ("N", "REASON", "RUN", "SINCE", "", ""),
            [_row(letter) for letter in page.letters],
            cut_last=True,
        )
    else:
        done = "" if wanted.all else "; --all shows those that are done"
        output.remark(f"no dead letters {place}{done}")
    if page.cursor is not None:
        output.remark(f"there are more: --cursor {page.cursor}")
    return exits.OK


def _row(letter: DeadLetterView) -> tuple[str, ...]:
    state = f"left to {letter.left_to}" if letter.left_to else ""
    state = state if letter.state == "open" else letter.state
    where = f"{letter.step}: " if letter.step else ""
    why = output.one_line(f"{where}{letter.failure}") if letter.failure else ""
    return (str(letter.number), letter.reason, letter.run, date(letter.stored_ms), state, why)


async def show(client: Client, number: int, *, as_json: bool, is_body: bool) -> int:
    letter = await client.dead_letters.get(number)
    if is_body:
        sys.stdout.buffer.write(letter.body)
        sys.stdout.buffer.flush()
        if not letter.is_whole:
            output.remark(f"! {_size(letter)}")
    elif as_json:
        output.emit(letter)
    else:
        _show(letter)
    return exits.OK


def _show(letter: DeadLetterView) -> None:
    output.say(f"{letter.number}  {letter.reason}  {letter.state}")
    facts = [f"run {letter.run}" + (f" of workflow {letter.workflow}" if letter.workflow else "")]
    if letter.step:
        facts.append(f"step {letter.step}")
    if letter.parent is not None:
        facts.append(f"started by step {letter.parent.step} of run {letter.parent.run}")
    facts.append(f"set aside {date(letter.stored_ms)}, happened {date(letter.happened_ms)}")
    if letter.state != "open":
        done = f": {letter.done}" if letter.done else ""
        at = f" {date(letter.done_ms)}" if letter.done_ms else ""
        facts.append(f"{letter.state}{at}{done}")
    if letter.failure is not None:
        facts.extend(f"{letter.failure}".split("\n"))
    if letter.subject:
        facts.append(f"message on {letter.subject}: {_size(letter)}")
        facts.extend(f"  {name}: {value}" for name, value in letter.headers.items())
    for fact in facts:
        output.say(f"  {output.one_line(fact)}")
    if letter.body:
        output.say("")
        for line in shown(letter.body):
            output.say(line)
    if letter.left_to:
        output.remark(
            f"run {letter.left_to} above it has failed too, and its retry does this work again: "
            f"treadle run retry {letter.left_to}"
        )
    elif letter.state == "open":
        what = "try the run again" if letter.reason == "run_failed" else "publish it once more"
        output.remark(f"{what}: treadle dead replay {letter.number}")


def _size(letter: DeadLetterView) -> str:
    whole = f"message {letter.sequence} of stream {letter.stream}"
    size = f"{letter.body_bytes:,} bytes"
    if letter.is_whole:
        return f"{size}, {whole}"
    return f"{size}, of which {len(letter.body):,} are kept; the whole may still be {whole}"


def shown(body: bytes) -> list[str]:
    """Return a message as lines: as text if it is one, else as a dump of its first bytes."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        lines = [
            f"{at:08x}  {row.hex(' '):{3 * _ROW}} {_printable(row)}"
            for at in range(0, min(len(body), SHOWN_BYTES_MAX), _ROW)
            if (row := body[at : at + _ROW])
        ]
        more = len(body) - SHOWN_BYTES_MAX
        return [*lines, f"… {more:,} more bytes"] if more > 0 else lines
    return text.split("\n")


def _printable(row: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)


async def replay(client: Client, numbers: Sequence[int], *, again: bool, as_json: bool) -> int:
    async def act(number: int) -> None:
        made = await client.dead_letters.replay(number, again=again)
        if as_json:
            output.emit(made)
        else:
            output.say(f"{number}  {_made(made)}")

    return await _each(numbers, act, as_json=as_json)


def _made(made: Replayed) -> str:
    if made.run:
        return f"run {made.run}" + ("" if made.is_new else ", which was there already")
    return f"message {made.sequence} of stream {made.stream}"


async def warn_of_parent(client: Client, run: str) -> None:
    """Say so if the retry of a run above does the work of a failed one again."""
    page = await client.dead_letters.list(run=run, reason="run_failed", limit=1)
    for letter in page.letters:
        if letter.left_to:
            output.remark(
                f"! run {run} was started below run {letter.left_to}, which has failed too: a "
                "retry of that does this work once more, and hears nothing of this one"
            )


async def discard(client: Client, numbers: Sequence[int], reason: str, *, as_json: bool) -> int:
    async def act(number: int) -> None:
        await client.dead_letters.discard(number, reason)
        if as_json:
            output.emit({"number": number, "state": "discarded"})
        else:
            output.say(f"{number}  discarded")

    return await _each(numbers, act, as_json=as_json)


async def _each(
    numbers: Sequence[int], act: Callable[[int], Awaitable[None]], *, as_json: bool
) -> int:
    """Act on each; one that cannot be acted on does not stop the others."""
    codes: list[int] = []
    for number in numbers:
        try:
            await act(number)
        except ServerError:
            raise
        except TreadleError as error:
            output.report(error, as_json=as_json)
            codes.append(exits.code_of(error))
    if not codes:
        return exits.OK
    return codes[0] if len(numbers) == 1 else exits.PARTIAL
