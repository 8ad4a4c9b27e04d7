"""Several runs, the workflows that start each other, and the engines that act on them.

What JetStream holds is a log, documents by run, and timers. Every ``yield`` of an engine is a point
at which it may die, or another may act. Steps that wait for signals stand for all other work.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from tests.core.strategies import EPOCH_MS

from treadle.engine.core import ChildStarted, Moment, Plan, apply, children, effects, request
from treadle.sdk.definition import SignalStep, Step, SubWorkflowStep, WorkflowDefinition
from treadle.sdk.definition import content_hash as hash_of
from treadle.sdk.messages import ChildEnded, ParentEnded, RunRequested, SignalReceived, TimerFired
from treadle.sdk.run import RunDocument, child_of

ROOT = "root"
Engine = Generator[None, None, None]


def plan_of(name: str, *steps: Step) -> Plan:
    definition = WorkflowDefinition(name=name, steps=steps)
    return Plan(definition, hash_of(definition))


class Family:
    """One run that a client starts, and all that come of it."""

    def __init__(self, root: Plan, *others: Plan) -> None:
        self.plans = {plan.definition.name: plan for plan in (root, *others)}
        self.documents: dict[str, RunDocument] = {}
        self.log: dict[int, tuple[str, Any, int]] = {}
        self.unacked: dict[int, None] = {}
        self.timers: dict[tuple[str, str], effects.SetTimer] = {}
        self.now_ms = EPOCH_MS
        self.store(ROOT, RunRequested(workflow=root.definition.name, definition=root.hash))

    # ---------------------------------------------------------------- what is stored

    def store(self, run: str, event: Any) -> None:
        sequence = len(self.log) + 1
        self.log[sequence] = run, event, self.now_ms
        self.unacked[sequence] = None

    def is_requested(self, run: str) -> bool:
        return any(r == run and isinstance(e, RunRequested) for r, e, _ in self.log.values())

    def put(self, new: RunDocument, old: RunDocument | None) -> bool:
        if self.documents.get(new.run) is not old:
            return False
        assert old is None or not old.is_terminal, "an end is final"
        self.documents[new.run] = new
        self._check(new)
        return True

    def plan(self, run: RunDocument) -> Plan:
        return self.plans[run.workflow]

    def attached(self, run: RunDocument) -> list[tuple[str, SubWorkflowStep]]:
        steps = self.plan(run).steps
        found = [(step_id, steps[step_id]) for step_id in run.steps]
        return [
            (step_id, step)
            for step_id, step in found
            if isinstance(step, SubWorkflowStep) and not step.detached
        ]

    def _check(self, run: RunDocument) -> None:
        """A step is completed by its own child, which is; it never starts more than it may."""
        for step_id, step in self.attached(run):
            entry = run.steps[step_id]
            assert entry.attempt <= step.retry.max_attempts
            if entry.status != "completed":
                continue
            by, event, _ = self.log[int(entry.event[1:])]
            assert (by, event.child) == (run.run, child_of(run, step_id))
            assert self.documents[event.child].status == "completed"

    # ---------------------------------------------------------------- engines

    def handle(self, sequence: int) -> Engine:
        """Compare and set, effects, ack; dropped anywhere, the event stays."""
        run, event, at_ms = self.log[sequence]
        moment = Moment(run, f"e{sequence}", at_ms, sequence)
        facts: list[Any] = [event]
        while facts:
            found: list[Any] = []
            for fact in facts:
                is_known = yield from self._fold(run, fact, moment, found)
                if not is_known:
                    return
            facts = found
        yield
        self.unacked.pop(sequence, None)

    def _fold(
        self, run: str, fact: Any, moment: Moment, found: list[Any]
    ) -> Generator[None, None, bool]:
        while True:
            yield
            old = self.documents.get(run)
            if old is not None:
                new = apply(self.plan(old), old, fact, moment)
            elif isinstance(fact, RunRequested):
                is_orphaned = False
                if fact.parent is not None and not fact.parent.detached:
                    above = self.documents.get(fact.parent.run)
                    is_awaited = children.awaits(above, run, fact.parent) if above else None
                    if is_awaited is None:
                        return False
                    is_orphaned = not is_awaited
                yield
                plan = self.plans[fact.workflow]
                new = request(plan, fact, moment, "main", is_orphaned=is_orphaned)
            else:
                return False
            yield
            if new is old or self.put(new, old):
                break
        for command in effects.of_document(self.plan(new), new):
            yield
            yield from self._perform(new, command, found)
        return True

    def _perform(self, run: RunDocument, command: effects.Command, found: list[Any]) -> Engine:
        match command:
            case effects.StartChild(step=step_id):
                yield from self._start(run, step_id, found)
            case effects.CancelChild(step=step_id, attempt=attempt):
                child = child_of(run, step_id, attempt)
                below = self.documents.get(child)
                if below is None and not self.is_requested(child):
                    return
                yield
                if below is None or not (below.is_terminal or below.undoing):
                    self.store(child, ParentEnded())
            case effects.TellParent():
                link = run.parent
                assert link is not None
                above = self.documents[link.run]
                yield
                if children.awaits(above, run.run, link) is not False:
                    told = ChildEnded(
                        step=link.step,
                        child=run.run,
                        attempt=link.attempt,
                        outcome=run.status,  # type: ignore[arg-type]
                        failure=run.failure,
                    )
                    self.store(link.run, told)
            case effects.SetTimer():
                self.timers[run.run, command.id] = command
            case effects.ClearTimers():
                for key in [key for key in self.timers if key[0] == run.run]:
                    del self.timers[key]
            case _:
                raise AssertionError(command)

    def _start(self, run: RunDocument, step_id: str, found: list[Any]) -> Engine:
        step = self.plan(run).steps[step_id]
        assert isinstance(step, SubWorkflowStep)
        child = child_of(run, step_id)
        is_there = self.is_requested(child)
        yield
        if not is_there:
            link = children.link(run, step)
            plan = self.plans[step.workflow]
            event = RunRequested(workflow=step.workflow, definition=plan.hash, parent=link)
            self.store(child, event)
            yield
        if step.detached:
            found.append(ChildStarted(step_id, run.steps[step_id].attempt))

    def handle_all(self) -> None:
        """One engine handles everything, until nothing is left."""
        while self.unacked:
            for sequence in list(self.unacked):
                for _ in self.handle(sequence):
                    pass

    # ---------------------------------------------------------------- time and people

    def fire_timers(self) -> None:
        """Fire what is due, perhaps again."""
        for (run, _), timer in list(self.timers.items()):
            if timer.due_ms <= self.now_ms:
                assert isinstance(timer.event, TimerFired)
                self.store(run, timer.event)

    def signal(self, run: RunDocument) -> bool:
        """Send what the steps of a run wait for; False if none does."""
        waiting = [
            step.signal
            for step_id, step in self.plan(run).steps.items()
            if isinstance(step, SignalStep)
            and step_id in run.steps
            and run.steps[step_id].status == "active"
        ]
        for name in waiting:
            self.store(run.run, SignalReceived(name=name))
        return bool(waiting)

    def check_rest(self) -> None:
        """Nothing is left to handle: no attached run outlives the step that waited for it."""
        for run in self.documents.values():
            link = run.parent
            if link is None or link.detached or run.is_terminal or run.undoing:
                continue
            above = self.documents[link.run]
            assert children.awaits(above, run.run, link), "nobody waits for a run that goes on"

    def check_end(self) -> None:
        """Everything has ended: each run was requested once and by its parent."""
        requested = {r for r, e, _ in self.log.values() if isinstance(e, RunRequested)}
        assert self.documents.keys() == requested
        for run in self.documents.values():
            assert run.is_terminal
            if run.parent is not None:
                above = self.documents[run.parent.run]
                assert child_of(above, run.parent.step, run.parent.attempt) == run.run
