"""What a map is at: what its chunks say that are under way.

Method: facts written by hand, an explanation out; and a client that asks a real server about a
worker which gives no sign of life.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.client.stage import Stage, play, task
from tests.client.test_explain import ENGINE, NOW, SINCE, WORKER, beat

from treadle.sdk import Workflow
from treadle.sdk.client.explain.facts import Facts, Halt, StepFacts, Taken
from treadle.sdk.client.explain.reason import Explanation
from treadle.sdk.client.explain.reasons import explanation_of
from treadle.sdk.client.limits import Wait
from treadle.sdk.client.view import Held, StepView, live, of_document
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.messages import Delayed, Failure, Parked, Queued, Register, WorkerPresence
from treadle.sdk.messages import Held as HeldTask
from treadle.sdk.run import MapState, Pause, RunDocument, StepEntry
from treadle.sdk.settings import Settings
from treadle.sdk.times import since, until

TASK = task(started_ms=SINCE)
FAILED = task(attempt=2, last_failure=Failure("Boom", "it broke"))
DONE = f"step 'map' has done 4 of 9 items ({since(SINCE, NOW)})"
DOCUMENT = RunDocument(
    run="r1",
    workflow="flow",
    definition="v",
    requested_ms=SINCE,
    steps={"map": StepEntry("active", 0, SINCE)},
    maps={"map": MapState(9, 9, 1, 1_000, next=6, under_way=((4, 5),), done=4)},
)
DELAYED = Delayed(parent="e1", task=FAILED, due_ms=NOW + 9_000)
HELD = Parked(parent="e1", task=TASK, reason="", parked_ms=SINCE, paused=True)
QUEUED = Queued(parent="e1", task=TASK, since_ms=SINCE)


def flow() -> WorkflowDefinition:
    workflow = Workflow[Any]("flow")
    workflow.map("map", "think")
    return workflow.build()


Chunk = tuple[Register, dict[str, Any]]
"""The register of a chunk, and what was found out about its task."""


def explained(
    *chunks: Chunk,
    document: RunDocument = DOCUMENT,
    presence: tuple[WorkerPresence, ...] = (ENGINE, WORKER),
    **more: Any,
) -> Explanation:
    views, steps = list[StepView](), dict[str, StepFacts]()
    for number, (register, found) in enumerate(chunks, 4):
        chunk = StepView(id=f"map={number}", kind="task", type="think", status="active")
        views.append(live(chunk, Held(register, SINCE, number)))
        steps[chunk.id] = StepFacts(task=getattr(register, "task", TASK), **found)
    view = of_document(document, flow(), {}, presence)
    known = Facts(
        view=view,
        now_ms=NOW,
        steps=steps,
        chunks={"map": tuple(views)},
        presence=presence,
        **more,
    )
    return explanation_of(known)


def test_a_map_that_works_at_any_chunk_gets_on() -> None:
    held = HeldTask("r1", "map=4", "think", 4, 4_000)
    taken: dict[str, Any] = {"is_given_out": True, "taken": Taken(WORKER, held)}
    cases: list[list[Chunk]] = [[], [(TASK, taken)], [(DELAYED, {}), (TASK, taken)]]
    for chunks in cases:
        told = explained(*chunks)
        assert (told.state, told.main.kind, told.main.text) == ("healthy", "mapping", DONE)


@pytest.mark.parametrize(
    ("register", "found", "state", "kind", "words"),
    [
        (
            DELAYED,
            {},
            "healthy",
            "retry_delay",
            f"waits before it tries attempt 2 ({until(NOW + 9_000, NOW)}); the last one failed: "
            "Boom: it broke",
        ),
        (
            QUEUED,
            {"wait": Wait(label="db", limit=1, before=2)},
            "healthy",
            "limited",
            "waits for the slot of limit 'db'; 2 before it",
        ),
        (TASK, {}, "stuck", "untaken", "is to execute its task, one worker serves it, and has not"),
        (TASK, {"is_given_out": True}, "healthy", "holder_gone", "and none that lives has it"),
        (
            TASK,
            {"halt": Halt("its consumer is paused", "nats consumer resume")},
            "stuck",
            "untaken",
            "the server gives it to no worker: its consumer is paused",
        ),
    ],
)
def test_a_map_that_works_at_none_says_what_they_are_at(
    register: Register, found: dict[str, Any], state: str, kind: str, words: str
) -> None:
    told = explained((register, found), beats=(beat(WORKER),))
    assert (told.state, told.main.kind, told.main.step) == (state, kind, "map")
    assert told.main.text.startswith(f"{DONE}; chunk 4 ")
    assert words in told.main.text


def test_of_chunks_that_do_not_work_the_one_is_told_that_needs_somebody() -> None:
    told = explained((DELAYED, {}), (TASK, {}), beats=(beat(WORKER),))
    assert (told.state, told.main.kind) == ("stuck", "untaken")
    assert told.main.text.startswith(f"{DONE}; chunk 5, one of those under way, is to execute")


@pytest.mark.parametrize("register", [None, HELD, DELAYED])
@pytest.mark.parametrize("presence", [(ENGINE, WORKER), (ENGINE,)])
def test_a_paused_run_with_a_map_is_stuck_until_it_is_resumed(
    register: Register | None, presence: tuple[WorkerPresence, ...]
) -> None:
    pause = Pause(event="e9", since_ms=SINCE)
    paused = msgspec.structs.replace(DOCUMENT, status="paused", pause=pause)
    chunks: list[Chunk] = [(register, {})] if register is not None else []
    told = explained(*chunks, document=paused, presence=presence)
    assert (told.state, told.main.kind) == ("stuck", "paused")
    assert told.main.command == "treadle run resume r1"


@pytest.mark.slow
def test_a_worker_of_a_map_that_gives_no_sign_of_life_is_named(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(flow())
        fields = {name: getattr(DOCUMENT, name) for name in ("steps", "maps")}
        await stage.document("r1", definition=version, **fields)
        for number in (4, 5):
            await stage.register("r1", f"map={number}", "think", TASK)
        await stage.present("engine")
        await stage.present("worker", "think", beats=False)
        told = await stage.client.explain("r1")
        assert (told.state, told.main.kind) == ("stuck", "unserved")
        assert "; worker 'worker1' gives no sign of life: dead, stopped" in told.main.text

    play(settings, story)
