"""Two runs, or two iterations of one, beside each other in a terminal."""

from __future__ import annotations

from itertools import zip_longest

import msgspec

from treadle.cli import output
from treadle.sdk.client.timeline.diffing import Cell, Difference, Row, Side
from treadle.sdk.times import age

_SHORT_CHARS_MAX = 60
_BEFORE_CHARS = 20
"""Of a text that is cut: shown before what differs."""


def show(found: Difference) -> None:
    """Print the two sides, what differs of them, and what each has done of every step."""
    failures = _beside(*(side.failure.split("\n")[0] for side in found.sides))
    for side, failure in zip(found.sides, failures, strict=False):
        output.say(output.one_line(_about(side, failure)), output.STYLES.get(side.status, ""))
    if "version" in found.changed:
        output.say("versions differ: " + ", ".join(side.version for side in found.sides))
    if "input" in found.changed:
        left, right = found.sides
        for side, text in zip(found.sides, _values(left.input, right.input), strict=True):
            output.say(output.one_line(f"input  {side.run}  {text}"))
    if found.sides:
        output.say("")
    headings = ("STEP", "ITERATION", found.left, found.right, "DIFFERS IN")
    output.table(headings, [_diff_row(row) for row in found.rows])
    for row in found.rows:
        if "output" in row.changed and row.left is not None and row.right is not None:
            texts = _values(row.left.output, row.right.output)
            for name, text in zip((found.left, found.right), texts, strict=True):
                output.say(output.one_line(f"{row.step} {row.iteration}  {name}  {text}"))
    output.say("the same" if found.is_same else "different")


def _about(side: Side, failure: str) -> str:
    parts = [f"{side.run}  {side.workflow}  {side.status}"]
    if side.made_of is not None:
        origin = side.made_of
        at = f" at iteration {origin.iteration}" if origin.iteration >= 0 else ""
        where = f" from step {origin.step!r}{at}" if origin.step else ""
        given = ", with another input" if origin.has_input else ""
        what = "retry" if origin.is_retry else "fork"
        parts.append(f"{what} of {origin.run}{where}{given}")
    if failure:
        parts.append(failure)
    return "  ".join(parts)


def _diff_row(row: Row) -> tuple[str, ...]:
    pairs = [
        _beside(one.split("\n")[0], other.split("\n")[0])
        for one, other in zip_longest(_failures(row.left), _failures(row.right), fillvalue="")
    ]
    ours, theirs = ([pair[side] for pair in pairs if pair[side]] for side in (0, 1))
    return (
        row.step,
        str(row.iteration),
        "taken over" if row.taken_over in ("left", "both") else _cell(row.left, ours),
        "taken over" if row.taken_over in ("right", "both") else _cell(row.right, theirs),
        ", ".join(row.changed),
    )


def _failures(cell: Cell | None) -> tuple[str, ...]:
    return cell.failures if cell is not None else ()


def _cell(cell: Cell | None, failures: list[str]) -> str:
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
    return ", ".join((*parts, *failures))


def _values(left: msgspec.Raw, right: msgspec.Raw) -> tuple[str, str]:
    """Return two values as short texts; long ones with their keys in one order."""
    one, other = (bytes(raw).decode(errors="replace") for raw in (left, right))
    if max(len(one), len(other)) > _SHORT_CHARS_MAX:
        sorted_ = (
            msgspec.json.encode(msgspec.json.decode(raw), order="sorted") for raw in (left, right)
        )
        one, other = (raw.decode(errors="replace") for raw in sorted_)
    return _beside(one, other)


def _beside(one: str = "", other: str = "") -> tuple[str, str]:
    """Return two texts cut around their first difference, if they have one."""
    same = next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )
    is_long = max(len(one), len(other)) > _SHORT_CHARS_MAX and one != other
    start = max(0, same - _BEFORE_CHARS) if is_long and same >= _SHORT_CHARS_MAX // 2 else 0
    return _short(one, start), _short(other, start)


def _short(text: str, start: int = 0) -> str:
    before, rest = ("…", text[start:]) if start else ("", text)
    room = _SHORT_CHARS_MAX - len(before)
    return before + (rest if len(rest) <= room else f"{rest[: room - 1]}…")
