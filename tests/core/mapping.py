"""Maps in the worlds of these tests: steps, lists, chunks, and what always holds of them.

A map handles no failure, so what says when it is a step's turn is drawn here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import strategies as st

from treadle.engine.core import Plan, StepEnded
from treadle.engine.core.maps import numbers, starts
from treadle.sdk.definition import MapStep, Retry, Step
from treadle.sdk.messages import ChunkDone, Ended, MapChunk, Register
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import chunk_id, parse_chunk

if TYPE_CHECKING:
    from tests.core.world import World

CHUNKS = tuple(f"{step_id}={number}" for step_id in "abc" for number in range(4))
"""Names of chunks, should these steps be maps."""


def map_steps(step_id: str, after: tuple[str, ...]) -> st.SearchStrategy[MapStep]:
    """Maps over short lists, and over nothing."""
    return st.builds(
        MapStep,
        id=st.just(step_id),
        after=st.just(after),
        type=st.just("each"),
        over=st.sampled_from(("", "", "", "nothing")),
        max_parallel=st.integers(1, 3),
        chunk=st.integers(0, 3),
        tolerated_failures=st.sampled_from((0, 0, 1, 4)),
        retry=st.sampled_from((Retry(), Retry(max_attempts=2))),
    )


@st.composite
def turns(draw: st.DrawFn, step: Step, later: list[Step], conditions: tuple[str, ...]) -> Step:
    """The step with conditions, a quorum and a step that handles its failure."""
    plain = (other for other in later if not isinstance(other, MapStep))
    handlers = [other.id for other in plain if not other.after]
    return msgspec.structs.replace(
        step,
        quorum=draw(st.sampled_from((0, 0, *range(1, len(step.after) + 1)))),
        when=draw(st.sampled_from(conditions)),
        on_failure=draw(st.sampled_from(("", *handlers, *handlers))),
    )


@st.composite
def told(draw: st.DrawFn, ended: StepEnded) -> StepEnded:
    """The fact with what a chunk tells, if it is about one."""
    if ended.step not in CHUNKS or ended.outcome == "cancelled":
        return ended
    failed = draw(st.sampled_from((0, 0, 0, 1)))
    chunk = ChunkDone(first=0, count=1, failed=failed, size_bytes=9)
    is_told = ended.outcome == "completed" or draw(st.booleans())
    return msgspec.structs.replace(ended, chunk=chunk if is_told else None)


def sizes_of(step: MapStep) -> list[int]:
    """Return the sizes of the items of a map's list: any list will do that is its own."""
    return [] if step.over == "nothing" else [1] * (1 + 3 * ord(step.id[0]) % 8)


def chunk_of(plan: Plan, run: RunDocument, name: str) -> MapChunk | None:
    """Return what the task of a chunk says of its items; None for the name of a step."""
    found = parse_chunk(name)
    if found is None:
        return None
    step, state = plan.steps[found[0]], run.maps[found[0]]
    assert isinstance(step, MapStep)
    begin = [*starts(sizes_of(step), state.chunk_items, state.chunk_bytes), state.items]
    first, last = begin[found[1]], begin[found[1] + 1]
    return MapChunk(
        first=first,
        count=last - first,
        attempts_max=step.retry.max_attempts,
        tolerated=step.tolerated_failures,
    )


def done(chunk: MapChunk | None, number: int) -> ChunkDone | None:
    """Return what a chunk's execution tells at its end: sometimes an item has failed."""
    if chunk is None:
        return None
    failed = int(chunk.tolerated > 0 and number % 3 == 0)
    return ChunkDone(first=chunk.first, count=chunk.count, failed=failed, size_bytes=7)


def check_map(world: World, run: RunDocument, step_id: str) -> None:
    """A map counts each chunk once, and never has more of them at work than it may."""
    step, state = world.plan.steps[step_id], run.maps[step_id]
    assert isinstance(step, MapStep)
    chunks = [chunk_id(step_id, number) for number in range(state.chunks)]
    live = [
        name
        for name in chunks
        if name in world.registers and not isinstance(world.registers[name].register, Ended)
    ]
    assert len(live) <= step.max_parallel
    under_way = {chunk_id(step_id, number) for number in numbers(state.under_way)}
    if run.steps[step_id].status == "active":
        assert 0 < len(under_way) <= step.max_parallel
    counted = [name for name in chunks[: state.next] if name not in under_way]
    ended = [world.registers[name].register for name in counted]
    done = [each.chunk for each in ended if isinstance(each, Ended) and each.chunk]
    if run.steps[step_id].status != "failed":
        assert len(done) == len(counted), "every chunk that is counted has ended"
        assert state.failed <= step.tolerated_failures
    assert state.done == sum(each.count for each in done)
    assert state.failed == sum(each.failed for each in done)
    if run.steps[step_id].status == "completed":
        assert (state.done, len(done), under_way) == (state.items, state.chunks, set())


def check_chunk_at_rest(run: RunDocument, name: str, register: Register) -> None:
    step_id, number = parse_chunk(name) or ("", 0)
    is_counted = number not in numbers(run.maps[step_id].under_way)
    if run.steps[step_id].status == "active":
        assert is_counted == isinstance(register, Ended)
    else:
        assert isinstance(register, Ended), "a map that is over has nothing at work"
