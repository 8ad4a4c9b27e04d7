"""What JetStream holds of one run, and everybody who acts on it, without a server.

Streams are dictionaries and sequence counters; a register and its checkpoint are one pair
under one fence, as in ``docs/design.md``. Workers make outputs that name the input they read,
so the committed iterations are a chain that can be walked back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import msgspec
from tests.core import admitting, budgets, engines, mapping, planning
from tests.core.promises import check_children, check_messages, check_waiters
from tests.core.spans import TRACE, check_spans
from tests.core.strategies import EPOCH_MS, RUN
from tests.core.turns import check_all_begun, check_pause, check_turn

from treadle.engine.core import Moment, Placed, Plan, effects, forget_applied
from treadle.engine.core.bounds import spent_by, task_of
from treadle.sdk.definition import (
    AgentLoopStep,
    PlannerStep,
    Step,
    SubWorkflowStep,
    WorkStep,
)
from treadle.sdk.messages import (
    Delayed,
    Ended,
    EventMatched,
    Failure,
    Inline,
    MessageSent,
    Parked,
    Register,
    ResumeRequested,
    RunRequested,
    SignalReceived,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    Task,
    TaskDue,
    TaskLost,
    TimerFired,
)
from treadle.sdk.run import NOT_BEGUN, WAITING, RunDocument
from treadle.sdk.spending import Spent
from treadle.sdk.subjects import step_of
from treadle.sdk.testing.newer import Newer


@dataclass
class Execution:
    """A handler that runs, perhaps long after its token was taken away."""

    step: str
    token: int
    head: int
    task: Task
    seen: int = 0
    takes_messages: bool = False


class World:
    """One run's events, registers, checkpoints, document, timers, and its workers."""

    def __init__(self, plan: Plan) -> None:
        self.base = plan
        self.newer = Newer()
        self.most_more = 0
        self.now_ms = EPOCH_MS
        self.log: dict[str, tuple[Any, Moment]] = {}
        self.unacked: dict[str, None] = {}
        self.registers: dict[str, Placed] = {}
        self._grown = planning.Grown(plan, self.registers)
        self.heads: dict[str, int] = {}
        self.history: dict[str, list[Register]] = {}
        self.document: RunDocument | None = None
        self.revision = 0
        self.timers: dict[str, effects.SetTimer] = {}
        self.executions: list[Execution] = []
        self.limits = admitting.Bucket()
        self.children: dict[str, int] = {}
        """The runs that steps have started, each with its attempt; ``told`` that nobody waits."""
        self.told: set[str] = set()
        self.made_from: dict[bytes, bytes] = {}
        self.must_count: set[str] = set()
        self.used: dict[tuple[str, int], int] = {}
        """Tool calls that really happened in an iteration, all its executions together."""
        self.given_out: dict[tuple[str, int], Task] = {}
        """Every task that there was, by step and token."""
        self.knows_pauses = True
        """Whether the engine that acts now knows of the pauses that are stored."""
        self.published: dict[int, str] = {}
        """Published events by sequence: their names."""
        self.unmet: dict[int, None] = {}
        """Those that no engine has acked."""
        self.waiters: dict[str, tuple[int, ...]] = {}
        """Steps that wait for one, with the events that are used up for them."""
        self.begun_beyond: dict[str, int] = {}
        self._sequences = {"e": 0, "t": 0, "s": 0, "x": 0}

    def _next(self, letter: str) -> int:
        self._sequences[letter] += 1
        return self._sequences[letter]

    # ---------------------------------------------------------------- plans

    @property
    def plan(self) -> Plan:
        """The plan of the run as its document stands."""
        return self.plan_of(self.document)

    def plan_of(self, run: RunDocument | None, fact: object = None) -> Plan:
        """Return the plan of the run at a document, and once it has heard of a fact."""
        return self._grown.at(run, fact)

    # ---------------------------------------------------------------- streams

    def moment(self, letter: str) -> Moment:
        """Return the moment of a new message of a stream."""
        sequence = self._next(letter)
        return Moment(RUN, f"{letter}{sequence}", self.now_ms, sequence)

    def store(self, event: Any) -> None:
        """Store an event."""
        moment = self.moment("t" if isinstance(event, TimerFired) else "e")
        self.log[moment.id] = (event, moment)
        self.unacked[moment.id] = None

    def publish(self, name: str) -> None:
        """Somebody publishes an event."""
        sequence = len(self.published) + 1
        self.published[sequence] = name
        self.unmet[sequence] = None

    def match(self, step_id: str, request: int, sequence: int) -> None:
        """An engine tells the run of an event for a step."""
        self.store(EventMatched(step=step_id, request=request, published=sequence))

    def meet_all(self) -> None:
        """One engine lets all events meet the steps that wait."""
        for sequence in list(self.unmet):
            for _ in engines.meet(self, sequence):
                pass

    def send(self, step_id: str, message_id: str) -> None:
        """A client sends a message; one that is there already is not stored again."""
        if (step_id, message_id) not in {(m.step, m.id) for m, _ in self.messages(step_id)}:
            self.store(MessageSent(step=step_id, id=message_id))

    def messages(self, step_id: str) -> list[tuple[MessageSent, Moment]]:
        """Return the stored messages to a step, oldest first."""
        return [
            (event, moment)
            for event, moment in self.log.values()
            if isinstance(event, MessageSent) and event.step == step_id
        ]

    def newest_message(self, step_id: str) -> tuple[MessageSent, Moment] | None:
        """Return the newest of them."""
        return next(reversed(self.messages(step_id)), None)

    def newest(self, step_id: str, before: int = 2**53) -> int:
        """Return the sequence of the newest message below a sequence; 0 is none."""
        sequences = [moment.sequence for _, moment in self.messages(step_id)]
        return max((each for each in sequences if each < before), default=0)

    def ack(self, event_id: str) -> None:
        """An engine is done with an event."""
        event, _ = self.log[event_id]
        assert self.document is not None
        is_counted = isinstance(event, SignalReceived) and not event.fork
        if is_counted and not self.document.is_terminal:
            self.must_count.add(event.id or event_id)
        self.unacked.pop(event_id, None)

    def redeliver_all(self) -> None:
        """The consumer is made anew: every event comes once more."""
        self.unacked = dict.fromkeys(self.log)

    def put_register(self, step_id: str, new: Register, head: int) -> bool:
        """Store a register over the pair's newest sequence."""
        if self.heads.get(step_id, 0) != head:
            return False
        budgets.check(self, step_id, new)
        self.heads[step_id] = self._next("s")
        self.registers[step_id] = Placed(self.heads[step_id], new)
        self.history.setdefault(step_id, []).append(new)
        if isinstance(new, Task):
            self.given_out[step_id, self.heads[step_id]] = new
        self.set_timers(step_id)
        return True

    def set_timers(self, step_id: str) -> None:
        """Drive the effects of a register."""
        register = self.registers[step_id].register
        for timer in effects.of_register(step_id, self.plan.work(step_id).type, register):
            self.timers[timer.id] = timer

    def put_document(self, new: RunDocument, revision: int) -> bool:
        """Store the run's document over a revision."""
        if self.revision != revision:
            return False
        assert self.document is None or not self.document.is_terminal
        check_pause(self.plan_of(new), self.document, new)
        self.document, self.revision = new, revision + 1
        return True

    def forget(self) -> None:
        """An engine trims the applied ids below the consumer's ack floor."""
        if self.document is not None and not self.document.is_terminal:
            events = [self.log[i][1].sequence for i in self.unacked if i[0] == "e"]
            floor = min(events, default=self._sequences["e"] + 1)
            self.document = forget_applied(self.document, floor)
            self.revision += 1

    def input_of(self, step: Step) -> Inline:
        """Return the input of a step's first task; any value that is its own will do."""
        return Inline(msgspec.Raw(b'"input of %b"' % step.id.encode()))

    def is_known_paused(self) -> bool:
        """What an engine knows that is about to move a register: a late one knows less."""
        return self.knows_pauses and self.document is not None and self.document.is_paused

    # ---------------------------------------------------------------- workers

    def take(self, step_id: str) -> Execution | None:
        """A worker gets what the register holds; the same token may be given out twice."""
        placed = self.registers[step_id]
        if not isinstance(placed.register, Task):
            return None
        execution = Execution(step_id, placed.sequence, placed.sequence, placed.register)
        self.executions.append(execution)
        return execution

    def save(self, execution: Execution) -> None:
        """The execution saves a checkpoint, unless the pair has moved."""
        if self.heads[execution.step] == execution.head:
            self.heads[execution.step] = execution.head = self._next("s")

    def read(self, execution: Execution) -> None:
        """The execution takes note of the messages that are there."""
        execution.takes_messages = True
        execution.seen = self.newest(execution.step)

    def settle(self, execution: Execution, verb: str) -> None:
        """The execution gives its verdict, perhaps for the second time. Tasks only complete.

        Each verdict says what was used in its iteration so far, whoever used it.
        """
        assert isinstance(execution.task.input, Inline)
        common: dict[str, Any] = self._common(execution.step, execution.token)
        read = bytes(execution.task.input.value)
        salted = read + b"%d" % self._next("x")
        output = b'"%b"' % hashlib.sha256(salted).hexdigest()[:12].encode()
        if isinstance(self.plan.steps.get(execution.step), PlannerStep):
            number = self._next("x")
            drawn = hashlib.sha256(salted).digest()[0]
            output = planning.PLANS[drawn % len(planning.PLANS)].encode() + b" " * number
        self.made_from[output] = read
        place = execution.step, execution.task.iteration
        self.used[place] = self.used.get(place, 0) + 1
        common["iteration"] = execution.task.iteration
        common["attempt"] = execution.task.attempt
        common["head"] = execution.head
        common["spent"] = Spent(tool_calls=self.used[place])
        common["seen"] = execution.seen
        common["takes_messages"] = execution.takes_messages
        match verb:
            case "continue" if execution.task.loop:
                self.store(StepContinued(**common, output=msgspec.Raw(output)))
            case "wait" | "nap" | "line" if execution.task.loop:
                due_ms = 0 if verb == "wait" else self.now_ms + 30_000
                common |= {"due_ms": due_ms, "uncounted": verb != "wait"}
                common["line"] = "budget" if verb == "line" else ""
                self.store(StepWaiting(**common, output=msgspec.Raw(output)))
            case "continue" | "complete" | "wait" | "nap" | "line":
                chunk = mapping.done(execution.task.chunk, self._sequences["x"])
                self.store(StepCompleted(**common, output=msgspec.Raw(output), chunk=chunk))
            case _:
                self.store(StepFailed(**common, failure=Failure("ValueError")))

    def lose(self, step_id: str, token: int) -> None:
        """Somebody believes that the execution of a token is gone."""
        task = self.given_out.get((step_id, token))
        place = {"iteration": task.iteration, "attempt": task.attempt} if task else {}
        self.store(TaskLost(**self._common(step_id, token), **place))

    def fire_timers(self) -> None:
        """Fire what is due, again if it fired before: a timer's event is only a hint."""
        for timer in list(self.timers.values()):
            if timer.due_ms <= self.now_ms:
                self.store(timer.event)
        for step_id, placed in self.registers.items():
            register = placed.register
            is_called = isinstance(register, Parked) and register.line != ""
            if is_called or (isinstance(register, Delayed) and register.due_ms <= self.now_ms):
                self.store(TaskDue(**self._common(step_id, placed.sequence)))

    def _common(self, step_id: str, token: int) -> dict[str, Any]:
        return {"step": step_id, "type": self.plan.work(step_id).type, "token": token}

    def engine(self, event_id: str) -> Generator[None, None, None]:
        """An engine takes an event."""
        return engines.handle(self, *self.log[event_id])

    def handle(self, event_id: str) -> None:
        """One engine handles an event without interruption."""
        for _ in self.engine(event_id):
            pass

    def sweep_slots(self) -> None:
        """An engine looks after the limits, until there is nothing to do."""
        before: object = None
        while before != (before := (dict(self.registers), self.limits.holders())):
            for _ in admitting.sweep(self):
                pass
        admitting.check_rest(self)

    def handle_all(self) -> None:
        """One engine handles all events, in their order."""
        for event_id in list(self.unacked):
            self.handle(event_id)

    # ---------------------------------------------------------------- what always holds

    def check(self) -> None:
        """Assert the promises about what is stored."""
        admitting.check(self)
        for step_id, values in self.history.items():
            self._check_chain(self.plan.work(step_id), values)
            assert all(not isinstance(value, Ended) for value in values[:-1])
            check_messages(self, step_id, values)
            self._check_spending(step_id, values)
            assert self.document is not None
            assert step_of(step_id) in self.document.steps, "no register before a step's start"
        run = self.document
        if run is None:
            return
        for step_id in run.steps:
            check_turn(self.plan, run, step_id)
        for step_id in run.maps:
            mapping.check_map(self, run, step_id)
        sent = {
            event.id or event_id
            for event_id, (event, _) in self.log.items()
            if isinstance(event, SignalReceived) and not event.fork
        }
        assert len(self.must_count) <= run.signals_received <= len(sent)

    def _check_chain(self, step: Step, values: list[Register]) -> None:
        """Each iteration is committed once, in order, from the input of the one before."""
        inputs: list[bytes] = []
        uncounted = 0
        asked = (event for event, _ in self.log.values() if isinstance(event, ResumeRequested))
        most = getattr(step, "max_iterations", 1) + self.most_more
        most += sum(event.add_iterations for event in asked)
        most += sum(getattr(event, "uncounted", False) for event, _ in self.log.values())
        for value in values:
            if isinstance(value, Ended):
                if value.outcome == "completed":
                    assert self.made_from[bytes(value.output)] == inputs[-1]
                    assert value.iterations == len(inputs) - uncounted
                continue
            task = task_of(value)
            uncounted = task.uncounted
            assert isinstance(task.input, Inline)
            read = bytes(task.input.value)
            if task.iteration == len(inputs):
                assert not inputs or self.made_from[read] == inputs[-1]
                inputs.append(read)
            assert task.max_iterations <= most, "a request raises a bound once"
            assert (task.iteration, read) == (len(inputs) - 1, inputs[-1])
            # A newer version may have lowered the bound below what was done.
            assert task.iteration <= task.max_iterations or task.definition != self.base.hash

    def _check_spending(self, step_id: str, values: list[Register]) -> None:
        """What is counted was used, and each committed iteration counts what its verdict told."""
        told = 0
        asked = (event for event, _ in self.log.values() if isinstance(event, ResumeRequested))
        step = self.plan.work(step_id)
        most = getattr(step, "max_tool_calls", 0)
        most += sum(event.add_spending.tool_calls for event in asked)
        iteration = 0
        for value in values:
            task = None if isinstance(value, Ended) else task_of(value)
            if task is not None and task.iteration > iteration:
                told += self.log[task.parent][0].spent.tool_calls
                iteration = task.iteration
            spent = value.spent if isinstance(value, Ended) else spent_by(task_of(value))
            used = sum(n for (step, _), n in self.used.items() if step == step_id)
            assert told <= spent.tool_calls <= used, "nothing is counted twice, or forgotten"
            if task is not None and task.limits.tool_calls:
                assert task.limits.tool_calls <= most, "a request raises a bound once"
                if isinstance(value, Task) and not task.wrap_up:
                    assert spent.tool_calls < task.limits.tool_calls, "no task beyond a bound"

    def check_rest(self) -> None:
        """Assert what is true when every event was handled: document and registers agree."""
        self.check()
        assert self.document is not None
        if self.document.is_terminal:
            return
        if self.document.status not in NOT_BEGUN:
            assert (self.document.status == "paused") == self.document.is_paused
            check_all_begun(self.plan_of(self.document), self.document)
        for step_id, placed in self.registers.items():
            entry = self.document.steps[step_of(step_id)]
            if step_id not in self.document.steps:
                mapping.check_chunk_at_rest(self.document, step_id, placed.register)
                continue
            if entry.status == "cancelled":
                assert isinstance(placed.register, Ended), "stopped before anything is undone"
                continue
            match placed.register:
                case Ended() as register:
                    assert (entry.status, entry.iterations) == (
                        register.outcome,
                        register.iterations,
                    )
                case Parked(paused=True):
                    assert self.document.is_paused, "nothing stays held of a run that goes on"
                    assert entry.status in ("active", "parked")
                case Parked() as register if register.line:
                    assert entry.status == "active", "it waits as it would for a worker"
                case Parked() as register:
                    assert entry.status == "parked"
                    reason = WAITING if register.waits else register.reason
                    assert (entry.failure and entry.failure.type) == reason
                    assert entry.spent == spent_by(register.task)
                    if register.waits:
                        assert self.newest(step_id) <= register.seen, "every message wakes"
                case _:
                    assert entry.status == "active"

    def check_end(self) -> None:
        """Assert what is true when the run has ended and everybody has come to rest."""
        run = self.document
        assert run is not None
        assert run.is_terminal
        assert not self.unacked
        check_waiters(self)
        for step_id, entry in run.steps.items():
            step = self.plan.steps[step_id]
            if isinstance(step, SubWorkflowStep):
                check_children(self, run, step, entry)
                continue
            if not isinstance(step, WorkStep) or step_id not in self.registers:
                assert entry.status != "completed" or not isinstance(step, WorkStep)
                continue
            register = self.registers[step_id].register
            assert isinstance(register, Ended), "no live register of a run that ended"
            if entry.status in ("completed", "failed"):
                assert (register.outcome, register.iterations) == (entry.status, entry.iterations)
            if isinstance(step, AgentLoopStep) and entry.status == "failed":
                assert register.failure == entry.failure
        for name, placed in self.registers.items():
            assert isinstance(placed.register, Ended), f"{name} lives in a run that ended"
        check_spans(self)

    def at(self, step_id: str, placed: Placed, event: Any) -> tuple[Any, Placed]:
        """Return a step and its register as an event finds them, under the newest version."""
        return self.newer.at(self.plan.work(step_id), placed, event)

    def register(self, more: int) -> None:
        """Somebody registers a version whose loops may take so many iterations more, or fewer."""
        steps = [
            msgspec.structs.replace(step, max_iterations=max(1, step.max_iterations + more))
            if isinstance(step, AgentLoopStep)
            else step
            for step in self.base.definition.steps
        ]
        self.most_more = max(self.most_more, more)
        self.newer.register(msgspec.structs.replace(self.base.definition, steps=tuple(steps)))

    def request(self, start_after_ms: int = 0) -> None:
        """A client starts the run."""
        requested = RunRequested(workflow="w", definition=self.plan.hash, trace=TRACE)
        self.store(msgspec.structs.replace(requested, start_after_ms=start_after_ms))
