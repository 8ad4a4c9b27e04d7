"""One step's register and one run's document under any number of events, without a server.

They count what a server counts, event and register sequences, and keep every value, so that
a test can send an event, look at what became of it, and look back.
"""

from __future__ import annotations

from typing import Any

import msgspec
from tests.core import mapping
from tests.core.strategies import EPOCH_MS, RUN

from treadle.engine.core import (
    Moment,
    Placed,
    Plan,
    RegisterEvent,
    RunEvent,
    advance,
    apply,
    effects,
    progress,
    request,
)
from treadle.engine.core.given import decision
from treadle.engine.core.maps import laid_out
from treadle.engine.core.progress import to_decide
from treadle.engine.waking import woken_at
from treadle.sdk.definition import (
    AgentLoopStep,
    MapStep,
    Step,
    TaskStep,
    WorkflowDefinition,
    content_hash,
)
from treadle.sdk.messages import (
    Failure,
    Inline,
    MessageSent,
    Register,
    ResumeRequested,
    RunRequested,
    SignalReceived,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    TaskDue,
    TaskLost,
    TimerFired,
)
from treadle.sdk.run import RunDocument


def plan_of(*steps: Step, timeout_s: float = 0) -> Plan:
    """Return the plan of a workflow with these steps."""
    definition = WorkflowDefinition(name="w", steps=steps, timeout_s=timeout_s)
    return Plan(definition, content_hash(definition))


def decided(plan: Plan, run: RunDocument, moment: Moment) -> RunDocument:
    """Ask what decides about the steps whose turn it is, as an engine does before it stores.

    Of a run that declares its result, every result fits.
    """
    while step := to_decide(plan, run):
        fact = decision(step, {}, dict.fromkeys(step.after))
        if fact.holds and isinstance(step, MapStep):
            fact = msgspec.structs.replace(fact, map=laid_out(step, mapping.sizes_of(step), 1_000))
        run = progress.decided(plan, run, woken_at(run, step, fact))
    if progress.to_conclude(plan, run):
        run = progress.concluded(plan, run, None, moment)
    return run


class RunWalk:
    """A run's document; ``send`` applies an event and returns the document after it."""

    def __init__(self, plan: Plan, now_ms: int = EPOCH_MS) -> None:
        self.plan = plan
        self.now_ms = now_ms
        self.sequence = 1
        event = RunRequested(workflow="w", definition=plan.hash, input=msgspec.Raw(b'"in"'))
        moment = self.moment()
        self.run = decided(plan, request(plan, event, moment, "main"), moment)
        self.trace = [self.run]

    def moment(self, letter: str = "e") -> Moment:
        """Return the moment of the newest event."""
        return Moment(RUN, f"{letter}{self.sequence}", self.now_ms, self.sequence)

    def send(self, event: RunEvent, *, after_ms: int = 0, sequence: int = 0) -> RunDocument:
        """Apply an event that comes ``after_ms`` later; one with a ``sequence`` comes again."""
        self.now_ms += after_ms
        self.sequence += 1
        moment = self.moment("t" if isinstance(event, TimerFired) else "e")
        if sequence:
            moment = moment._replace(id=f"e{sequence}", sequence=sequence)
        self.run = decided(self.plan, apply(self.plan, self.run, event, moment), moment)
        self.trace.append(self.run)
        return self.run

    def signal(self, name: str, *, id: str = "", sequence: int = 0) -> RunDocument:
        """Apply a signal."""
        return self.send(SignalReceived(name=name, id=id), sequence=sequence)

    def status(self, step_id: str) -> str:
        """Return where a step stands; ``waiting`` if it has not started."""
        entry = self.run.steps.get(step_id)
        return entry.status if entry else "waiting"


class StepWalk:
    """A step's register; the verbs send an event that holds the present token."""

    def __init__(self, step: TaskStep | AgentLoopStep, now_ms: int = EPOCH_MS) -> None:
        self.step = step
        self.now_ms = now_ms
        self.events = 100
        walk = RunWalk(plan_of(step), now_ms)
        task = effects.first_task(walk.plan, walk.run, step, Inline(msgspec.Raw(b'"in"')))
        self.trace: list[Placed] = [Placed(1, task)]
        self.before: Register = task
        """The value before the newest event: the same object if the event changed nothing."""

    @property
    def placed(self) -> Placed:
        """The register as it stands."""
        return self.trace[-1]

    @property
    def now(self) -> Register:
        """The register's present value."""
        return self.placed.register

    @property
    def values(self) -> list[Register]:
        """Every value the register held, oldest first."""
        return [placed.register for placed in self.trace]

    @property
    def last_moment(self) -> Moment:
        """The moment of the newest event."""
        return Moment(RUN, f"e{self.events}", self.now_ms, self.events)

    def send(
        self,
        event: RegisterEvent,
        *,
        after_ms: int = 0,
        moment: Moment | None = None,
        newest: int = 0,
    ) -> Any:
        """Advance by an event that comes ``after_ms`` later; return the value that stands."""
        self.now_ms += after_ms
        self.events += 1
        if moment is None:
            letter = "t" if isinstance(event, TimerFired) else "e"
            moment = self.last_moment._replace(id=f"{letter}{self.events}")
        self.before = self.now
        new = advance(self.step, self.placed, event, moment, newest)
        if new is not self.before:
            assert new.parent == moment.id, "every value names the event that made it"
            # A register's sequence is the stream's: it leaves gaps.
            self.trace.append(Placed(self.placed.sequence + 2, new))
        return new

    def _common(self) -> dict[str, Any]:
        return {"step": self.step.id, "type": self.step.type, "token": self.placed.sequence}

    def continue_(
        self,
        output: str = '"out"',
        *,
        delay_ms: int = -1,
        after_ms: int = 0,
        head: int = 0,
        **told: Any,
    ) -> Any:
        """The execution continues."""
        event = StepContinued(
            **self._common(),
            head=head or self.placed.sequence,
            output=msgspec.Raw(output.encode()),
            delay_ms=delay_ms,
            **told,
        )
        return self.send(event, after_ms=after_ms)

    def wait(
        self,
        output: str = '"held"',
        *,
        due_in_ms: int = 0,
        after_ms: int = 0,
        newest: int = 0,
        **told: Any,
    ) -> Any:
        """The execution waits; with ``due_in_ms`` for so long at most."""
        due_ms = self.now_ms + after_ms + due_in_ms if due_in_ms else 0
        event = StepWaiting(
            **self._common(),
            head=self.placed.sequence,
            output=msgspec.Raw(output.encode()),
            due_ms=due_ms,
            **told,
        )
        return self.send(event, after_ms=after_ms, newest=newest)

    def message(self, step: str = "", *, after_ms: int = 0, moment: Moment | None = None) -> Any:
        """Somebody sends the step a message."""
        event = MessageSent(step=step or self.step.id, id=f"m{self.events}")
        return self.send(event, after_ms=after_ms, moment=moment)

    def complete(
        self, output: str = '"done"', *, after_ms: int = 0, newest: int = 0, **told: Any
    ) -> Any:
        """The execution completes."""
        raw = msgspec.Raw(output.encode())
        event = StepCompleted(**self._common(), head=self.placed.sequence, output=raw, **told)
        return self.send(event, after_ms=after_ms, newest=newest)

    def fail(
        self,
        type: str = "ValueError",
        *,
        retryable: bool = True,
        retry_after_ms: int = 0,
        traceback: str = "",
        after_ms: int = 0,
        head: int = 0,
        **told: Any,
    ) -> Any:
        """The execution fails."""
        failure = Failure(type, "it broke", retryable, retry_after_ms, traceback)
        head = head or self.placed.sequence
        event = StepFailed(**self._common(), head=head, failure=failure, **told)
        return self.send(event, after_ms=after_ms)

    def lose(self, *, after_ms: int = 0) -> Any:
        """The worker vanishes."""
        return self.send(TaskLost(**self._common()), after_ms=after_ms)

    def due(self, *, after_ms: int = 0) -> Any:
        """The receiver of a delayed task finds it due."""
        return self.send(TaskDue(**self._common()), after_ms=after_ms)

    def wake(self, *, after_ms: int = 0) -> Any:
        """The wake-up timer fires."""
        return self.send(TimerFired(kind="wake", step=self.step.id), after_ms=after_ms)

    def deadline(self, *, after_ms: int = 0) -> Any:
        """The deadline's timer fires."""
        return self.send(TimerFired(kind="step_deadline", step=self.step.id), after_ms=after_ms)

    def resume(self, *, after_ms: int = 0, **bounds: Any) -> Any:
        """Somebody resumes the step."""
        return self.send(ResumeRequested(**bounds), after_ms=after_ms)
