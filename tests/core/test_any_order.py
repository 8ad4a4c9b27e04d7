"""A whole run with two engines that die and pause anywhere, executions that outlive their tokens,
duplicates and late timers. Method: a state machine over a simulated world; what always holds is
checked after every step, and at the end, once the faults stop, every run ends."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core import admitting
from tests.core import strategies as own
from tests.core.engines import meet
from tests.core.limiting import limited
from tests.core.names import EVENTS
from tests.core.promises import check_waiters, end_child
from tests.core.world import World

from treadle.engine.core import Plan
from treadle.sdk.asks import Reply
from treadle.sdk.definition import (
    ApprovalStep,
    EventStep,
    SignalStep,
    SleepStep,
    SubWorkflowStep,
    VersionPolicy,
    wakes_ms,
)
from treadle.sdk.messages import (
    CancelRequested,
    MessageSent,
    Parked,
    PauseRequested,
    ResumeRequested,
    RunRequested,
    SignalReceived,
    Sleeping,
    Task,
)
from treadle.sdk.spending import SpendingLimits

ROUNDS_MAX = 60
anyone = st.sampled_from((0, 0, 0, 1, 1, 2, 3, 5, 8))
"""Picks one of however many there are; of events, the newest most often."""


verbs = st.sampled_from(
    (
        "continue",
        "continue",
        "continue",
        "wait",
        "wait",
        "nap",
        "line",
        "complete",
        "complete",
        "fail",
    )
)
CLIENT_EVENTS = (
    SignalReceived(name="go"),
    SignalReceived(name="stop"),
    SignalReceived(name="go", id="s1"),
    SignalReceived(name="stop", id="s2"),
    SignalReceived(name="go", id="s1", fork="another"),
    ResumeRequested(),
    PauseRequested(),
    PauseRequested(reason="again"),
    ResumeRequested(add_iterations=1),
    ResumeRequested(add_iterations=3, add_duration_ms=100_000),
    ResumeRequested(add_iterations=1, add_spending=SpendingLimits(tool_calls=2)),
    RunRequested(workflow="w", definition="another"),
)


class AnyOrder(RuleBasedStateMachine):
    """Everybody acts, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.engines: list[Generator[None, None, None] | None] = [None, None]

    @initialize(
        plan=limited(
            own.plans(
                ("agent_loop",) * 3
                + (
                    "map",
                    "task",
                    "signal",
                    "sleep",
                    "approval",
                    "choice",
                    "event",
                    "event",
                    "respond",
                )
                + ("planner", "sub_workflow"),
            )
        ),
        start_after_ms=st.sampled_from((0, 0, 0, 1, 900, 70_000)),
        policy=st.sampled_from(("pin", "latest")),
        cancel_on=st.sampled_from(((), (), (), EVENTS[:1])),
    )
    def begin(
        self, plan: Plan, start_after_ms: int, policy: VersionPolicy, cancel_on: tuple[str, ...]
    ) -> None:
        follows = msgspec.structs.replace(
            plan.definition, version_policy=policy, cancel_on=dict.fromkeys(cancel_on, "")
        )
        self.world = World(Plan(follows, plan.hash))
        self.world.request(start_after_ms)

    # ---------------------------------------------------------------- engines

    def _event(self, who: int) -> str:
        return list(self.world.unacked)[-1 - who % len(self.world.unacked)]

    @precondition(lambda self: self.world.unacked)
    @rule(slot=st.integers(0, 1), who=anyone, points=st.integers(1, 8))
    def an_engine_takes_an_event_and_pauses(self, slot: int, who: int, points: int) -> None:
        # Whatever the engine of that slot had in hand is forgotten: it was killed.
        self.engines[slot] = self.world.engine(self._event(who))
        self.an_engine_goes_on(slot, points)

    @precondition(lambda self: any(self.engines))
    @rule(slot=st.integers(0, 1), points=st.integers(1, 30))
    def an_engine_goes_on(self, slot: int, points: int) -> None:
        engine = self.engines[slot]
        for _ in range(points):
            if engine is not None and next(engine, self) is self:
                engine = self.engines[slot] = None

    @precondition(lambda self: self.world.unacked)
    @rule(one=anyone, other=anyone, turns=st.lists(st.booleans(), max_size=20))
    def two_engines_race(self, one: int, other: int, turns: list[bool]) -> None:
        pair = self.world.engine(self._event(one)), self.world.engine(self._event(other))
        for turn in turns:
            next(pair[turn], None)
        for engine in pair:
            for _ in engine:
                pass

    @rule(knows=st.booleans())
    def engines_hear_of_pauses_or_are_late(self, knows: bool) -> None:
        self.world.knows_pauses = knows

    @precondition(lambda self: self.world.unacked)
    @rule()
    def an_engine_handles_all_events(self) -> None:
        self.world.handle_all()

    @precondition(lambda self: len(self.world.log) > 5)
    @rule()
    def the_consumer_is_made_anew(self) -> None:
        self.world.redeliver_all()
        self.world.handle_all()

    @precondition(lambda self: self.world.document and self.world.document.applied)
    @rule()
    def an_engine_forgets_applied_events(self) -> None:
        self.world.forget()

    # ---------------------------------------------------------------- workers

    def _step(self, who: int) -> str:
        return list(self.world.registers)[who % len(self.world.registers)]

    @precondition(lambda self: self.world.registers)
    @rule(
        who=anyone,
        verb=verbs,
        reads=st.booleans(),
        hears=st.booleans(),
        saves=st.booleans(),
        handled=st.sampled_from(("", "verdict", "verdict", "all")),
    )
    def a_worker_executes_a_task(
        self, who: int, verb: str, reads: bool, hears: bool, saves: bool, handled: str
    ) -> None:
        execution = self.world.take(self._step(who))
        if execution is None:
            return
        if reads:
            self.world.read(execution)
        if hears:
            self.world.send(execution.step, f"while-{len(self.world.log)}")
        if saves:
            self.world.save(execution)
        self.world.settle(execution, verb)
        if handled == "verdict":
            self.world.handle(self._event(0))
        elif handled:
            self.world.handle_all()

    @precondition(lambda self: self.world.registers)
    @rule(who=anyone, verb=verbs, turns=st.lists(st.booleans(), max_size=12))
    def a_message_races_a_verdict(self, who: int, verb: str, turns: list[bool]) -> None:
        world = self.world
        execution = world.take(self._step(who))
        if execution is None:
            return
        world.read(execution)
        world.settle(execution, verb)
        verdict = world.engine(self._event(0))
        sender: Generator[None, None, None] | None = None
        for turn in turns:
            if turn or sender is None:
                next(verdict, None)
            else:
                next(sender, None)
            if turn and sender is None:
                world.send(execution.step, f"race-{len(world.log)}")
                sender = world.engine(self._event(0))
        # The one that handles the message ends, the other is killed where it stands.
        for _ in sender or ():
            pass

    @precondition(lambda self: self.world.registers)
    @rule(who=anyone, reads=st.booleans(), saves=st.booleans())
    def a_worker_gets_a_task_and_stalls(self, who: int, reads: bool, saves: bool) -> None:
        execution = self.world.take(self._step(who))
        if execution is not None and reads:
            self.world.read(execution)
        if execution is not None and saves:
            self.world.save(execution)

    @precondition(lambda self: self.world.executions)
    @rule(who=anyone, verb=verbs)
    def an_execution_settles_late_or_again(self, who: int, verb: str) -> None:
        executions = self.world.executions
        self.world.settle(executions[who % len(executions)], verb)

    @precondition(lambda self: self.world.registers)
    @rule(who=anyone, age=st.integers(0, 3))
    def a_task_is_reported_lost(self, who: int, age: int) -> None:
        step_id = self._step(who)
        self.world.lose(step_id, self.world.registers[step_id].sequence - age)

    # ---------------------------------------------------------------- time and clients

    @rule(ms=st.sampled_from((0, 100, 1_000, 60_000)))
    def time_passes_and_timers_fire(self, ms: int) -> None:
        self.world.now_ms += ms
        self.world.fire_timers()

    @rule(slot=st.integers(0, 1), points=st.integers(1, 60))
    def an_engine_looks_after_the_limits(self, slot: int, points: int) -> None:
        self.engines[slot] = admitting.sweep(self.world)
        self.an_engine_goes_on(slot, points)

    @rule(more=st.sampled_from((-2, -1, 0, 1, 3)))
    def somebody_registers_a_version(self, more: int) -> None:
        self.world.register(more)

    @rule(event=st.sampled_from(CLIENT_EVENTS))
    def a_client_sends_something(self, event: Any) -> None:
        self.world.store(event)

    @precondition(lambda self: self.world.children)
    @rule(
        step=st.sampled_from(own.STEP_IDS),
        outcome=st.sampled_from(("completed", "completed", "failed", "cancelled")),
    )
    def a_child_ends_perhaps_again(self, step: str, outcome: str) -> None:
        end_child(self.world, step, outcome)

    @rule(step=st.sampled_from(own.STEP_IDS[:3]), message_id=st.sampled_from(("m1", "m2", "m3")))
    def a_client_sends_a_message_perhaps_again(self, step: str, message_id: str) -> None:
        self.world.send(step, message_id)

    @precondition(lambda self: self.world.document)
    @rule(name=st.sampled_from(own.EVENTS))
    def somebody_publishes_an_event(self, name: str) -> None:
        self.world.publish(name)

    @precondition(lambda self: self.world.unmet)
    @rule(slot=st.integers(0, 1), who=anyone, points=st.integers(1, 8))
    def an_engine_takes_a_published_event_and_pauses(
        self, slot: int, who: int, points: int
    ) -> None:
        unmet = list(self.world.unmet)
        self.engines[slot] = meet(self.world, unmet[-1 - who % len(unmet)])
        self.an_engine_goes_on(slot, points)

    @rule(event=own.answers)
    def a_person_answers(self, event: Any) -> None:
        self.world.store(event)

    @precondition(lambda self: len(self.world.log) > 15)
    @rule(now=st.sampled_from((False, False, True)))
    def the_run_is_cancelled(self, now: bool) -> None:
        self.world.store(CancelRequested(now=now))

    # ---------------------------------------------------------------- what holds

    @invariant()
    def what_is_stored_keeps_the_promises(self) -> None:
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """The faults stop: the run ends, and everybody comes to rest."""
        if not hasattr(self, "world"):
            return
        world = self.world
        for _ in range(ROUNDS_MAX):
            while world.unacked or (world.document and world.unmet):
                world.handle_all()
                world.meet_all()
            world.sweep_slots()
            world.check_rest()
            check_waiters(world)
            assert world.document is not None
            if world.document.is_terminal:
                break
            sent = {
                event.id or event_id
                for event_id, (event, _) in world.log.items()
                if isinstance(event, SignalReceived) and not event.fork
            }
            assert world.document.signals_received == len(sent), "every signal counted once"
            self._everybody_does_their_work()
        # Paused engines wake up and do what they had in mind.
        for engine in self.engines:
            for _ in engine or ():
                pass
        while world.unacked:
            world.handle_all()
        world.sweep_slots()
        assert not any(record.holders for _, record in world.limits.records.values())
        assert not any(world.limits.waiters.values())
        world.check()
        world.check_end()

    def _everybody_does_their_work(self) -> None:
        world = self.world
        assert world.document is not None
        world.now_ms += 10_000
        world.fire_timers()
        if world.document.is_paused:
            world.store(ResumeRequested())
        for step_id, placed in list(world.registers.items()):
            match placed.register:
                case Task(loop=is_loop, iteration=iteration):
                    execution = world.take(step_id)
                    assert execution is not None
                    execution.head = world.heads[step_id]
                    world.read(execution)
                    world.settle(execution, "continue" if is_loop and not iteration else "complete")
                case Sleeping(due_ms=due_ms):
                    world.now_ms = max(world.now_ms, due_ms)
                case Parked(waits=True, due_ms=due_ms) if due_ms:
                    world.now_ms = max(world.now_ms, due_ms)
                case Parked(waits=True):
                    world.send(step_id, f"m-{len(world.log)}")
                case Parked():
                    more = SpendingLimits(tool_calls=1_000)
                    world.store(
                        ResumeRequested(add_iterations=2, add_duration_ms=10**9, add_spending=more)
                    )
                case _:
                    pass
        for step_id, entry in world.document.steps.items():
            step = world.plan.steps[step_id]
            if isinstance(step, SignalStep) and entry.status == "active":
                world.store(SignalReceived(name=step.signal))
            if isinstance(step, EventStep) and entry.status == "active":
                world.publish(step.event)
            if isinstance(step, ApprovalStep) and entry.status == "active":
                reply = Reply(call_id=step_id, verdict="approve", by="ada")
                payload = msgspec.Raw(msgspec.json.encode(reply))
                world.store(MessageSent(step=step_id, kind="reply", id="late", payload=payload))
            if isinstance(step, SubWorkflowStep) and entry.status == "active":
                end_child(world, step_id, "completed")
            if isinstance(step, SleepStep) and entry.status == "active":
                world.now_ms = max(world.now_ms, wakes_ms(step, entry.started_ms, entry.due_ms))


AnyOrder.TestCase.settings = settings(stateful_step_count=40)
TestAnyOrder = AnyOrder.TestCase
