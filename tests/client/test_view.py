"""What a run's view says, and what it tells a person to do.

Pure: documents and registers in, a view out.
"""

from __future__ import annotations

import msgspec
from tests.client.stage import chain, done, parked, task

from treadle.sdk import Workflow
from treadle.sdk.client.view import Held, of_document
from treadle.sdk.messages import Delayed, Ended, Failure, Sleeping, WorkerPresence
from treadle.sdk.run import RunDocument, StepEntry

ENGINE = WorkerPresence(incarnation="e", role="engine")
WORKER = WorkerPresence(incarnation="w", types=("think",))
ACTIVE = RunDocument(
    run="r1",
    workflow="flow",
    definition="v",
    steps={"first": done(), "loop": StepEntry("active", 0, 1_000)},
)


def _notes(document: RunDocument, *presence: WorkerPresence) -> list[str]:
    return [note.text for note in of_document(document, chain().build(), {}, presence).notes]


def test_a_live_iteration_shows_where_it_is_and_since_when() -> None:
    live = task(loop=True, iteration=3, attempt=2, max_iterations=5, last_failure=Failure("Boom"))
    held = {"loop": Held(live, time_ms=7_000)}
    view = of_document(ACTIVE, chain().build(), held, [ENGINE, WORKER]).step("loop")
    assert (view.iteration, view.attempt, view.max_iterations, view.since_ms) == (3, 2, 5, 7_000)
    assert (view.doing, view.iterations) == ("queued_or_running", 3)
    assert view.failure == Failure("Boom")


def test_a_pause_shows_when_it_ends() -> None:
    for register, doing in (
        (Delayed(parent="e1", task=task(loop=True), due_ms=9_000), "delayed"),
        (Sleeping(parent="e1", task=task(loop=True), due_ms=9_000), "sleeping"),
    ):
        held = {"loop": Held(register, time_ms=7_000)}
        view = of_document(ACTIVE, chain().build(), held, [ENGINE, WORKER]).step("loop")
        assert (view.doing, view.due_ms) == (doing, 9_000)


def test_an_ended_register_is_believed_before_its_document() -> None:
    held = {
        "loop": Held(
            Ended(parent="e9", outcome="completed", iterations=4, ended_ms=8_000), time_ms=8_000
        )
    }
    view = of_document(ACTIVE, chain().build(), held, [ENGINE, WORKER]).step("loop")
    assert (view.status, view.iterations, view.ended_ms) == ("completed", 4, 8_000)


def test_what_nobody_serves_is_told() -> None:
    assert _notes(ACTIVE, ENGINE, WORKER) == []
    assert _notes(ACTIVE, WORKER) == ["no engine is running, so nothing moves"]
    unserved = "step 'loop': no worker serves task type 'think'"
    assert _notes(ACTIVE, ENGINE) == [unserved]
    elsewhere = msgspec.structs.replace(WORKER, domain="other")
    assert _notes(ACTIVE, ENGINE, elsewhere) == [unserved]


def test_an_ended_run_asks_for_nothing() -> None:
    assert _notes(msgspec.structs.replace(ACTIVE, status="failed")) == []


def test_a_step_that_waits_shows_for_what() -> None:
    workflow = Workflow("flow")
    work = workflow.task("work", "work")
    asked = workflow.wait_for_signal("asked", signal="go", after=[work])
    workflow.task("end", "work", after=[asked])
    steps = {"work": done(), "asked": StepEntry("active", 0, 3_000)}
    document = RunDocument(run="r1", workflow="flow", definition="v", steps=steps)
    view = of_document(document, workflow.build(), {}, [ENGINE])
    assert (view.step("end").status, view.step("end").after) == ("waiting", ("asked",))
    asked_view = view.step("asked")
    assert (asked_view.doing, asked_view.signal) == ("awaiting_signal", "go")
    assert asked_view.since_ms == 3_000
    assert view.notes[0].command == "treadle run signal r1 go"


def test_a_parked_step_shows_how_to_go_on() -> None:
    for reason, option in (
        ("max_iterations", "--max-iterations"),
        ("max_duration", "--max-duration"),
    ):
        entry = StepEntry("parked", 5, failure=Failure(reason))
        document = msgspec.structs.replace(ACTIVE, status="parked", steps={"loop": entry})
        held = {"loop": Held(parked(reason, iteration=5), time_ms=1)}
        view = of_document(document, chain().build(), held, [ENGINE])
        assert view.notes[0].command.startswith(f"treadle run resume r1 {option} +")
        assert view.step("loop").since_ms == 10_000
