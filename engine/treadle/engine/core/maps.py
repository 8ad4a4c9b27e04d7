"""Maps: how a list is cut into chunks, and how far the chunks of a map are.

    a chunk ends ──> its items count as done, the next chunk begins
    more items failed than are tolerated ──> the step fails, what is under way is stopped
    every chunk is over ──> the step is completed

Each chunk has a register of its own and is a task like any other: attempts, losses and delays are
the register's. Here only counts are kept, so a document is as large as what is under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from treadle.engine.core.facts import StepEnded
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan
from treadle.sdk.definition import MapStep
from treadle.sdk.messages import ChunkDone, Failure, MapChunk, MapOutput
from treadle.sdk.run import MapState, RunDocument, StepEntry
from treadle.sdk.subjects import chunk_id, parse_chunk

CHUNKS_AIMED = 256
"""Chunks of a long list: the engine has work with each, whatever the number of its items. A list
that is not longer has one item in each."""
CHUNKS_PER_PARALLEL = 4
"""Chunks for each of those that are under way at once, so that the last ones end together."""
NULL_BYTES = len("null,")

Ranges = tuple[tuple[int, int], ...]


# ------------------------------------------------------------------ the list


def laid_out(step: MapStep, sizes: Sequence[int], chunk_bytes: int) -> MapState:
    """Return the state of a map before its first chunk, given the sizes of its items in bytes."""
    chunk_items = step.chunk or chosen_items(step, len(sizes))
    chunks = len(starts(sizes, chunk_items, chunk_bytes))
    return MapState(len(sizes), chunks, chunk_items, chunk_bytes)


def chosen_items(step: MapStep, items: int) -> int:
    """Return how many items a chunk has, if the author leaves it to us."""
    aimed = max(CHUNKS_AIMED, CHUNKS_PER_PARALLEL * step.max_parallel)
    return max(1, -(-items // aimed))


def starts(sizes: Sequence[int], chunk_items: int, chunk_bytes: int) -> list[int]:
    """Return the index of the first item of each chunk."""
    begin: list[int] = []
    count = size = 0
    for index, each in enumerate(sizes):
        if not begin or count == chunk_items or size + each > chunk_bytes:
            begin.append(index)
            count = size = 0
        count += 1
        size += each
    return begin


def output_of(step: MapStep, run: RunDocument) -> MapOutput:
    """Return where the output of a completed map is."""
    state = run.maps[step.id]
    return MapOutput(state.chunks, state.items, step.tolerated_failures > 0)


# ------------------------------------------------------------------ the chunks


def begun(run: RunDocument, step: MapStep, state: MapState) -> RunDocument:
    """Return the run with the first chunks of a map under way."""
    count = min(step.max_parallel, state.chunks)
    under_way = ((0, count - 1),) if count else ()
    return _with(run, step, msgspec.structs.replace(state, next=count, under_way=under_way))


def is_under_way(run: RunDocument, name: str) -> bool:
    """True for the name of a chunk whose register can still move."""
    found = parse_chunk(name)
    if found is None:
        return False
    step_id, number = found
    entry, state = run.steps.get(step_id), run.maps.get(step_id)
    if entry is None or entry.status != "active" or state is None:
        return False
    return any(first <= number <= last for first, last in state.under_way)


def numbers(ranges: Ranges, since: int = 0) -> Iterator[int]:
    """Yield the numbers of these ranges, from one on."""
    for first, last in ranges:
        yield from range(max(first, since), last + 1)


def names_of(run: RunDocument, step_id: str) -> Iterator[str]:
    """Yield what names the registers of a step under way: the step, or the chunks of a map."""
    if step_id not in run.maps:
        yield step_id
        return
    for number in numbers(run.maps[step_id].under_way):
        yield chunk_id(step_id, number)


def missing_from(now: Ranges, before: Ranges) -> Iterator[int]:
    """Yield the numbers that were in ranges and are not any more."""
    later = iter(now)
    held = next(later, None)
    for first, last in before:
        number = first
        while number <= last:
            while held is not None and held[1] < number:
                held = next(later, None)
            if held is not None and held[0] <= number:
                number = held[1] + 1
                continue
            end = last if held is None else min(last, held[0] - 1)
            yield from range(number, end + 1)
            number = end + 1


def chunk_ended(
    plan: Plan, run: RunDocument, event: StepEnded, moment: Moment
) -> tuple[RunDocument, StepEntry | None]:
    """Return the run after the end of a chunk, and the step's entry if that ends the step.

    The same object if it changes nothing: the chunk is not under way, or was stopped.
    """
    if event.outcome == "cancelled" or not is_under_way(run, event.step):
        return run, None
    step_id, number = parse_chunk(event.step) or ("", 0)
    step, state, entry = plan.steps[step_id], run.maps[step_id], run.steps[step_id]
    assert isinstance(step, MapStep)
    done = event.chunk
    if done is None:
        failure = event.failure or Failure("unknown", "its register names no cause", False)
        left = msgspec.structs.replace(state, under_way=_without(state.under_way, number))
        return _with(run, step, left), _failed(entry, event, failure, moment)
    state = _after(state, number, done)
    if state.failed > step.tolerated_failures:
        return _with(run, step, state), _failed(entry, event, _too_many(step, state, event), moment)
    if state.next < state.chunks:
        under_way = _with_next(state.under_way, state.next)
        state = msgspec.structs.replace(state, under_way=under_way, next=state.next + 1)
    run = _with(run, step, state)
    return run, None if state.under_way else _completed(entry, event, moment)


def all_failed(chunk: MapChunk) -> ChunkDone:
    """Return what the end of a chunk adds up to of which no item has a result."""
    size_bytes = chunk.count * NULL_BYTES
    return ChunkDone(
        first=chunk.first, count=chunk.count, failed=chunk.count, size_bytes=size_bytes
    )


def _after(state: MapState, number: int, done: ChunkDone) -> MapState:
    return msgspec.structs.replace(
        state,
        under_way=_without(state.under_way, number),
        done=state.done + done.count,
        failed=state.failed + done.failed,
        size_bytes=state.size_bytes + done.size_bytes,
    )


def _too_many(step: MapStep, state: MapState, event: StepEnded) -> Failure:
    first = event.chunk.failure if event.chunk else None
    cause = first or event.failure
    text = (
        f"{state.failed} items failed, and {step.tolerated_failures} are tolerated; "
        f"one of the last: {cause}"
    )
    return Failure("tolerated_failures", text, retryable=False)


def _failed(entry: StepEntry, event: StepEnded, failure: Failure, moment: Moment) -> StepEntry:
    return StepEntry(
        "failed",
        started_ms=entry.started_ms,
        ended_ms=moment.ms,
        event=event.event,
        failure=failure,
    )


def _completed(entry: StepEntry, event: StepEnded, moment: Moment) -> StepEntry:
    return StepEntry(
        "completed", started_ms=entry.started_ms, ended_ms=moment.ms, event=event.event
    )


def _with(run: RunDocument, step: MapStep, state: MapState) -> RunDocument:
    return msgspec.structs.replace(run, maps={**run.maps, step.id: state})


def _without(ranges: Ranges, number: int) -> Ranges:
    left: list[tuple[int, int]] = []
    for first, last in ranges:
        if first <= number <= last:
            left += [(first, number - 1)] if first < number else []
            left += [(number + 1, last)] if number < last else []
        else:
            left.append((first, last))
    return tuple(left)


def _with_next(ranges: Ranges, number: int) -> Ranges:
    if ranges and ranges[-1][1] == number - 1:
        return (*ranges[:-1], (ranges[-1][0], number))
    return (*ranges, (number, number))
