"""What is asked of the server, and of the living workers, about one run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence, Set
from itertools import chain, islice

import msgspec

from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError
from treadle.sdk.client.explain.engines import consumer, engine_facts, halt_of, now_of
from treadle.sdk.client.explain.facts import Facts, Letter, StepFacts, Taken
from treadle.sdk.client.explain.hearing import Heard, hear
from treadle.sdk.client.explain.storing import storage_faults
from treadle.sdk.client.limits import wait_of
from treadle.sdk.client.lineage import Lineage
from treadle.sdk.client.looking import Look
from treadle.sdk.client.notes import engine_notes, notes_of
from treadle.sdk.client.result import hint_of
from treadle.sdk.client.store import Store
from treadle.sdk.client.streaming import last_said
from treadle.sdk.client.view import Held, RunView, StepView, live
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import (
    Beat,
    DeadLetter,
    Delayed,
    Queued,
    Register,
    Sleeping,
    Task,
    WorkerPresence,
)
from treadle.sdk.stored import read
from treadle.sdk.subjects import Subjects, chunk_id

BEFORE_MAX = 1_000
"""Tasks looked at before one that waits for a worker; of a longer line only so much is told."""
CHUNKS_ASKED_MAX = 10
"""Chunks of a map under way that are looked at; they were given out in their order."""
NAMESPACES_MAX = 50
"""Other namespaces of the server that are asked for a run that is not here."""

_letters = msgspec.json.Decoder(DeadLetter)
_registers: msgspec.json.Decoder[Register] = msgspec.json.Decoder(Register)


async def facts_of(store: Store, found: Look, *, is_asked_for: bool = True) -> Facts:
    """Ask about a run, without those it waits for.

    What is the same for all runs, server and engines, is asked once: for the one asked for.
    """
    view, document = found.view, found.document
    now_ms = await now_of(store)
    facts = Facts(view=view, now_ms=now_ms, letter=await _letter(store, view.id))
    if view.is_terminal:
        hint = hint_of(document) if document and view.status == "failed" else ""
        return msgspec.structs.replace(facts, hint=hint)
    storage = await storage_faults(store) if is_asked_for else ()
    facts = msgspec.structs.replace(
        facts,
        engine=await engine_facts(store, found),
        storage=storage,
        domain=document.domain if document else facts.domain,
    )
    return await _with_steps(store, facts, found, hears_engines=is_asked_for)


# ---------------------------------------------------------------- steps, and who lives


async def _with_steps(store: Store, facts: Facts, found: Look, *, hears_engines: bool) -> Facts:
    """Add what the active steps are at, and who was heard; the rest counts as gone."""
    steps: dict[str, StepFacts] = {}
    waiting: list[tuple[StepView, Task, int]] = []
    chunks = await _chunks(store, facts, found)
    under_way = [(step, found.registers.get(step.id)) for step in facts.view.steps]
    under_way += [each for of_map in chunks.values() for each in of_map]
    for step, held in under_way:
        if step.status != "active" or held is None:
            continue
        if isinstance(held.register, Queued):
            address = f"{facts.domain}.{facts.view.id}.{step.id}.{step.type}"
            wait = await wait_of(store, address, held.register, held.sequence)
            steps[step.id] = StepFacts(task=held.register.task, wait=wait)
        elif isinstance(held.register, Delayed | Sleeping):
            steps[step.id] = StepFacts(task=held.register.task)
        elif isinstance(held.register, Task):
            waiting.append((step, held.register, held.sequence))
    lines = await asyncio.gather(*(_in_line(store, facts.domain, *each) for each in waiting))
    steps |= {step.id: each for (step, _, _), each in zip(waiting, lines, strict=True)}
    tokens = {token: step for step, _, token in waiting}
    types = {step.type for step, _ in under_way if step.id in steps}
    engines = [each for each in found.presence if each.role == "engine"] if hears_engines else []
    heard = await _heard(store, facts, found, tokens.keys(), types, engines)
    for token, step in tokens.items():
        name = step.id
        taken = _taken(list(heard.beats.values()), token)
        moved = False
        if taken is None:
            now = await store.register(facts.view.id, name, step.type, facts.domain)
            moved = now is not None and now.sequence != token
        is_step = name in found.registers
        said = await last_said(store, facts.view.id, name) if taken and is_step else None
        steps[name] = msgspec.structs.replace(steps[name], taken=taken, has_moved=moved, said=said)
    living = tuple(each for each in found.presence if each not in heard.silent)
    view = _view_of(found, living) if heard.silent else facts.view
    return msgspec.structs.replace(
        facts,
        view=view,
        now_ms=await now_of(store),
        steps=steps,
        chunks={name: tuple(view for view, _ in of_map) for name, of_map in chunks.items()},
        presence=living,
        silent=heard.silent,
        beats=tuple(heard.beats.values()),
    )


async def _chunks(
    store: Store, facts: Facts, found: Look
) -> dict[str, list[tuple[StepView, Held | None]]]:
    """Return, of each map, the first chunks under way whose tasks are stored."""
    maps = found.document.maps if found.document else {}
    chunks = dict[str, list[tuple[StepView, Held | None]]]()
    for step in facts.view.steps:
        if step.status != "active" or step.id not in maps:
            continue
        spans = maps[step.id].under_way
        numbers = chain.from_iterable(range(first, last + 1) for first, last in spans)
        for number in islice(numbers, CHUNKS_ASKED_MAX):
            name = chunk_id(step.id, number)
            with contextlib.suppress(StoredUnreadable):
                held = await store.register(facts.view.id, name, step.type, facts.domain)
                if held is None:
                    continue
                view = StepView(
                    id=name,
                    kind="task",
                    type=step.type,
                    status="active",
                    started_ms=step.started_ms,
                )
                chunks.setdefault(step.id, []).append((live(view, held), held))
    return chunks


async def _heard(
    store: Store,
    facts: Facts,
    found: Look,
    tokens: Set[int],
    types: Set[str],
    engines: Sequence[WorkerPresence],
) -> Heard:
    workers = [
        each
        for each in found.presence
        if each.role == "worker"
        and each.domain == facts.domain
        and not types.isdisjoint(each.types)
    ]
    return await hear(store.js.connection, store.subjects, tokens, workers, engines)


def _view_of(found: Look, living: Sequence[WorkerPresence]) -> RunView:
    """Return the view of the run, with the notes that it has if only these live."""
    view = found.view
    if found.document is None:
        kept = [note for note in view.notes if note.kind != "engine_down"]
        return msgspec.structs.replace(view, notes=(*kept, *engine_notes(living)))
    damaged = (note for note in view.notes if note.kind == "note")
    notes = notes_of(found.document, view.steps, living, view.ahead, found.stops)
    return msgspec.structs.replace(view, notes=(*damaged, *notes))


async def _in_line(store: Store, domain: str, step: StepView, task: Task, token: int) -> StepFacts:
    s = store.subjects
    name = s.worker_consumer(step.type, domain)
    info = await consumer(store, s.steps_stream, name)
    halt = halt_of(info, s.steps_stream, name) if info else None
    delivered = int(info["delivered"]["stream_seq"]) if info else 0
    if token <= delivered:
        return StepFacts(task=task, is_given_out=True)
    before, pulls = 0, int(info["num_waiting"]) if info else 0
    of_type = s.registers_of_type(step.type, domain)
    async for stored in store.js.read(s.steps_stream, of_type, start=delivered + 1):
        if stored.sequence >= token or before > BEFORE_MAX:
            break
        with contextlib.suppress(StoredUnreadable):
            before += isinstance(read(_registers, stored), Task)
    is_more = before > BEFORE_MAX
    return StepFacts(
        task=task, before=min(before, BEFORE_MAX), is_more=is_more, pulls=pulls, halt=halt
    )


def _taken(beats: Sequence[Beat], token: int) -> Taken | None:
    for beat in beats:
        for held in beat.held:
            if held.token == token:
                return Taken(beat.presence, held, len(beat.held))
    return None


# ---------------------------------------------------------------- letters, namespaces


async def _letter(store: Store, run: str) -> Letter | None:
    s = store.subjects
    stored = await store.js.last(s.dead_stream, s.letters(run=run))
    if stored is None:
        return None
    try:
        letter = read(_letters, stored)
    except StoredUnreadable:
        return None
    if await store.js.last(s.dead_stream, s.letter_mark(stored.subject)) is not None:
        return None  # What somebody has replayed or discarded is no news.
    heir = await Lineage(store).heir(run, letter.parent)
    if heir.is_at_work:
        return None  # Nor what others do again.
    return Letter(letter, stored.sequence)


async def elsewhere(store: Store, run: str) -> str:
    """Return where the run may be that is not in this namespace, in a sentence."""
    s = store.subjects
    here = f"It is not in namespace {s.namespace!r}"
    listing = f"List runs: `treadle run list --namespace {s.namespace}`."
    try:
        names: list[str] = (await store.js.api("STREAM.NAMES", {})).get("streams") or []
        known = [name for each in names if (name := s.namespace_of_runs(each))]
        others = [name for name in known if name != s.namespace]
        looked = others[:NAMESPACES_MAX]
        found = [name for name in looked if await _is_there(store, name, run)]
    except (ApiError, Unknown):
        return f"{here}. {listing}"
    if not found:
        some = f", nor in the first {len(looked)} of {len(others)} others"
        return f"{here}{some if len(looked) < len(others) else ''}. {listing}"
    have = f"namespace {found[0]!r} of this server has a run of that id"
    return f"{here}, and {have}: `treadle explain {run} --namespace {found[0]}`."


async def _is_there(store: Store, namespace: str, run: str) -> bool:
    other = Subjects(namespace)
    return await store.js.last(other.runs_stream, other.run_document(run)) is not None
