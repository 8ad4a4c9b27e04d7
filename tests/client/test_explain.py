"""Each reason from facts written by hand, and which of several decides.

Pure: documents, registers and what was found out in, an explanation out."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.client.stage import chain, done, parked, task

from treadle.sdk import Workflow, chunks
from treadle.sdk.client import Explanation, Reason, StreamItem
from treadle.sdk.client.explain.facts import (
    EngineFacts,
    Facts,
    Holder,
    Letter,
    StepFacts,
    StorageFault,
    Taken,
)
from treadle.sdk.client.explain.reasons import explanation_of
from treadle.sdk.client.explain.storing import full_text
from treadle.sdk.client.view import Held, of_document, of_request
from treadle.sdk.lanes import Ahead
from treadle.sdk.messages import (
    Beat,
    DeadLetter,
    Delayed,
    Failure,
    Parked,
    Register,
    RunRequested,
    Sleeping,
    Task,
    WorkerPresence,
)
from treadle.sdk.messages import Held as HeldTask
from treadle.sdk.run import PROVIDER_BUSY, WAITING, RunDocument, StepEntry
from treadle.sdk.spending import SpendingLimits, Spent
from treadle.sdk.times import age, date, since, until

NOW = 1_000_000
SINCE = NOW - 60_000
ENGINE = WorkerPresence(incarnation="e", role="engine")
WORKER = WorkerPresence(incarnation="w", name="w1", types=("think",), concurrency=2)
OTHER = msgspec.structs.replace(WORKER, incarnation="o", name="w2")
ACTIVE = RunDocument(
    run="r1",
    workflow="flow",
    definition="v",
    requested_ms=SINCE,
    steps={"first": done(), "loop": StepEntry("active", 0, SINCE)},
)
LIVE = task(loop=True, iteration=3, max_iterations=5, started_ms=SINCE)
TOKEN = 7


def facts(
    register: Register | None = LIVE,
    *presence: WorkerPresence,
    since_ms: int = SINCE,
    document: RunDocument = ACTIVE,
    ahead: Ahead | None = None,
    found: dict[str, Any] | None = None,
    **more: Any,
) -> Facts:
    held = {"loop": Held(register, since_ms, TOKEN)} if register is not None else {}
    processes = (ENGINE, *presence)
    view = of_document(document, chain().build(), held, processes, ahead)
    live = register if isinstance(register, Task) else getattr(register, "task", None)
    known = {"loop": StepFacts(task=live, **(found or {}))} if live is not None else {}
    return Facts(view=view, now_ms=NOW, steps=known, presence=processes, **more)


def told(*arguments: Any, **more: Any) -> tuple[Explanation, Reason]:
    explanation = explanation_of(facts(*arguments, **more))
    return explanation, explanation.main


def beat(worker: WorkerPresence, *tokens: int, executing_ms: int = 4_000) -> Beat:
    held = tuple(HeldTask("r1", "loop", "think", token, executing_ms) for token in tokens)
    return Beat(presence=worker, held=held)


def taken(executing_ms: int) -> dict[str, Any]:
    entry = HeldTask("r1", "loop", "think", TOKEN, executing_ms)
    return {"is_given_out": True, "taken": Taken(WORKER, entry, executions=3)}


# ---------------------------------------------------------------- with a worker


def test_what_executes_is_told_with_its_bounds_and_its_last_word() -> None:
    said = StreamItem(
        sequence=1, time_ms=NOW - 500, step="loop", chunk=chunks.ToolStarted(id="c", name="grep")
    )
    live = msgspec.structs.replace(LIVE, attempt=2, timeout_ms=10_000, deadline_ms=NOW + 90_000)
    explanation, reason = told(
        live,
        WORKER,
        found={**taken(4_000), "said": said},
        document=msgspec.structs.replace(ACTIVE, deadline_ms=NOW + 95_000),
    )
    assert (explanation.state, reason.kind, reason.since_ms) == (
        "healthy",
        "executing",
        NOW - 4_000,
    )
    assert reason.text == (
        f"step 'loop' executes iteration 3 (4 of at most 5), attempt 2 on worker 'w1' "
        f"({since(NOW - 4_000, NOW)}); 500ms ago it began tool 'grep'; this attempt may run "
        f"{until(NOW + 6_000, NOW)}; the loop may run {until(NOW + 90_000, NOW)}; the run may run "
        f"{until(NOW + 95_000, NOW)}"
    )


def test_an_older_worker_that_does_not_tell_for_how_long_counts_from_the_dispatch() -> None:
    _, reason = told(LIVE, WORKER, found=taken(-1))
    assert (reason.kind, reason.since_ms) == ("executing", SINCE)


def test_a_task_that_waits_for_a_slot_of_its_worker() -> None:
    explanation, reason = told(LIVE, WORKER, found=taken(0))
    assert (explanation.state, reason.kind) == ("healthy", "slot_wait")
    assert "worker 'w1', which holds 3 tasks and executes 2 at once" in reason.text


def test_a_task_that_no_living_worker_has_is_given_out_again() -> None:
    lost: dict[str, Any] = {"found": {"is_given_out": True}}
    explanation, reason = told(LIVE, WORKER, beats=(beat(WORKER),), **lost)
    assert (explanation.state, reason.kind) == ("healthy", "holder_gone")
    assert reason.command == "treadle run watch r1"
    # Not certain: one that serves it was not heard, or it was given out a moment ago.
    _, reason = told(LIVE, WORKER, OTHER, beats=(beat(WORKER),), **lost)
    assert reason.kind == "starting"
    _, reason = told(LIVE, WORKER, beats=(beat(WORKER),), since_ms=NOW - 100, **lost)
    assert reason.kind == "starting"


def test_a_task_that_no_free_worker_has_is_with_the_blocked_one() -> None:
    blocked = msgspec.structs.replace(OTHER, blocked_ms=9_000, blocked_at="/a/app.py:7")
    given: dict[str, Any] = {
        "found": {"is_given_out": True},
        "beats": (beat(WORKER), beat(blocked)),
    }
    explanation, reason = told(LIVE, WORKER, blocked, **given)
    assert (explanation.state, reason.kind) == ("stuck", "blocked")
    assert "no free one has it" in reason.text
    assert any("/a/app.py:7" in each.text for each in explanation.reasons)


def test_a_blocked_worker_is_not_the_reason_while_another_one_executes() -> None:
    blocked = msgspec.structs.replace(OTHER, blocked_ms=9_000, blocked_at="/a/app.py:7")
    explanation, _ = told(LIVE, WORKER, blocked, found=taken(4_000))
    assert [each.kind for each in explanation.reasons] == ["executing"]


def test_a_handler_that_blocks_its_worker_decides_over_what_is_executed() -> None:
    blocked = msgspec.structs.replace(
        WORKER, blocked_ms=9_000, blocked_at="/a/app.py:7", blocked_type="think", blocked_run="r1"
    )
    explanation, reason = told(LIVE, blocked, found=taken(9_000))
    assert (explanation.state, reason.kind) == ("stuck", "blocked")
    assert "for 9 s at /a/app.py:7" in reason.text


def test_a_step_that_went_on_meanwhile_is_healthy() -> None:
    explanation, reason = told(LIVE, WORKER, found={"has_moved": True})
    assert (explanation.state, reason.kind) == ("healthy", "moving")


# ---------------------------------------------------------------- not with a worker


def test_a_task_that_nobody_serves_is_told_with_its_age() -> None:
    explanation, reason = told(LIVE)
    assert (explanation.state, reason.kind) == ("stuck", "unserved")
    assert reason.text.endswith(f"none is running ({since(SINCE, NOW)})")
    assert (reason.command, reason.since_ms) == ("treadle worker FILE.py", SINCE)


def test_a_task_waits_while_all_workers_that_serve_it_are_busy() -> None:
    line: dict[str, Any] = {"found": {"before": 1_000, "is_more": True}}
    explanation, reason = told(
        LIVE, WORKER, OTHER, beats=(beat(WORKER, 1, 2), beat(OTHER, 3, 4)), **line
    )
    assert (explanation.state, reason.kind) == ("healthy", "slots_busy")
    assert "its 2 workers are busy with 4 executions of at most 4" in reason.text
    assert "more than 1000 tasks of its type are before it" in reason.text


def test_a_task_that_free_workers_leave_lying_is_a_problem() -> None:
    free: dict[str, Any] = {"beats": (beat(WORKER),)}
    explanation, reason = told(LIVE, WORKER, **free)
    assert (explanation.state, reason.kind, reason.command) == (
        "stuck",
        "untaken",
        "treadle doctor",
    )
    assert told(LIVE, WORKER, since_ms=NOW - 100, **free)[1].kind == "starting"
    # One execution of two: it has room as long as it asks for more.
    some: dict[str, Any] = {"beats": (beat(WORKER, 1),)}
    assert told(LIVE, WORKER, found={"pulls": 1}, **some)[1].kind == "untaken"
    assert told(LIVE, WORKER, found={"pulls": 0}, **some)[1].kind == "slots_busy"


def test_a_step_whose_task_is_not_stored_is_a_problem_after_a_while() -> None:
    assert told(None, WORKER)[1].kind == "undispatched"
    young = {"first": done(), "loop": StepEntry("active", 0, NOW - 100)}
    document = msgspec.structs.replace(ACTIVE, steps=young)
    assert told(None, WORKER, document=document)[1].kind == "moving"


def test_a_register_that_parked_before_its_document_says_so_is_healthy() -> None:
    _, reason = told(parked("max_iterations", iteration=5), WORKER)
    assert (reason.kind, reason.text) == ("moving", "step 'loop' has just parked")


def test_a_run_between_two_steps_is_healthy() -> None:
    document = msgspec.structs.replace(ACTIVE, steps={"first": done()})
    explanation, reason = told(None, document=document)
    assert (explanation.state, reason.text) == ("healthy", "it is between two steps")


@pytest.mark.parametrize("form", [Delayed, Sleeping])
def test_a_delay_says_until_when_and_what_failed(form: Any) -> None:
    failure = Failure("Overloaded", "try later", retry_after_ms=30_000)
    failed = msgspec.structs.replace(LIVE, attempt=2, last_failure=failure)
    due = NOW + 20_000
    explanation, reason = told(form(parent="e1", task=failed, due_ms=due), WORKER)
    assert (explanation.state, reason.kind, reason.until_ms) == ("healthy", "retry_delay", due)
    assert reason.text == (
        f"step 'loop' waits before it tries iteration 3 (4 of at most 5), attempt 2 "
        f"({until(due, NOW)}); the last one failed: Overloaded: try later, which asked to wait "
        f"30.0s at least"
    )
    _, reason = told(form(parent="e1", task=LIVE, due_ms=due), WORKER)
    assert reason.kind == "loop_delay" and "pauses before iteration 3" in reason.text


def test_a_delay_that_is_long_over_is_a_problem() -> None:
    late = Sleeping(parent="e1", task=LIVE, due_ms=NOW - 30_000)
    explanation, reason = told(late, WORKER)
    assert (explanation.state, reason.kind) == ("stuck", "overdue")
    assert reason.text.startswith(f"step 'loop' was due at {date(NOW - 30_000)}, 30.0s ago")
    _, reason = told(**waiting("the night", NOW - 30_000))
    assert reason.kind == "overdue" and reason.text.endswith(", which was 30.0s ago")
    assert reason.command == "treadle run resume r1 --step loop", "somebody may do it instead"
    assert reason.since_ms == NOW - 30_000
    _, reason = told(Delayed(parent="e1", task=LIVE, due_ms=NOW - 30_000))
    assert reason.kind == "unserved", "workers carry short delays, and none is there"


def test_losses_are_told_and_decide_nothing() -> None:
    lost = msgspec.structs.replace(LIVE, losses=2)
    explanation, _ = told(lost, WORKER, found=taken(4_000))
    assert [each.kind for each in explanation.reasons] == ["executing", "worker_lost"]
    assert told(lost)[1].kind == "unserved"


# ---------------------------------------------------------------- people, bounds


def waiting(reason: str, due_ms: int = 0) -> dict[str, Any]:
    entry = StepEntry("parked", 3, SINCE, failure=Failure(WAITING, reason, False))
    document = msgspec.structs.replace(ACTIVE, status="parked", steps={"loop": entry})
    register = Parked(
        parent="e1", task=LIVE, reason=reason, parked_ms=SINCE, waits=True, due_ms=due_ms
    )
    return {"register": register, "document": document}


def test_a_wait_for_a_message_needs_somebody_and_one_for_a_time_does_not() -> None:
    explanation, reason = told(**waiting("an idea"))
    assert (explanation.state, reason.kind) == ("stuck", "message_wait")
    assert reason.text == f"step 'loop' waits for a message: an idea ({since(SINCE, NOW)})"
    explanation, reason = told(**waiting("the night", NOW + 5_000))
    assert (explanation.state, reason.kind, reason.until_ms) == (
        "healthy",
        "timed_wait",
        NOW + 5_000,
    )
    explanation, reason = told(**waiting(f"{PROVIDER_BUSY}: 429", NOW + 5_000))
    assert (explanation.state, reason.kind) == ("healthy", "provider_busy")


def test_a_signal_is_waited_for_by_somebody_unless_another_step_works() -> None:
    flow = Workflow("flow")
    flow.wait_for_signal("go", signal="go")
    document = msgspec.structs.replace(ACTIVE, steps={"go": StepEntry("active", 0, SINCE)})
    view = of_document(document, flow.build(), {}, [ENGINE])
    explanation = explanation_of(Facts(view=view, now_ms=NOW, presence=(ENGINE,)))
    assert (explanation.state, explanation.main.kind) == ("stuck", "signal_wait")
    assert explanation.main.text == (f"step 'go' waits for the signal 'go' ({since(SINCE, NOW)})")
    flow.agent_loop("loop", "think", max_iterations=5)
    steps = {**document.steps, "loop": StepEntry("active", 0, SINCE)}
    document = msgspec.structs.replace(document, steps=steps)
    view = of_document(document, flow.build(), {"loop": Held(LIVE, SINCE, TOKEN)}, [ENGINE, WORKER])
    known = {"loop": StepFacts(task=LIVE, **taken(4_000))}
    both = explanation_of(Facts(view=view, now_ms=NOW, presence=(ENGINE, WORKER), steps=known))
    assert both.state == "healthy"
    assert [each.kind for each in both.reasons] == ["executing", "signal_wait"]


@pytest.mark.parametrize(
    ("reason", "fields", "words", "options"),
    [
        ("max_iterations", {}, "after 5 iterations", "--max-iterations +10"),
        ("max_duration", {"deadline_ms": 2_000}, "max_duration", "--max-duration +308"),
        (
            "max_cost",
            {
                "limits": SpendingLimits(cost_micro_usd=1_000_000),
                "spent": Spent(cost_micro_usd=7_250_000),
            },
            "7.25 of 1 USD used",
            "--add-cost 12",
        ),
        (
            "max_tokens",
            {
                "limits": SpendingLimits(input_tokens=9, total_tokens=100),
                "spent": Spent(input_tokens=3, output_tokens=150_000),
            },
            "150003 of 100 tokens used",
            "--add-tokens 300000",
        ),
        (
            "max_tool_calls",
            {"limits": SpendingLimits(tool_calls=4), "spent": Spent(tool_calls=6)},
            "6 of 4 tool calls used",
            "--add-tool-calls 52",
        ),
    ],
)
def test_a_bound_is_told_with_its_values_and_raised_past_what_was_used(
    reason: str, fields: dict[str, Any], words: str, options: str
) -> None:
    entry = StepEntry("parked", 5, failure=Failure(reason))
    document = msgspec.structs.replace(ACTIVE, status="parked", steps={"loop": entry})
    most = 5 if reason == "max_iterations" else 9
    register = parked(reason, iteration=5, max_iterations=most, **fields)
    explanation, main = told(register, document=document)
    assert (explanation.state, main.kind, main.since_ms) == ("stuck", "parked", 10_000)
    assert words in main.text
    assert main.command == f"treadle run resume r1 {options}"


# ---------------------------------------------------------------- lane, engine, server


def test_a_queued_run_is_stuck_if_the_one_that_holds_its_lane_is() -> None:
    document = msgspec.structs.replace(ACTIVE, status="queued", lane="chat", steps={})
    lane: dict[str, Any] = {"document": document, "ahead": Ahead(2, holder="z")}
    works = Reason(kind="executing", level="works", text="it works")
    well = Explanation(
        run="z", workflow="flow", status="running", state="healthy", at_ms=NOW, reasons=(works,)
    )
    explanation, reason = told(
        None, holders={"z": Holder(explanation=well, since_ms=SINCE)}, **lane
    )
    assert (explanation.state, reason.kind) == ("healthy", "lane_queued")
    assert reason.text == (
        f"queued in lane 'chat' behind 2 runs, held by z ({since(SINCE, NOW)}): run z of flow is "
        "getting on: it works"
    )
    assert reason.command == "treadle run show z"
    waits = Reason(kind="parked", level="waits", text="it is parked", command="treadle engine")
    stuck = msgspec.structs.replace(well, state="stuck", reasons=(waits,))
    held: dict[str, Any] = {"holders": {"z": Holder(explanation=stuck)}, "holders_stuck": 1}
    explanation, reason = told(None, **held, **lane)
    assert (explanation.state, reason.command) == ("stuck", "treadle engine")
    lane["ahead"] = Ahead(4, holder="z", several=("z", "y"), places=2)
    held["holders"]["y"] = Holder(explanation=well)
    explanation, _ = told(None, **held, **lane)
    assert explanation.state == "healthy", "the other one may leave it"
    _, reason = told(None, document=document, ahead=Ahead())
    assert (reason.kind, reason.level) == ("lane_next", "works")


def test_a_scheduled_run_is_healthy_until_it_is_long_overdue() -> None:
    document = msgspec.structs.replace(
        ACTIVE, status="scheduled", steps={}, starts_ms=NOW + 90_000, lane="chat"
    )
    explanation, reason = told(None, document=document)
    assert (explanation.state, reason.kind, reason.until_ms) == (
        *("healthy", "scheduled"),
        NOW + 90_000,
    )
    assert reason.text == (
        f"it begins at {date(NOW + 90_000)}, and enters lane 'chat' then (in {age(90_000)})"
    )
    assert reason.command == f"treadle run cancel {document.run}"
    late = msgspec.structs.replace(document, starts_ms=NOW - 60_000)
    explanation, reason = told(None, document=late)
    assert (explanation.state, reason.kind, reason.command) == (
        *("stuck", "overdue"),
        "treadle doctor",
    )
    assert reason.text == f"it was to begin at {date(NOW - 60_000)}, {age(60_000)} ago, and has not"


def test_without_an_engine_nothing_else_decides() -> None:
    requested = RunRequested(workflow="flow", definition="v")
    view = of_request("r1", requested, SINCE, chain().build(), [])
    engine = EngineFacts(pending=3, oldest_ms=SINCE, handled_ms=SINCE)
    explanation = explanation_of(Facts(view=view, now_ms=NOW, engine=engine))
    assert explanation.state == "stuck"
    assert [each.kind for each in explanation.reasons] == ["engine_down", "requested"]
    assert explanation.main.text.endswith(
        f"{age(60_000)} ago; 3 events wait, the oldest {since(SINCE, NOW)}"
    )
    assert explanation.main.command == "treadle engine"


def test_an_engine_is_behind_when_the_oldest_event_has_waited_for_long() -> None:
    working: dict[str, Any] = {"found": taken(4_000)}
    behind = EngineFacts(pending=1, oldest_ms=NOW - 5_000, behind_ms=NOW - 5_000)
    explanation, reason = told(LIVE, WORKER, engine=behind, **working)
    assert (explanation.state, reason.kind) == ("stuck", "engine_behind")
    assert "is behind: one event waits in this run's partition" in reason.text
    others = EngineFacts(pending=1, oldest_ms=NOW - 5_000)
    assert told(LIVE, WORKER, engine=others, **working)[0].state == "healthy", "not of this run"
    young = EngineFacts(pending=1, oldest_ms=NOW - 4_999, behind_ms=NOW - 4_999)
    assert told(LIVE, WORKER, engine=young, **working)[0].state == "healthy"


def test_a_server_that_takes_no_writes_decides_over_all() -> None:
    fault = StorageFault("stream X is full", "nats stream edit X")
    explanation, reason = told(LIVE, storage=(fault,))
    assert [each.kind for each in explanation.reasons] == ["storage", "unserved"]
    assert (reason.text, reason.command) == (
        "the server takes no more writes: stream X is full",
        "nats stream edit X",
    )


def test_a_stream_is_full_without_room_for_two_of_its_usual_messages() -> None:
    def told(messages: int, size: int, **config: Any) -> str:
        return full_text("X", {"config": config, "state": {"messages": messages, "bytes": size}})

    assert told(10, 1_000, max_msgs=-1, max_bytes=-1) == ""
    assert told(10, 1_000, max_msgs=10) == "stream X is full, 10 of at most 10 messages"
    assert told(9, 900, max_msgs=10) == ""
    assert told(10, 1_000, max_bytes=1_200) == ""
    assert told(10, 1_000, max_bytes=1_199) == "stream X is full, 1000 of at most 1199 bytes"
    assert told(0, 0, max_bytes=100) == ""
    assert told(0, 0, sealed=True) == "stream X is sealed"


# ---------------------------------------------------------------- the end


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_an_end_says_when_and_what_next(status: Any) -> None:
    failure = None if status == "completed" else Failure("Boom", "it broke")
    steps = {"first": done(), "loop": StepEntry("failed", 2, SINCE, NOW - 9_000)}
    document = msgspec.structs.replace(
        ACTIVE,
        status=status,
        failure=failure,
        failed_step="loop" if status == "failed" else "",
        ended_ms=NOW - 9_000,
        steps=steps,
    )
    letter = DeadLetter(reason="run_failed", run="r1", at_ms=NOW - 9_000)
    explanation, reason = told(None, document=document, hint="Raise it.", letter=Letter(letter, 4))
    assert (explanation.state, reason.kind) == ("ended", status)
    assert "9.0s ago, after 51.0s" in reason.text
    words = {
        "completed": "51.0s",
        "failed": "step 'loop', iteration 2: Boom: it broke. Raise it.",
        "cancelled": ": it broke",
    }
    assert reason.text.endswith(words[status])
    next_ = "result" if status == "completed" else "history"
    assert reason.command == f"treadle run {next_} r1"
    assert explanation.reasons[1].command == "treadle dead show 4"


def test_a_bound_that_ends_a_run_between_two_iterations_names_none_as_failed() -> None:
    steps = {"loop": StepEntry("failed", 5, SINCE, NOW)}
    failure = Failure("max_iterations", "5 iterations")
    document = msgspec.structs.replace(
        ACTIVE, status="failed", failure=failure, failed_step="loop", ended_ms=NOW, steps=steps
    )
    _, reason = told(None, document=document)
    assert reason.text.endswith(": step 'loop': max_iterations: 5 iterations")
