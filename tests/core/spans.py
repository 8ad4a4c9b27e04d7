"""Whatever happened to a run, its log folds to a tree: looked at after every simulated life."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from treadle.sdk.messages import (
    RunRequested,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    TaskLost,
)
from treadle.sdk.subjects import chunk_id
from treadle.sdk.tracing import names
from treadle.sdk.tracing.fold import RunFold
from treadle.sdk.tracing.span import Span

if TYPE_CHECKING:
    from tests.core.world import World

TRACE = f"{'7' * 32}-01"


def spans_of(world: World, *, live: bool = False, is_early: bool = False) -> list[Span]:
    """Fold the log, then the document as it stands in the end.

    With ``is_early`` a document in which every step has begun is read before their events.
    """
    assert world.document is not None
    fold = RunFold(world.document.run, world.base.definition, live=live)
    spans: list[Span] = []
    begun = {
        name: replace(entry, status="active", ended_ms=0)
        for name, entry in world.document.steps.items()
    }
    for event, moment in world.log.values():
        if isinstance(event, TaskLost) and (event.step, event.token) not in world.given_out:
            continue  # No such task was ever given out; only the engine has to bear it.
        spans += fold.event(event, moment.ms * 1_000)
        if is_early and isinstance(event, RunRequested):
            spans += fold.document(replace(world.document, status="running", steps=begun))
    spans += fold.document(world.document)
    assert fold.document(world.document) == [], "what is over is said once"
    return spans


def check_spans(world: World) -> None:
    """One root in each trace, no orphan, no id twice; each committed iteration has its span."""
    spans = spans_of(world)
    assert spans_of(world, is_early=True) == spans, "whenever the document was read"
    for found in (spans, spans_of(world, live=True)):
        ids = Counter((span.trace_id, span.span_id) for span in found)
        twice = [one for one, count in ids.items() if count > 1]
        assert not twice, [span for span in found if (span.trace_id, span.span_id) in twice]
        assert all(not span.parent_id or (span.trace_id, span.parent_id) in ids for span in found)
        roots = Counter(span.trace_id for span in found if not span.parent_id)
        assert set(roots) == {span.trace_id for span in found} and set(roots.values()) == {1}
        assert all(span.start_us <= span.end_us for span in found)
    seen = {
        (
            _name(span),
            span.attributes[names.ITERATION],
            span.attributes[names.ATTEMPT],
        )
        for span in spans
        if names.ATTEMPT in span.attributes
    }
    verdicts = StepContinued | StepWaiting | StepCompleted | StepFailed | TaskLost
    told = {
        (event.step, event.iteration, event.attempt)
        for event, _ in world.log.values()
        if isinstance(event, verdicts)
    }
    # Beside what was told, at most the execution that was under way when its step was ended.
    chunks = sum(state.chunks for state in world.document.maps.values()) if world.document else 0
    assert len(seen - told) <= len(world.plan.steps) + chunks
    for step_id, entry in world.document.steps.items():
        done = {iteration for step, iteration, _ in seen if step == step_id}
        assert set(range(entry.iterations)) <= done, (step_id, entry, sorted(done))


def _name(span: Span) -> str:
    """Return the step of a span, or the chunk of a map."""
    step, chunk = str(span.attributes[names.STEP]), span.attributes.get(names.CHUNK)
    return step if chunk is None else chunk_id(step, int(chunk))
