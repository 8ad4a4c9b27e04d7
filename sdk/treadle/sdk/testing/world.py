"""The whole engine in memory: the real core and the real handlers, no server, no waiting.

What JetStream holds is a few dictionaries here, and a sequence counter; registers are fenced
by it exactly as on a server. Everything else is the code that runs in production.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, assert_never

import msgspec

from treadle.engine.core import (
    Moment,
    Placed,
    Plan,
    RunEvent,
    advance,
    apply,
    effects,
    lists,
    request,
)
from treadle.engine.core.facts import RunPlaced
from treadle.engine.core.fitting import result_misfit
from treadle.engine.core.given import decision, needs_input
from treadle.engine.core.progress import concluded, decided, to_conclude, to_decide
from treadle.engine.waking import woken_at
from treadle.sdk.asks import Ask
from treadle.sdk.chunks import Chunk
from treadle.sdk.definition import ApprovalStep, MapStep
from treadle.sdk.given import asked_of
from treadle.sdk.handed_on import Carrier, handed_on
from treadle.sdk.messages import (
    Delayed,
    Ended,
    Event,
    Inline,
    Kept,
    LaneEntered,
    MessageSent,
    Parked,
    Register,
    ResumeRequested,
    RunRequested,
    SettleEvent,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    Task,
    TaskDue,
    TaskLost,
    TimerFired,
)
from treadle.sdk.outcome import outcome_of
from treadle.sdk.payload import PAYLOAD_BYTES_MAX
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import MAIN_DOMAIN, RegisterAddress, parse_chunk
from treadle.sdk.testing import budget
from treadle.sdk.testing.beginning import Beginning
from treadle.sdk.testing.beside import Beside
from treadle.sdk.testing.boundaries import LETS_LIVE, Boundaries, EngineDied, Side, Victim, Writer
from treadle.sdk.testing.clock import VirtualLoop
from treadle.sdk.testing.event_log import EventLog, Recorded
from treadle.sdk.testing.events import External
from treadle.sdk.testing.executor import Executor
from treadle.sdk.testing.family import Family
from treadle.sdk.testing.limits import SimulatedLimits
from treadle.sdk.testing.mortal import Workers
from treadle.sdk.testing.newer import Newer, grown
from treadle.sdk.testing.outputs import Outputs
from treadle.sdk.testing.people import Answers, People
from treadle.sdk.testing.telling import (
    MOVES,
    fact_of,
    iterations_of,
    lost_of,
    missed,
    stopped_at_once,
)
from treadle.worker.mailbox import Letters, received

CHUNK_BYTES = 64 * 1024
"""Of the items of one chunk, as of an engine's."""

BELOW = "below"
"""How the name of a timer begins that is for a run below: it outlives this one."""


class World:
    """One run, its registers, checkpoints, timers and executions."""

    def __init__(
        self,
        plan: Plan,
        workers: Workers,
        now_ms: int,
        loop: VirtualLoop,
        *,
        family: Family,
        run_id: str,
        queued_s: float = 0,
        answers: Answers | None = None,
        boundaries: Boundaries = LETS_LIVE,
    ) -> None:
        self.plan = plan
        """Of the run, with what its planners have planned."""
        self.family = family
        self.run_id = run_id
        self._epoch_ms = now_ms
        self._loop = loop
        self._beginning = Beginning(self, queued_s)
        self._sequence = 0
        self.registers: dict[str, Placed] = {}
        self.beside = Beside(self)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._boundaries = boundaries
        self._executor = Executor(self, workers, loop, boundaries)
        self._log = EventLog(
            run_id,
            self.now_ms,
            self.next_sequence,
            self._handle,
            self.reach,
            twice=boundaries.twice,
        )
        self._driven: dict[str, int] = {}
        """By step, the register whose effects are driven."""
        self._limits = SimulatedLimits(
            lambda: self.plan,
            self.run_id,
            self.now_ms,
            self.registers,
            self._grant,
            self._is_paused,
        )
        self.input = msgspec.Raw(b"null")
        self._messages: dict[str, dict[int, MessageSent]] = {}
        self.payloads: dict[int, msgspec.Raw] = {}
        """What came with the events that steps have waited for, by their sequences."""
        self.outputs = Outputs(self)
        self._cuts: dict[str, lists.Cut] = {}
        """The lists of maps in pieces, by step."""
        self.newer = Newer()
        self._people = People(self, answers)
        self._external = External(self)
        self._idle = asyncio.Event()
        self._fault: Exception | None = None
        self.ended_s = -1.0
        """Virtual seconds from the start of the simulation to the end of the run."""
        self.run: RunDocument | None = None
        self.said: list[tuple[str, Chunk]] = []
        """What was said to the output stream, each with its step."""

    def now_ms(self) -> int:
        """Return the virtual time, milliseconds since the epoch."""
        return self._epoch_ms + round(self._loop.time() * 1000)

    async def wait_idle(self) -> None:
        """Wait until nothing runs, is due or is scheduled: the run ended, or waits for someone.

        Raises what a part of the simulation raised outside of any handler.
        """
        await self._idle.wait()
        if self._fault is not None:
            raise self._fault

    def call(self, part: Callable[[], None]) -> None:
        """Do a part of the simulation; what it raises ends all of it, in ``wait_idle``."""
        try:
            part()
        except Exception as exc:  # noqa: BLE001 — the event loop would log it and go on
            self.stop(exc)

    def stop(self, fault: Exception) -> None:
        """End the simulation; of several faults the first one tells."""
        root = self.family.root
        root._fault = root._fault or fault
        root.wake()

    def after(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        """Do something later; a second one of that name replaces the first."""

        def fire() -> None:
            del self._timers[name]
            self.call(call)
            self.check_idle()

        if name in self._timers:
            self._timers[name].cancel()
        self._timers[name] = self._loop.call_later(max(0.0, delay_s), fire)

    # ---------------------------------------------------------------- events

    def publish_external(self, name: str, value: Any) -> None:
        """Publish an event to the namespace."""
        if self.run is not None:
            self._external.publish(self.plan, self.run, name, value)
        self.check_idle()

    def lose_all(self) -> None:
        """Report what the worker held, which has died."""
        self._executor.lose_all()

    def lose(self, address: RegisterAddress, token: int, task: Task) -> None:
        """Report a task of a dead worker, as an engine does."""
        lost = lost_of(address, token, task)
        self.after(f"lost-{address.step}-{token}", 0, lambda: self.publish(lost))

    def publish(self, event: Event, *, by_worker: str = "") -> None:
        """Store an event and handle it, with all its effects.

        ``by_worker`` is what it is if a worker stores it, who may die afterwards.
        """
        self._log.publish(event, by_worker)
        self.check_idle()

    @property
    def history(self) -> list[Recorded]:
        """The events so far."""
        return self._log.history

    def reach(self, what: str, by: Writer, side: Side) -> Victim:
        """Pass a boundary; the worker may be dead afterwards. Raise ``EngineDied``."""
        if self is not self.family.root:
            what = f"{what} of run {self.run_id!r}"
        victim = self._boundaries.reach(what, by, side)
        if victim.startswith("worker"):
            self.family.kill_worker()
        if victim.endswith("engine"):
            raise EngineDied
        return victim

    def _handle(self, event: Event, moment: Moment) -> None:
        match event:
            case (
                StepContinued()
                | StepWaiting()
                | StepCompleted()
                | StepFailed()
                | TaskLost()
                | TaskDue()
            ):
                self._step_event(event.step, event, moment)
            case MessageSent():
                self._messages.setdefault(event.step, {})[moment.sequence] = event
                if isinstance(self.plan.steps.get(event.step), ApprovalStep):
                    self._run_event(event, moment)
                else:
                    self._step_event(event.step, event, moment)
            case ResumeRequested():
                self._run_event(event, moment)
                for step_id, placed in list(self.registers.items()):
                    if event.step in ("", step_id) and isinstance(placed.register, Parked):
                        self._step_event(step_id, event, moment)
            case TimerFired() if event.type:
                self._step_event(event.step, event, moment)
            case LaneEntered():
                self._run_event(RunPlaced(event.request, is_queued=True), moment)
                self._beginning.entered(event.lane, moment)
            case _:
                assert not isinstance(event, Kept), "a simulated run is made of no other"
                self._run_event(event, moment)
        self.check_idle()

    def _run_event(self, event: RunEvent, moment: Moment) -> None:
        if self.run is None:
            assert isinstance(event, RunRequested), event
            before, is_queued = None, self._beginning.is_queued
            self.run = request(self.plan, event, moment, MAIN_DOMAIN, is_queued=is_queued)
            self.input = event.input
            self._beginning.requested(event, moment)
        else:
            if isinstance(event, Carrier):
                self.payloads[moment.sequence] = handed_on(event, moment.ms)
            before = self.run
            self.run = apply(self.plan, self.run, event, moment)
        self._decide(moment)
        if self.run is not before:
            after, self.run = self.run, before
            self.reach("run document", "engine", "before")
            self.run = after
            self.reach("run document", "engine", "after")
        self._drive()

    def _is_paused(self) -> bool:
        return self.run is not None and self.run.is_paused

    def _decide(self, moment: Moment) -> None:
        """Ask the conditions of the steps whose turn it is, as the engine does."""
        assert self.run is not None
        while step := to_decide(self.plan, self.run):
            given = self.outputs.input_of(step.id).value if needs_input(step) else b"null"
            fact = decision(step, *self.named(step.id), msgspec.json.decode(given))
            if fact.holds and isinstance(step, MapStep):
                data = bytes(self.outputs.input_of(step.id).value)
                fact = lists.decided(step, data, CHUNK_BYTES, PAYLOAD_BYTES_MAX)
                if fact.map is not None:
                    self._cuts[step.id] = lists.Cut(step, fact.map, data)
            self.run = decided(self.plan, self.run, woken_at(self.run, step, fact))
        if to_conclude(self.plan, self.run):
            steps = outcome_of(self.plan.own, self.run).steps
            outputs = {each.id: msgspec.json.decode(self.outputs.output(each.id)) for each in steps}
            failure = result_misfit(self.plan, self.run, outputs)
            self.run = concluded(self.plan, self.run, failure, moment)

    def named(self, step_id: str) -> tuple[Any, dict[str, Any]]:
        """Return what a match of a step may ask for: the run's input, and outputs by step."""
        assert self.run is not None
        step = self.plan.cancels.get(step_id) or self.plan.steps[step_id]
        outputs = self.outputs.named(asked_of(self.plan, self.run, step))
        return msgspec.json.decode(self.input), outputs

    def _step_event(self, step_id: str, event: Any, moment: Moment) -> None:
        placed = self.registers.get(step_id)
        if placed is None:
            return
        before = placed.register
        if before.parent != moment.id:
            new = self._advance(step_id, placed, event, moment)
            if new is before:
                if fact := missed(step_id, placed, self.run):
                    self._run_event(fact, moment)
                return
            self._place(step_id, new)
            placed = self.registers[step_id]
        is_moved = isinstance(event, MOVES) or isinstance(before, Parked)
        fact = fact_of(step_id, placed, is_moved=is_moved)
        self._drive_register(step_id)
        if isinstance(placed.register, Ended):
            self.plan = grown(self.plan, step_id, placed.register)
        if fact is not None:
            self._run_event(fact, moment)

    def _advance(self, step_id: str, placed: Placed, event: Any, moment: Moment) -> Register:
        step = self.plan.work(step_id)
        newest = max(self._messages.get(step_id, ()), default=0)
        is_current = isinstance(event, SettleEvent) and event.token == placed.sequence
        if is_current and event.head != self.beside.head(step_id):
            # Two executions of one task: neither is believed.
            event = TaskLost(step=step_id, type=step.type, token=placed.sequence)
        step, at = self.newer.at(step, placed, event)
        at = budget.informed(self, step_id, at, event)
        new = advance(step, at, event, moment, newest, is_paused=self._is_paused())
        return placed.register if new is at.register else new

    # ---------------------------------------------------------------- effects

    def _drive(self) -> None:
        assert self.run is not None
        for step in self.plan.steps.values():
            if ask := self._people.asked_by(step, self.run):
                self._people.answer(step.id, ask)
        found: list[RunEvent] = []
        for command in effects.of_document(self.plan, self.run):
            match command:
                case effects.CreateRegister():
                    if command.step not in self.registers:
                        self._place(command.step, self._first(command.step))
                    self._drive_register(command.step)
                    found += stopped_at_once(self.run, command.step, self.registers)
                case effects.EndRegister():
                    placed = self.registers.get(command.step)
                    register = placed.register if placed else None
                    if not isinstance(register, Ended):
                        moment = Moment(self.run_id, "end", self.now_ms())
                        ended = effects.cancelled(register, command.failure, moment)
                        self._place(command.step, ended)
                    self._drive_register(command.step)
                case effects.SetTimer():
                    self._set_timer(command)
                case effects.ClearTimers():
                    for name in [name for name in self._timers if not name.startswith(BELOW)]:
                        self._timers.pop(name).cancel()
                case effects.NotifyCancel():
                    self._executor.cancel(command.step)
                case effects.AwaitEvent():
                    self._external.wait(self.plan, self.run, command.step)
                case effects.ForgetWaiter():
                    pass
                case effects.StartChild():
                    found += self.family.start(self, command.step)
                case effects.CancelChild(step=step_id, attempt=attempt, reason=reason):
                    self.family.cancel(self, step_id, attempt, reason)
                case effects.TellParent():
                    self.family.tell(self, self.plan)
                case effects.EnterLane():
                    self._beginning.enter(self.run)
                case effects.SettleLane() | effects.Supersede():
                    pass  # Who else is in the lane, the one who simulates says.
                case effects.SettlePause():
                    pass  # There is one engine, and it has the document.
                case _:
                    assert_never(command)
        for fact in found:
            self._run_event(fact, Moment(self.run_id, "started", self.now_ms()))

    def _first(self, name: str) -> Register:
        assert self.run is not None
        if (found := parse_chunk(name)) is None:
            given, budgets = self.outputs.input_of(name), budget.of_step(self, name)
            first = self._limits.first(self.run, name, given, None, self.named, budgets)
            return self.newer.first(self.plan.work(name), first)
        piece, chunk = self._cuts[found[0]].piece(found[1])
        return self._limits.first(self.run, name, Inline(msgspec.Raw(piece)), chunk, self.named)

    def _set_timer(self, timer: effects.SetTimer) -> None:
        delay_s = (timer.due_ms - self.now_ms()) / 1000
        self.after(f"timer-{timer.id}", delay_s, lambda: self.publish(timer.event))

    def iterations(self, step_id: str) -> int:
        """Return how many iterations of a step are committed."""
        placed = self.registers.get(step_id)
        return iterations_of(placed.register) if placed else 0

    # ---------------------------------------------------------------- registers and executions

    def _place(self, step_id: str, register: Register) -> None:
        what = f"register of step {step_id!r}"
        self.reach(what, "engine", "before")
        self._put(step_id, register)
        self.reach(what, "engine", "after")

    def _grant(self, step_id: str, register: Register) -> None:
        """Move a register that has got its slots: an engine does not die amid that here."""
        self._put(step_id, register)
        self._drive_register(step_id)

    def _put(self, step_id: str, register: Register) -> None:
        """Store a register; who serves it has it then, whatever becomes of the engine."""
        placed = self.registers[step_id] = Placed(self.next_sequence(), register)
        step = self.plan.work(step_id)
        if isinstance(register, Delayed):
            due = TaskDue(step=step_id, type=step.type, token=placed.sequence)
            delay_s = (register.due_ms - self.now_ms()) / 1000
            self.after(f"due-{step_id}", delay_s, lambda: self.publish(due))
        if isinstance(register, Parked):
            for ask in register.asks:
                self._people.answer(step_id, ask)
        if isinstance(register, Task):
            self._executor.execute(step_id, step.type, placed.sequence, register)

    def _drive_register(self, step_id: str) -> None:
        """Drive the effects of a register, once: its timers, and what limits ask."""
        placed = self.registers[step_id]
        if self._driven.get(step_id) == placed.sequence:
            return
        self._driven[step_id] = placed.sequence
        for timer in effects.of_register(step_id, self.plan.work(step_id).type, placed.register):
            self._set_timer(timer)
        self._limits.settle(step_id, placed)

    def asks(self, step_id: str) -> tuple[Ask, ...]:
        """Return what a step asks."""
        if ask := self._people.asked_by(self.plan.steps[step_id], self.run):
            return (ask,)
        placed = self.registers.get(step_id)
        register = placed.register if placed else None
        return register.asks if isinstance(register, Parked) else ()

    @property
    def is_still(self) -> bool:
        """True when nothing more can happen in this run by itself."""
        if self.run is not None and self.run.is_terminal:
            return not any(name.startswith(BELOW) for name in self._timers)
        return not (self._timers or self._executor.is_busy)

    def check_idle(self) -> None:
        """Wake ``wait_idle`` if nothing more can happen."""
        if self.run is not None and self.run.is_terminal and self.ended_s < 0:
            self.ended_s = self._loop.time()
        if self.family.is_still:
            # Executions that end in this very step of the loop still settle.
            self._loop.call_soon(self.family.root.wake)

    def wake(self) -> None:
        """Let ``wait_idle`` return."""
        self._idle.set()

    # ---------------------------------------------------------------- what ports ask

    def letters(self, step_id: str, after: int) -> Letters:
        """Return the messages to a step that follow a sequence."""
        sent = self._messages.get(step_id, {})
        found = [received(sequence, sent[sequence]) for sequence in sent if sequence > after]
        return Letters(found, max([after, *sent]))

    def token(self, step_id: str) -> int:
        """Return the sequence of a step's register."""
        return self.registers[step_id].sequence

    def next_sequence(self) -> int:
        """Return the sequence of a new message."""
        self._sequence += 1
        return self._sequence
