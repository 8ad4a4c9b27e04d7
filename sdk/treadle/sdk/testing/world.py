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
    ChildStarted,
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
from treadle.engine.core.fitting import result_misfit
from treadle.engine.core.given import decision, needs_input
from treadle.engine.core.maps import output_of
from treadle.engine.core.progress import concluded, decided, to_conclude, to_decide
from treadle.sdk.asks import Ask
from treadle.sdk.chunks import Chunk
from treadle.sdk.definition import (
    ApprovalStep,
    ChoiceStep,
    MapStep,
    PlannerStep,
    SubWorkflowStep,
    WaitStep,
)
from treadle.sdk.errors import InvariantError
from treadle.sdk.gathering import Part, gather
from treadle.sdk.given import asked_of, failed_before, given_by, shape_of
from treadle.sdk.handed_on import Carrier, handed_on
from treadle.sdk.messages import (
    Delayed,
    Ended,
    Event,
    Inline,
    LaneGranted,
    MessageSent,
    Parked,
    Queued,
    Register,
    ResumeRequested,
    RunRequested,
    Sleeping,
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
from treadle.sdk.planned import extended
from treadle.sdk.plans import result_of
from treadle.sdk.run import RunDocument, detached_output, has_output
from treadle.sdk.shape import Shape, assembled, leaves
from treadle.sdk.subjects import MAIN_DOMAIN, chunk_id, parse_chunk
from treadle.sdk.testing.beside import Beside
from treadle.sdk.testing.clock import VirtualLoop
from treadle.sdk.testing.events import External
from treadle.sdk.testing.executor import Executor
from treadle.sdk.testing.family import Family
from treadle.sdk.testing.limits import SimulatedLimits
from treadle.sdk.testing.people import Answers, People
from treadle.sdk.testing.telling import told
from treadle.worker.execution import Fenced
from treadle.worker.mailbox import Letters, received
from treadle.worker.registry import Handler

CHUNK_BYTES = 64 * 1024
"""Of the items of one chunk, as of an engine's."""

BELOW = "below"
"""How the name of a timer begins that is for a run below: it outlives this one."""


class Recorded(msgspec.Struct, frozen=True):
    """An event of the simulated history."""

    sequence: int
    time_ms: int
    event: Event


class World:
    """One run, its registers, checkpoints, timers and executions."""

    def __init__(
        self,
        plan: Plan,
        handlers: dict[str, Handler],
        now_ms: int,
        loop: VirtualLoop,
        *,
        family: Family,
        run_id: str,
        queued_s: float = 0,
        answers: Answers | None = None,
    ) -> None:
        self.plan = plan
        """Of the run, with what its planners have planned."""
        self._family = family
        self.run_id = run_id
        self._epoch_ms = now_ms
        self._loop = loop
        self._queued_s = queued_s
        self._sequence = 0
        self._registers: dict[str, Placed] = {}
        self.beside = Beside(self)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._executor = Executor(self, handlers, loop)
        self._limits = SimulatedLimits(
            lambda: self.plan,
            self.run_id,
            self.now_ms,
            self._registers,
            self._place,
            self._is_paused,
        )
        self._input = msgspec.Raw(b"null")
        self._messages: dict[str, dict[int, MessageSent]] = {}
        self._payloads: dict[int, msgspec.Raw] = {}
        self._cuts: dict[str, lists.Cut] = {}
        """The lists of maps in pieces, by step."""
        self._people = People(self, answers)
        self._external = External(self)
        self._idle = asyncio.Event()
        self._fault: Exception | None = None
        self.ended_s = -1.0
        """Virtual seconds from the start of the simulation to the end of the run."""
        self.run: RunDocument | None = None
        self.history: list[Recorded] = []
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
        root = self._family.root
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

    def publish(self, event: Event) -> None:
        """Store an event and handle it, with all its effects."""
        self._sequence += 1
        letter = "t" if isinstance(event, TimerFired) else "e"
        moment = Moment(self.run_id, f"{letter}{self._sequence}", self.now_ms(), self._sequence)
        self.history.append(Recorded(self._sequence, moment.ms, event))
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
                for step_id, placed in list(self._registers.items()):
                    if event.step in ("", step_id) and isinstance(placed.register, Parked):
                        self._step_event(step_id, event, moment)
            case TimerFired() if event.type:
                self._step_event(event.step, event, moment)
            case _:
                self._run_event(event, moment)
        self.check_idle()

    def _run_event(self, event: RunEvent, moment: Moment) -> None:
        if self.run is None:
            assert isinstance(event, RunRequested), event
            is_queued = self._queued_s > 0
            self.run = request(self.plan, event, moment, MAIN_DOMAIN, is_queued=is_queued)
            self._input = event.input
            if is_queued:
                granted = LaneGranted(lane=event.lane, request=moment.sequence)
                self.after("lane", self._queued_s, lambda: self.publish(granted))
        else:
            if isinstance(event, Carrier):
                self._payloads[moment.sequence] = handed_on(event, moment.ms)
            self.run = apply(self.plan, self.run, event, moment)
        self._decide(moment)
        self._drive()

    def _is_paused(self) -> bool:
        return self.run is not None and self.run.is_paused

    def _decide(self, moment: Moment) -> None:
        """Ask the conditions of the steps whose turn it is, as the engine does."""
        assert self.run is not None
        while step := to_decide(self.plan, self.run):
            given = self.input_of(step.id).value if needs_input(step) else b"null"
            fact = decision(step, *self.named(step.id), msgspec.json.decode(given))
            if fact.holds and isinstance(step, MapStep):
                data = bytes(self.input_of(step.id).value)
                fact = lists.decided(step, data, CHUNK_BYTES, PAYLOAD_BYTES_MAX)
                if fact.map is not None:
                    self._cuts[step.id] = lists.Cut(step, fact.map, data)
            self.run = decided(self.plan, self.run, fact)
        if to_conclude(self.plan, self.run):
            steps = outcome_of(self.plan.own, self.run).steps
            outputs = {each.id: msgspec.json.decode(self.output(each.id)) for each in steps}
            failure = result_misfit(self.plan, self.run, outputs)
            self.run = concluded(self.plan, self.run, failure, moment)

    def named(self, step_id: str) -> tuple[Any, dict[str, Any]]:
        """Return what a match of a step may ask for: the run's input, and outputs by step."""
        assert self.run is not None
        asked = asked_of(self.plan, self.run, self.plan.steps[step_id])
        outputs = {name: msgspec.json.decode(self._put_together(of)) for name, of in asked.items()}
        return msgspec.json.decode(self._input), outputs

    def _step_event(self, step_id: str, event: Any, moment: Moment) -> None:
        placed = self._registers.get(step_id)
        if placed is None:
            return
        newest = max(self._messages.get(step_id, ()), default=0)
        step = self.plan.work(step_id)
        new = advance(step, placed, event, moment, newest, is_paused=self._is_paused())
        if new is placed.register:
            return
        self._place(step_id, new)
        if isinstance(new, Ended):
            self._extend(step_id, new)
        fact = told(step_id, placed.register, Placed(self._sequence, new), moment)
        if fact is not None:
            self._run_event(fact, moment)

    def _extend(self, step_id: str, ended: Ended) -> None:
        """Add to the run's plan what a planner has planned."""
        if isinstance(self.plan.steps.get(step_id), PlannerStep) and ended.outcome == "completed":
            definition, plans = extended(self.plan.definition, {step_id: bytes(ended.output)})
            self.plan = Plan(definition, self.plan.hash, {**self.plan.plans, **plans})

    # ---------------------------------------------------------------- effects

    def _drive(self) -> None:
        assert self.run is not None
        for step in self.plan.steps.values():
            if ask := self._people.asked_by(step, self.run):
                self._people.answer(step.id, ask)
        found: list[ChildStarted] = []
        for command in effects.of_document(self.plan, self.run):
            match command:
                case effects.CreateRegister():
                    if command.step not in self._registers:
                        self._place(command.step, self._first(command.step))
                case effects.EndRegister():
                    placed = self._registers.get(command.step)
                    register = placed.register if placed else None
                    if not isinstance(register, Ended):
                        moment = Moment(self.run_id, "end", self.now_ms())
                        ended = effects.cancelled(register, command.failure, moment)
                        self._place(command.step, ended)
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
                    found += self._start_child(command.step)
                case effects.CancelChild(step=step_id, attempt=attempt, reason=reason):
                    self._family.cancel(self, step_id, attempt, reason)
                case effects.TellParent():
                    self._family.tell(self, self.plan)
                case effects.SettleLane() | effects.Supersede():
                    pass  # Who else is in the lane, the one who simulates says.
                case effects.SettlePause():
                    pass  # There is one engine, and it has the document.
                case _:
                    assert_never(command)
        for fact in found:
            self._run_event(fact, Moment(self.run_id, "started", self.now_ms()))

    def _start_child(self, step_id: str) -> list[ChildStarted]:
        step = self.plan.steps[step_id]
        assert isinstance(step, SubWorkflowStep)
        started = self._family.start(self, step, bytes(self.input_of(step_id).value))
        return [started] if started else []

    def _first(self, name: str) -> Register:
        assert self.run is not None
        found = parse_chunk(name)
        if found is None:
            return self._limits.first(self.run, name, self.input_of(name), None, self.named)
        piece, chunk = self._cuts[found[0]].piece(found[1])
        return self._limits.first(self.run, name, Inline(msgspec.Raw(piece)), chunk, self.named)

    def _set_timer(self, timer: effects.SetTimer) -> None:
        delay_s = (timer.due_ms - self.now_ms()) / 1000
        self.after(f"timer-{timer.id}", delay_s, lambda: self.publish(timer.event))

    def input_of(self, step_id: str) -> Inline:
        """Return the input of a step whose turn it is, or was."""
        assert self.run is not None
        step = self.plan.steps[step_id]
        if failed := failed_before(self.plan, self.run, step):
            return Inline(msgspec.Raw(msgspec.json.encode(failed)))
        shape = shape_of(self.plan, self.run, step)
        return Inline(self._input if shape is None else self._put_together(shape))

    def _put_together(self, shape: Shape) -> msgspec.Raw:
        values = {
            leaf: given_by(self.plan, leaf) or bytes(self._own(leaf)) for leaf in leaves(shape)
        }
        return msgspec.Raw(assembled(shape, values))

    def left(self, step_id: str) -> msgspec.Raw:
        """Return what a step that is over has left, also one that failed at a bound."""
        placed = self._registers.get(step_id)
        register = placed.register if placed else None
        if isinstance(self.plan.steps[step_id], MapStep) and not self._is_completed(step_id):
            return msgspec.Raw(b"null")
        return register.output if isinstance(register, Ended) else self.output(step_id)

    def _is_completed(self, step_id: str) -> bool:
        entry = self.run.steps.get(step_id) if self.run else None
        return entry is not None and entry.status == "completed"

    def output(self, step_id: str) -> msgspec.Raw:
        """Return the output of a step that has ended; of a planner, the result of its plan."""
        assert self.run is not None
        return self._put_together(result_of(self.plan.plans, self.run, step_id))

    def _own(self, step_id: str) -> msgspec.Raw:
        assert self.run is not None
        step = self.plan.steps[step_id]
        if not has_output(self.run, step):
            return msgspec.Raw(b"null")
        if isinstance(step, ChoiceStep):
            return msgspec.Raw(msgspec.json.encode(self.run.chosen[step_id]))
        if isinstance(step, SubWorkflowStep) and step.detached:
            return msgspec.Raw(detached_output(self.run, step_id))
        if isinstance(step, WaitStep | SubWorkflowStep):
            return self._payloads[int(self.run.steps[step_id].event[1:])]
        if isinstance(step, MapStep):
            parts = (self._part(chunk_id(step_id, n)) for n in range(self.run.maps[step_id].chunks))
            return msgspec.Raw(gather(parts, output_of(step, self.run)))
        register = self._registers[step_id].register
        if not isinstance(register, Ended):
            raise InvariantError(f"step {step_id!r} has not ended")
        return register.output

    def _part(self, name: str) -> Part:
        ended = self._registers[name].register
        assert isinstance(ended, Ended)
        records = ended.chunk.records if ended.chunk else 0
        return Part(ended, [record.body for record in self.beside.records(name)[:records]])

    def iterations(self, step_id: str) -> int:
        """Return how many iterations of a step are committed."""
        placed = self._registers.get(step_id)
        match placed.register if placed else None:
            case None:
                return 0
            case Ended() as ended:
                return ended.iterations
            case Task() as task:
                return task.iteration
            case Queued() | Delayed() | Sleeping() | Parked() as held:
                return held.task.iteration

    # ---------------------------------------------------------------- registers and executions

    def _place(self, step_id: str, register: Register) -> None:
        self._sequence += 1
        placed = self._registers[step_id] = Placed(self._sequence, register)
        step = self.plan.work(step_id)
        for timer in effects.of_register(step_id, step.type, register):
            self._set_timer(timer)
        if isinstance(register, Delayed):
            due = TaskDue(step=step_id, type=step.type, token=placed.sequence)
            delay_s = (register.due_ms - self.now_ms()) / 1000
            self.after(f"due-{step_id}", delay_s, lambda: self.publish(due))
        if isinstance(register, Parked):
            for ask in register.asks:
                self._people.answer(step_id, ask)
        if isinstance(register, Task):
            self._executor.execute(step_id, step.type, placed.sequence, register)
        self._limits.settle(step_id, placed)

    def asks(self, step_id: str) -> tuple[Ask, ...]:
        """Return what a step asks."""
        if ask := self._people.asked_by(self.plan.steps[step_id], self.run):
            return (ask,)
        placed = self._registers.get(step_id)
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
        if self._family.is_still:
            # Executions that end in this very step of the loop still settle.
            self._loop.call_soon(self._family.root.wake)

    def wake(self) -> None:
        """Let ``wait_idle`` return."""
        self._idle.set()

    # ---------------------------------------------------------------- what ports ask

    def letters(self, step_id: str, after: int) -> Letters:
        """Return the messages to a step that follow a sequence."""
        sent = self._messages.get(step_id, {})
        found = [received(sequence, sent[sequence]) for sequence in sent if sequence > after]
        return Letters(found, max([after, *sent]))

    def next_beside(self, step_id: str, newest: int, head: int) -> int:
        """Return the sequence of a write beside a register; raise ``Fenced`` if that has moved."""
        if max(self._registers[step_id].sequence, newest) != head:
            raise Fenced("the step has moved on")
        self._sequence += 1
        return self._sequence
