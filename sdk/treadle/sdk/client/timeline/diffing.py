"""Two runs, or two iterations of one, beside each other. Pure.

Of a retry or a fork, what it has taken over of the run it was made of is no difference: it is what
that run did.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from treadle.sdk.client.origin import ForkedFrom
from treadle.sdk.client.steps import StepOutput
from treadle.sdk.client.timeline.span import MapCounts, Span, SpanKind, Timeline
from treadle.sdk.errors import UserError
from treadle.sdk.messages import NO_RAW
from treadle.sdk.spending import NOTHING, Spent

_WHOLE_STEPS: frozenset[SpanKind] = frozenset(
    {"signal", "event", "approval", "choice", "respond", "child", "map"}
)
"""Spans that are all there is of a step; a sleep is a pause."""
_COMPARED = ("outcome", "attempts", "output", "spent", "failures", "branch", "items")

TakenOver = Literal["", "left", "right", "both"]


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
    branch: str = ""
    """Of a choice: what it took, and why."""
    items: MapCounts | None = None
    """Of a map; how often its chunks were tried is not compared."""


class Row(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One iteration on both sides; None where it did not take place."""

    step: str
    iteration: int = 0
    """On the left; of two iterations of one run the right one has the number asked for."""
    left: Cell | None = None
    right: Cell | None = None
    changed: tuple[str, ...] = ()
    """Of outcome, attempts, output, spent, failures, branch and items, those that differ; durations
    always do."""
    taken_over: TakenOver = ""
    """Which side has not done it, and has it from the run that it was made of."""


class Side(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One of two runs."""

    run: str
    workflow: str
    status: str
    version: str = ""
    input: msgspec.Raw = NO_RAW
    failure: str = ""
    made_of: ForkedFrom | None = None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Two sides, and what differs."""

    left: str
    right: str
    rows: tuple[Row, ...] = ()
    sides: tuple[Side, ...] = ()
    """Of two runs: these."""
    changed: tuple[str, ...] = ()
    """Of workflow, version, input and status of two runs, those that differ."""

    @property
    def is_same(self) -> bool:
        """True if both sides were given the same and did the same, however long it took."""
        is_other = any(name != "version" for name in self.changed)
        return not is_other and not any(row.changed for row in self.rows)


def diff_runs(left: Timeline, right: Timeline) -> Difference:
    """Compare two runs, iteration by iteration."""
    ours, theirs = cells_of(left), cells_of(right)
    both = ((step, 0) for step in left.kept if step in right.kept)
    places = list(dict.fromkeys([*ours, *theirs, *both]))
    steps = dict.fromkeys([*left.steps, *right.steps, *(step for step, _ in places)])
    order = {step: index for index, step in enumerate(steps)}
    places.sort(key=lambda place: (order[place[0]], place[1]))
    rows = [_row_of(left, right, place, ours.get(place), theirs.get(place)) for place in places]
    sides = (_side(left), _side(right))
    changed = tuple(
        name
        for name in ("workflow", "version", "input", "status")
        if _fact(sides[0], name) != _fact(sides[1], name)
    )
    return Difference(
        left=left.run, right=right.run, rows=tuple(rows), sides=sides, changed=changed
    )


def _side(run: Timeline) -> Side:
    return Side(
        run=run.run,
        workflow=run.workflow,
        status=run.status,
        version=run.version,
        input=run.input,
        failure=run.failure,
        made_of=run.made_of,
    )


def _row_of(
    left: Timeline, right: Timeline, place: tuple[str, int], ours: Cell | None, theirs: Cell | None
) -> Row:
    """Return a row of two runs; what one of them has taken over of the other is the same."""
    step, iteration = place
    has_ours = ours is None and _takes(left, place)
    has_theirs = theirs is None and _takes(right, place)
    row = _row(step, iteration, ours, theirs)
    if has_ours and has_theirs:
        return Row(step=step, iteration=iteration, taken_over="both")
    if has_ours and theirs is not None:
        changed = _changed_since(left, right.run, step, theirs)
        return msgspec.structs.replace(row, changed=changed, taken_over="left")
    if has_theirs and ours is not None:
        changed = _changed_since(right, left.run, step, ours)
        return msgspec.structs.replace(row, changed=changed, taken_over="right")
    return row


def _takes(run: Timeline, place: tuple[str, int]) -> bool:
    """True for what a run did not do because it has it from the one that it was made of."""
    step, iteration = place
    origin = run.made_of
    is_before = origin is not None and step == origin.step and iteration < origin.iteration
    return step in run.kept or is_before


def _changed_since(run: Timeline, other: str, step: str, cell: Cell) -> tuple[str, ...]:
    """Return what differs of a step that a run has taken over: of a third run only its end can."""
    if run.made_of is not None and run.made_of.run == other:
        return ()
    ended = run.kept.get(step, cell.outcome)
    is_last = cell.outcome in ("completed", "failed")
    return ("outcome",) if is_last and cell.outcome != ended else ()


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


def with_outputs(run: Timeline, outputs: Mapping[str, StepOutput]) -> Timeline:
    """Return a run with the outputs of its maps, which no event has; of a large one its size."""
    spans = tuple(
        msgspec.structs.replace(span, output=_told(outputs[span.step]))
        if span.kind == "map" and span.step in outputs
        else span
        for span in run.spans
    )
    return msgspec.structs.replace(run, spans=spans)


def _told(output: StepOutput) -> msgspec.Raw:
    if output.value is not None:
        return output.value
    return msgspec.Raw(msgspec.json.encode({"size_bytes": output.size_bytes}))


def cells_of(timeline: Timeline) -> dict[tuple[str, int], Cell]:
    """Return what each iteration came to, by step and number, in order."""
    attempts: dict[tuple[str, int], list[Span]] = {}
    for span in timeline.without_chunks().spans:
        is_sleep = span.kind == "pause" and span.step not in timeline.loops and bool(span.detail)
        if span.kind == "attempt" or span.kind in _WHOLE_STEPS or is_sleep:
            attempts.setdefault((span.step, span.iteration), []).append(span)
    now_ms = timeline.ended_ms or timeline.read_ms
    return {place: _cell(spans, now_ms) for place, spans in attempts.items()}


def _cell(spans: list[Span], now_ms: int) -> Cell:
    failures = [_failure(span) for span in spans if span.failure is not None]
    failures += [f"lost: {span.detail}" for span in spans if span.outcome == "lost"]
    return Cell(
        outcome=spans[-1].outcome,
        attempts=len(spans),
        took_ms=sum(span.took_ms(now_ms) for span in spans),
        spent=spans[-1].spent,
        failures=tuple(failures),
        output=_output(spans[-1]),
        branch=spans[-1].detail if spans[-1].kind == "choice" else "",
        items=spans[-1].counts,
    )


def _failure(span: Span) -> str:
    """Return why a span failed; the run that a step has started has another id in each run."""
    text = str(span.failure)
    return text.replace(repr(span.detail), "of it") if span.kind == "child" else text


def _output(span: Span) -> msgspec.Raw:
    """Return what a step came to; when an approval was given is no part of it."""
    if span.kind != "approval" or span.output == NO_RAW:
        return span.output
    given = msgspec.json.decode(span.output, type=dict[str, Any])
    given.pop("at", None)
    return msgspec.Raw(msgspec.json.encode(given))


def _row(step: str, iteration: int, left: Cell | None, right: Cell | None) -> Row:
    changed: tuple[str, ...] = ("outcome",)
    if left is not None and right is not None:
        changed = tuple(name for name in _COMPARED if _value(left, name) != _value(right, name))
    return Row(step=step, iteration=iteration, left=left, right=right, changed=changed)


def _value(cell: Cell, name: str) -> object:
    if name == "items" and cell.items is not None:
        return (cell.items.items, cell.items.done, cell.items.failed)
    # Of JSON the value counts, not how it was written.
    return msgspec.json.decode(cell.output) if name == "output" else getattr(cell, name)


def _fact(side: Side, name: str) -> object:
    return msgspec.json.decode(side.input) if name == "input" else getattr(side, name)
