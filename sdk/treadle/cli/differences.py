"""Two runs, or two iterations of one, beside each other in a terminal."""

from __future__ import annotations

from treadle.cli import output
from treadle.sdk.client.timeline.diffing import Cell, Difference, Row, Side
from treadle.sdk.times import age

_SHORT_CHARS_MAX = 60


def show(found: Difference) -> None:
    """Print the two sides, what differs of them, and what each has done of every step."""
    for side in found.sides:
        output.say(output.one_line(_about(side)), output.STYLES.get(side.status, ""))
    if "version" in found.changed:
        output.say("versions differ: " + ", ".join(side.version for side in found.sides))
    if "input" in found.changed:
        for side in found.sides:
            text = bytes(side.input).decode(errors="replace")
            output.say(output.one_line(f"input  {side.run}  {_short(text)}"))
    if found.sides:
        output.say("")
    headings = ("STEP", "ITERATION", found.left, found.right, "DIFFERS IN")
    output.table(headings, [_diff_row(row) for row in found.rows])
    for row in found.rows:
        for name, cell in ((found.left, row.left), (found.right, row.right)):
            if cell is not None and "output" in row.changed:
                where = f"{row.step} {row.iteration}"
                output.say(
                    output.one_line(
                        f"{where}  {name}  {_short(bytes(cell.output).decode(errors='replace'))}"
                    )
                )
    output.say("the same" if found.is_same else "different")


def _about(side: Side) -> str:
    parts = [f"{side.run}  {side.workflow}  {side.status}"]
    if side.made_of is not None:
        origin = side.made_of
        at = f" at iteration {origin.iteration}" if origin.iteration >= 0 else ""
        where = f" from step {origin.step!r}{at}" if origin.step else ""
        given = ", with another input" if origin.has_input else ""
        what = "retry" if origin.is_retry else "fork"
        parts.append(f"{what} of {origin.run}{where}{given}")
    if side.failure:
        parts.append(_short(side.failure.split("\n")[0]))
    return "  ".join(parts)


def _diff_row(row: Row) -> tuple[str, ...]:
    return (
        row.step,
        str(row.iteration),
        "taken over" if row.taken_over in ("left", "both") else _cell(row.left),
        "taken over" if row.taken_over in ("right", "both") else _cell(row.right),
        ", ".join(row.changed),
    )


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "-"
    spent = cell.spent
    parts = [cell.outcome or "lasts", age(cell.took_ms)]
    if cell.attempts > 1:
        parts.append(f"{cell.attempts} attempts")
    if spent.total_tokens:
        parts.append(f"{spent.total_tokens} tokens")
    if spent.tool_calls:
        parts.append(f"{spent.tool_calls} calls")
    if spent.cost_micro_usd:
        parts.append(f"{spent.cost_usd:g} USD")
    if cell.branch:
        parts.append(cell.branch)
    if cell.items is not None:
        parts.append(str(cell.items))
    parts += [_short(failure.split("\n")[0]) for failure in cell.failures]
    return ", ".join(parts)


def _short(text: str) -> str:
    return text if len(text) <= _SHORT_CHARS_MAX else f"{text[: _SHORT_CHARS_MAX - 1]}…"
