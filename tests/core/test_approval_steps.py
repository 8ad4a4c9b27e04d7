"""An approval is decided once, by the first answer that may, and else by its time.
Method: answers in any order against the core; what they make of a step; simulated people."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.walks import RunWalk, plan_of

from treadle.engine.core import effects
from treadle.sdk import RunFailed, Workflow
from treadle.sdk.approvals import Approved, ask_of
from treadle.sdk.asks import Ask, Reply, Verdict
from treadle.sdk.definition import ApprovalStep, TaskStep
from treadle.sdk.messages import MessageSent, TimerFired
from treadle.sdk.testing import simulate
from treadle.worker import FailedStep, TaskContext, Worker

GATE = ApprovalStep(id="gate", prompt="Ship it?")


def answer(verdict: Verdict, *, by: str = "ada", step: str = "gate", text: str = "") -> MessageSent:
    """Return a message that answers."""
    reply = Reply(call_id=step, verdict=verdict, by=by, text=text)
    payload = msgspec.Raw(msgspec.json.encode(reply))
    return MessageSent(step=step, kind="reply", id=f"{verdict}-{by}", payload=payload)


@given(st.lists(own.answers, max_size=8))
def test_the_first_answer_that_decides_is_the_decision(answers: list[MessageSent]) -> None:
    gate = ApprovalStep(id="a", approvers=("ada",))
    walk = RunWalk(plan_of(gate, TaskStep(id="busy", type="work")))
    first = None
    for event in answers:
        before, after = walk.run, walk.send(event)
        reply = msgspec.json.decode(event.payload, type=Reply)
        may = reply.call_id == event.step == "a" and reply.by == "ada"
        if first is None and may and reply.verdict in ("approve", "reject"):
            first = reply.verdict
            expected = "completed" if first == "approve" else "failed"
            assert after.steps["a"].status == expected
            assert after.steps["a"].event == f"e{walk.sequence}"
        else:
            assert after is before
    if first is None:
        assert walk.status("a") == "active"


def test_a_rejection_fails_the_step_for_good_with_who_and_why() -> None:
    walk = RunWalk(plan_of(GATE))
    run = walk.send(answer("reject", text="not on a Friday"))
    assert run.status == "failed"
    assert run.failure is not None
    assert run.failure.type == "rejected"
    assert run.failure.message == "it was rejected by ada: not on a Friday"
    assert not run.failure.retryable


def test_what_is_no_answer_decides_nothing() -> None:
    walk = RunWalk(plan_of(GATE))
    before = walk.run
    chat = MessageSent(step="gate", kind="steer", id="m", payload=msgspec.Raw(b'"hello"'))
    for event in (chat, msgspec.structs.replace(chat, kind="reply"), answer("approve", step="x")):
        assert walk.send(event) is before


def test_an_answer_after_the_time_is_over_changes_nothing() -> None:
    late = msgspec.structs.replace(GATE, timeout_s=1, on_timeout="complete")
    walk = RunWalk(plan_of(late, TaskStep(id="busy", type="work")))
    walk.send(TimerFired(kind="step_deadline", step="gate"), after_ms=999)
    assert walk.status("gate") == "active"
    after = walk.send(TimerFired(kind="step_deadline", step="gate"), after_ms=1)
    assert (walk.status("gate"), after.steps["gate"].event[0]) == ("completed", "t")
    assert walk.send(answer("approve")) is after


def test_a_time_without_an_answer_fails_the_step_by_default() -> None:
    walk = RunWalk(plan_of(msgspec.structs.replace(GATE, timeout_s=1)))
    run = walk.send(TimerFired(kind="step_deadline", step="gate"), after_ms=1_000)
    assert run.failure is not None
    assert (run.failure.type, run.failure.message) == (
        "timeout",
        "an answer did not come within 1 s",
    )


def test_an_approval_needs_no_register_and_a_timer_only_for_its_time() -> None:
    assert effects.of_document(plan_of(GATE), RunWalk(plan_of(GATE)).run) == ()
    plan = plan_of(msgspec.structs.replace(GATE, timeout_s=1))
    (timer,) = effects.of_document(plan, RunWalk(plan).run)
    assert isinstance(timer, effects.SetTimer)


def test_what_is_asked_is_bounded_whatever_the_input() -> None:
    big = msgspec.Raw(msgspec.json.encode("x" * 500_000))
    ask = ask_of(GATE, 1_000, big)
    assert len(bytes(ask.input)) <= 32 * 1024
    assert ask.full_bytes == len(bytes(big))


# ------------------------------------------------------------------ simulated people


def _release() -> tuple[Workflow, Worker]:
    workflow = Workflow("release", input=dict)
    gate = workflow.approval("gate", prompt="Ship it?", on_failure="tell", timeout=60)
    workflow.task("ship", after=gate)
    workflow.task("tell")
    worker = Worker()

    @worker.handler("ship")
    async def ship(ctx: TaskContext[Approved]) -> str:
        assert ctx.input.approved
        return f"{ctx.input.by}: {ctx.input.comment} at {ctx.input.at}"

    @worker.handler("tell")
    async def tell(ctx: TaskContext[FailedStep]) -> str:
        return str(ctx.input.failure)

    return workflow, worker


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        (
            Reply(call_id="gate", verdict="approve", by="ada", text="fine"),
            "ada: fine at 2026-01-01T00:00:00.000Z",
        ),
        (
            Reply(call_id="gate", verdict="reject", by="bob", text="no"),
            "rejected: it was rejected by bob: no",
        ),
        (None, "timeout: an answer did not come within 60 s"),
    ],
)
def test_a_simulated_person_decides(reply: Reply | None, result: str) -> None:
    asked: list[Ask] = []

    def person(ask: Ask) -> Reply | None:
        asked.append(ask)
        return reply

    run = asyncio.run(simulate(*_release()[:1], {"n": 1}, _release()[1], answers=person))
    assert run.result() == result
    assert {(ask.id, ask.kind, ask.text, bytes(ask.input)) for ask in asked} == {
        ("gate", "approval", "Ship it?", b'{"n":1}')
    }


def test_a_simulation_without_people_says_what_it_waits_for() -> None:
    workflow = Workflow("w")
    workflow.approval("gate", prompt="Ship it?")
    run = asyncio.run(simulate(workflow))
    assert run.waits_for == ("step 'gate' waits for an approval: Ship it?",)
    assert run.step("gate").asks[0].text == "Ship it?"


def test_a_rejection_undoes_what_has_completed() -> None:
    workflow = Workflow("w")
    book = workflow.task("book", compensate="cancel")
    workflow.approval("gate", after=book)
    workflow.task("cancel")
    worker = Worker()
    ran: list[str] = []

    @worker.handler("book")
    @worker.handler("cancel")
    async def note(ctx: TaskContext[object]) -> str:
        ran.append(ctx.step)
        return ctx.step

    reject = Reply(call_id="gate", verdict="reject")
    run = asyncio.run(simulate(workflow, None, worker, answers=lambda _: reject))
    with pytest.raises(RunFailed, match="rejected"):
        run.result()
    assert ran == ["book", "cancel"]
