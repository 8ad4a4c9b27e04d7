"""What a run's view says, and what it tells a person to do.

Pure: documents and registers in, a view out.
"""

from __future__ import annotations

import msgspec
from tests.client.stage import chain, done, parked, task

from treadle.sdk import Workflow
from treadle.sdk.client.notes import Note
from treadle.sdk.client.view import Held, of_document
from treadle.sdk.messages import (
    Beat,
    Delayed,
    Ended,
    Failure,
    Fork,
    Register,
    Sleeping,
    WorkerPresence,
)
from treadle.sdk.run import RunDocument, StepEntry
from treadle.sdk.spending import SpendingLimits, Spent

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


def test_a_loop_that_was_cancelled_shows_how_far_it_had_come() -> None:
    cancelled = StepEntry("cancelled", 0, 1_000, ended_ms=8_000)
    document = msgspec.structs.replace(
        ACTIVE, status="cancelled", steps={"first": done(), "loop": cancelled}
    )
    spent = Spent(tool_calls=3)
    ended = Ended(parent="e9", outcome="cancelled", iterations=1_260, spent=spent)
    view = of_document(document, chain().build(), {"loop": Held(ended, time_ms=8_000)}, [])
    assert (view.step("loop").iterations, view.step("loop").spent) == (1_260, spent)
    assert view.step("loop").max_iterations == 0, "it was raised, and to what is not stored"


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
    unserved = "step 'loop': no worker serves task type 'think': none is running"
    assert _notes(ACTIVE, ENGINE) == [unserved]
    elsewhere = msgspec.structs.replace(WORKER, domain="other")
    (told,) = _notes(ACTIVE, ENGINE, elsewhere)
    assert "run's domain 'main' serves task type 'think'" in told and "domain 'other' do" in told


def test_the_types_of_workers_that_serve_others_are_told_within_a_bound() -> None:
    others = [
        msgspec.structs.replace(WORKER, incarnation=name, types=tuple(f"{name}{n}" for n in "0123"))
        for name in "abc"
    ]
    (told,) = _notes(ACTIVE, ENGINE, *others)
    assert "3 workers run, none serves task type 'think'; served: a0, a1," in told
    assert "c1 and 2 more." in told


def _looping(register: Register, *presence: WorkerPresence) -> tuple[Note, ...]:
    held = {"loop": Held(register, time_ms=7_000)}
    return of_document(ACTIVE, chain().build(), held, [ENGINE, *presence]).notes


def test_losses_are_told_also_while_the_next_attempt_is_served() -> None:
    (told,) = _looping(task(loop=True, iteration=3, losses=4), WORKER)
    assert "its worker died or stopped 4 times while executing iteration 3" in told.text
    assert "(losses: 4 of at most 10)" in told.text and "no worker" not in told.text
    assert told.command == "treadle run history r1"


def test_a_blocked_worker_is_told_of_as_far_as_it_matters() -> None:
    blocked = msgspec.structs.replace(
        WORKER, name="w", blocked_ms=4_200, blocked_at="/a/app.py:7", blocked_run="r9"
    )
    blocked = msgspec.structs.replace(blocked, blocked_type="think")
    fact = (
        "the event loop of worker 'w' has been blocked for 4 s at /a/app.py:7 by a handler of type "
        "'think' (run 'r9')"
    )
    (told,) = _looping(task(loop=True), blocked)
    assert told.text.startswith(f"step 'loop' waits for a blocked worker: {fact}; ")
    (told,) = _looping(task(loop=True), blocked, msgspec.structs.replace(WORKER, incarnation="x"))
    assert told.text.startswith("step 'loop' may wait for a blocked worker: ")
    (told,) = _looping(task(loop=True), msgspec.structs.replace(blocked, blocked_run="r1"))
    assert told.text.startswith("step 'loop' blocks its worker: ")
    assert _looping(Sleeping(parent="e1", task=task(loop=True), due_ms=9_000), blocked) == ()
    (told,) = _looping(task(loop=True), msgspec.structs.replace(blocked, blocked_type=""))
    assert "at /a/app.py:7; make" in told.text


def test_presence_of_older_and_newer_versions_is_read() -> None:
    old = msgspec.json.decode(b'{"incarnation":"a","types":["x"]}', type=WorkerPresence)
    assert (old.blocked_ms, old.blocked_at) == (0, "")
    new = b'{"presence":{"incarnation":"a","blocked_ms":3,"some_day":1},"some_day":2}'
    assert msgspec.json.decode(new, type=Beat).presence.blocked_ms == 3
    assert b"blocked" not in msgspec.json.encode(old)
    held = b'{"presence":{"incarnation":"a"},"held":[["r","s","t",7],["r","s","t",8,900,"new"]]}'
    beat = msgspec.json.decode(held, type=Beat)
    assert [each.executing_ms for each in beat.held] == [-1, 900]


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
    for reason, option, fields in (
        ("max_iterations", "--max-iterations", {"max_iterations": 5}),
        ("max_duration", "--max-duration", {"max_iterations": 9, "deadline_ms": 9_000}),
    ):
        entry = StepEntry("parked", 5, failure=Failure(reason))
        document = msgspec.structs.replace(ACTIVE, status="parked", steps={"loop": entry})
        held = {"loop": Held(parked(reason, iteration=5, **fields), time_ms=1)}
        view = of_document(document, chain().build(), held, [ENGINE])
        assert view.notes[0].command.startswith(f"treadle run resume r1 {option} +")
        assert view.step("loop").since_ms == 10_000


def test_a_step_that_waits_shows_for_what_and_until_when() -> None:
    entry = StepEntry("parked", 2, 1_000, failure=Failure("waiting", "the approval", False))
    document = msgspec.structs.replace(ACTIVE, status="parked", steps={"loop": entry})
    spent = Spent(tool_calls=3)
    register = parked("the approval", iteration=2, max_iterations=5, spent=spent)
    register = msgspec.structs.replace(register, waits=True, due_ms=90_000)
    run = of_document(document, chain().build(), {"loop": Held(register, 9)}, [ENGINE])
    view = run.step("loop")
    assert (view.doing, view.since_ms, view.due_ms, view.spent) == (
        "waiting",
        10_000,
        90_000,
        spent,
    )
    (note,) = run.notes
    assert note.text.startswith("step 'loop' waits for a message: the approval (it goes on by")
    assert note.command == "treadle run resume r1 --step loop"
    register = msgspec.structs.replace(register, due_ms=0)
    run = of_document(document, chain().build(), {"loop": Held(register, 9)}, [ENGINE])
    assert run.notes[0].text == "step 'loop' waits for a message: the approval"


def test_a_used_up_budget_shows_how_to_raise_it() -> None:
    spent = Spent(cost_micro_usd=5, input_tokens=5)
    for reason, option, limits in (
        ("max_cost", "--add-cost 5", SpendingLimits(cost_micro_usd=5)),
        ("max_tokens", "--add-tokens 100000", SpendingLimits(input_tokens=5)),
    ):
        entry = StepEntry("parked", 2, 1_000, failure=Failure(reason))
        document = msgspec.structs.replace(ACTIVE, status="parked", steps={"loop": entry})
        register = parked(reason, iteration=2, max_iterations=5, limits=limits, spent=spent)
        held = {"loop": Held(register, 9)}
        (note,) = of_document(document, chain().build(), held, [ENGINE]).notes
        assert note.command == f"treadle run resume r1 {option}"


def test_a_wait_whose_time_was_over_does_not_look_met() -> None:
    workflow = Workflow("flow")
    for name in ("met", "unmet", "failing", "over"):
        workflow.wait_for_signal(name, signal="go", timeout=5, on_timeout="complete")
    unanswered = Failure("timeout", "signal 'go' did not come within 5 s", retryable=False)
    steps = {
        "met": StepEntry("completed", 0, 1_000, 2_000, "e7"),
        "unmet": StepEntry("completed", 0, 1_000, 6_000, "t8"),
        "failing": StepEntry("failed", 0, 1_000, 6_000, "t9", unanswered),
        "over": StepEntry("completed", 0, 1_000, 6_000, "e3"),
    }
    document = RunDocument(run="r1", workflow="flow", definition="v", steps=steps)
    taken_over = msgspec.structs.replace(document, fork=Fork(run="r0", kept={"over": 3}))
    view = of_document(taken_over, workflow.build(), {}, [ENGINE])
    told = {step.id: step.timed_out for step in view.steps}
    assert told == {"met": "", "unmet": "complete", "failing": "fail", "over": ""}


def test_what_an_ended_run_never_came_to_is_not_reached() -> None:
    ended = msgspec.structs.replace(ACTIVE, status="failed", steps={"first": done()})
    assert of_document(ended, chain().build(), {}, []).step("loop").status == "not_reached"
    alive = msgspec.structs.replace(ended, status="running")
    assert of_document(alive, chain().build(), {}, []).step("loop").status == "waiting"
