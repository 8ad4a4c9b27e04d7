"""Two runs, or two iterations of one, beside each other. Pure."""

from __future__ import annotations

import msgspec

from treadle.sdk.client.timeline.span import Span, Timeline
from treadle.sdk.errors import UserError
from treadle.sdk.messages import NO_RAW
from treadle.sdk.spending import NOTHING, Spent


class Cell(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one iteration of one step came to."""

    outcome: str
    """Of its last attempt; empty while that lasts."""
    attempts: int = 1
    took_ms: int = 0
    """Of its attempts together; pauses between them are left out."""
    spent: Spent = NOTHING
    failures: tuple[str, ...] = ()
    """Of each attempt that failed or was lost."""
    output: msgspec.Raw = NO_RAW


class Row(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One iteration on both sides; None where it did not take place."""

    step: str
    iteration: int = 0
    """On the left; of two iterations of one run the right one has the number asked for."""
    left: Cell | None = None
    right: Cell | None = None
    changed: tuple[str, ...] = ()
    """Of outcome, attempts, output, spent and failures, those that differ; durations always do."""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Two sides, and what differs."""

    left: str
    right: str
    rows: tuple[Row, ...] = ()

    @property
    def is_same(self) -> bool:
        """True if both sides did the same, however long it took."""
        return not any(row.changed for row in self.rows)


def diff_runs(left: Timeline, right: Timeline) -> Difference:
    """Compare two runs, iteration by iteration."""
    ours, theirs = cells_of(left), cells_of(right)
    places = [*ours, *(place for place in theirs if place not in ours)]
    order = {step: index for index, step in enumerate(dict.fromkeys(step for step, _ in places))}
    places.sort(key=lambda place: (order[place[0]], place[1]))
    rows = [
        _row(step, iteration, ours.get((step, iteration)), theirs.get((step, iteration)))
        for step, iteration in places
    ]
    return Difference(left=left.run, right=right.run, rows=tuple(rows))


def diff_iterations(run: Timeline, left: int, right: int, step: str = "") -> Difference:
    """Compare two iterations of a loop of one run; raise ``UserError`` if one is not there."""
    run = run.of_step(step) if step else run
    found = cells_of(run)
    loops = [step] if step else sorted({name for name, _ in found if name in run.loops})
    if len(loops) != 1:
        have = ", ".join(map(repr, loops)) or "none"
        raise UserError(
            f"run {run.run!r} has {len(loops)} loops with iterations ({have}), and one has to be "
            "chosen. Name it with --step."
        )
    (loop,) = loops
    for number in (left, right):
        if (loop, number) not in found:
            count = sum(1 for name, _ in found if name == loop)
            raise UserError(
                f"step {loop!r} of run {run.run!r} has no iteration {number}: it has begun "
                f"{count}, counted from 0. Name one of these."
            )
    row = _row(loop, left, found[(loop, left)], found[(loop, right)])
    return Difference(left=f"{run.run}#{left}", right=f"{run.run}#{right}", rows=(row,))


def cells_of(timeline: Timeline) -> dict[tuple[str, int], Cell]:
    """Return what each iteration came to, by step and number, in order."""
    attempts: dict[tuple[str, int], list[Span]] = {}
    for span in timeline.spans:
        if span.kind == "attempt":
            attempts.setdefault((span.step, span.iteration), []).append(span)
    return {place: _cell(spans) for place, spans in attempts.items()}


def _cell(spans: list[Span]) -> Cell:
    failures = [str(span.failure) for span in spans if span.failure is not None]
    failures += [f"lost: {span.detail}" for span in spans if span.outcome == "lost"]
    return Cell(
        outcome=spans[-1].outcome,
        attempts=len(spans),
        took_ms=sum(span.took_ms(span.begin_ms) for span in spans),
        spent=spans[-1].spent,
        failures=tuple(failures),
        output=spans[-1].output,
    )


def _row(step: str, iteration: int, left: Cell | None, right: Cell | None) -> Row:
    changed: tuple[str, ...] = ("outcome",)
    if left is not None and right is not None:
        changed = tuple(
            name
            for name in ("outcome", "attempts", "output", "spent", "failures")
            if _value(left, name) != _value(right, name)
        )
    return Row(step=step, iteration=iteration, left=left, right=right, changed=changed)


def _value(cell: Cell, name: str) -> object:
    # Of JSON the value counts, not how it was written.
    return msgspec.json.decode(cell.output) if name == "output" else getattr(cell, name)
