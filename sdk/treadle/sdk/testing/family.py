"""The runs of a simulation: the one that is simulated, and those that its steps start.

Each is a world of its own on one clock. What they tell each other is delivered in the next turn of
the loop, as an event of the run it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from treadle.engine.core import ChildStarted, Plan, children
from treadle.sdk.children import CHILD_DEPTH_MAX
from treadle.sdk.client.requests import check_input
from treadle.sdk.definition import SubWorkflowStep
from treadle.sdk.errors import InvalidPayload
from treadle.sdk.messages import (
    NO_RAW,
    ChildEnded,
    Event,
    Failure,
    ParentEnded,
    RunRequested,
)
from treadle.sdk.outcome import outcome_of
from treadle.sdk.run import child_of
from treadle.sdk.testing.budget import used
from treadle.sdk.testing.clock import VirtualLoop
from treadle.sdk.testing.mortal import Workers
from treadle.worker.shared import ValuesInMemory

if TYPE_CHECKING:
    from treadle.sdk.testing.world import World

Make = Callable[["Family", Plan, str], "World"]


class Family:
    """The worlds of one simulation, by the ids of their runs."""

    def __init__(
        self, plans: Mapping[str, Plan], make: Make, loop: VirtualLoop, workers: Workers
    ) -> None:
        self._plans = plans
        self._make = make
        self._loop = loop
        self._workers = workers
        self._underway = 0
        self.worlds: dict[str, World] = {}
        self.shared = ValuesInMemory()
        """What all workers share."""

    def open(self, plan: Plan, run_id: str) -> World:
        """Return the world of a new run."""
        world = self.worlds[run_id] = self._make(self, plan, run_id)
        return world

    @property
    def root(self) -> World:
        """The world of the run that is simulated."""
        return next(iter(self.worlds.values()))

    def kill_worker(self) -> None:
        """Let the process die that serves the runs; another one goes on with all of them."""
        self._workers.replace()
        for world in self.worlds.values():
            world.lose_all()

    @property
    def is_still(self) -> bool:
        """True when nothing more can happen in any of them."""
        return not self._underway and all(world.is_still for world in self.worlds.values())

    def below(self, world: World, step_id: str) -> World | None:
        """Return the world of the run that a step has started last."""
        run = world.run
        entry = run.steps.get(step_id) if run else None
        if run is None or entry is None or not entry.attempt:
            return None
        attempts = range(entry.attempt, 0, -1)
        found = (self.worlds.get(child_of(run, step_id, attempt)) for attempt in attempts)
        return next((each for each in found if each is not None), None)

    def publish_external(self, name: str, value: object) -> None:
        """Publish an event to all runs that there are."""
        for world in list(self.worlds.values()):
            world.publish_external(name, value)

    # ---------------------------------------------------------------- effects

    def start(self, world: World, step_id: str) -> list[ChildStarted]:
        """Start the run of a step, unless it was; return what the run has to hear at once."""
        run, step = world.run, world.plan.steps[step_id]
        assert run is not None
        assert isinstance(step, SubWorkflowStep)
        raw = bytes(world.outputs.input_of(step_id).value)
        child, link = child_of(run, step.id), children.link(run, step)
        if child not in self.worlds:
            plan = self._plans.get(step.workflow)
            failure = _refusal(plan, step, link.depth, raw)
            if plan is None or failure is not None:
                return [ChildStarted(step.id, link.attempt, failure)]
            request = RunRequested(
                workflow=step.workflow,
                definition=plan.hash,
                input=msgspec.Raw(raw),
                parent=link,
            )
            self._deliver(self.open(plan, child), request)
        return [ChildStarted(step.id, link.attempt)] if step.detached else []

    def cancel(self, world: World, step_id: str, attempt: int, reason: str) -> None:
        """Tell a child that nobody waits for it."""
        assert world.run is not None
        child = self.worlds.get(child_of(world.run, step_id, attempt))
        if child is not None and not (child.run and (child.run.is_terminal or child.run.undoing)):
            self._deliver(child, ParentEnded(reason=reason))

    def tell(self, world: World, plan: Plan) -> None:
        """Tell the step that waits for a run how it has ended."""
        run = world.run
        assert run is not None
        assert run.parent is not None
        above = self.worlds[run.parent.run]
        assert above.run is not None
        if children.awaits(above.run, run.run, run.parent) is False:
            return
        ended = ChildEnded(
            step=run.parent.step,
            child=run.run,
            workflow=run.workflow,
            attempt=run.parent.attempt,
            outcome=run.status,  # type: ignore[arg-type]  # It has ended.
            output=result_of(world, plan) if run.status == "completed" else NO_RAW,
            failure=run.failure,
            failed_step=run.failed_step,
            spent=used(world),
        )
        self._deliver(above, ended)

    def _deliver(self, world: World, event: Event) -> None:
        self._underway += 1

        def arrive() -> None:
            self._underway -= 1
            world.publish(event)

        self._loop.call_soon(self.root.call, arrive)


def result_of(world: World, plan: Plan) -> msgspec.Raw:
    """Return the JSON of a completed run's result."""
    assert world.run is not None
    steps, is_single = outcome_of(plan.own, world.run)
    if is_single:
        return world.outputs.output(steps[0].id)
    pairs = (
        b'"%b":%b' % (step.id.encode(), bytes(world.outputs.output(step.id))) for step in steps
    )
    return msgspec.Raw(b"{" + b",".join(pairs) + b"}")


def _refusal(plan: Plan | None, step: SubWorkflowStep, depth: int, raw: bytes) -> Failure | None:
    if depth > CHILD_DEPTH_MAX:
        text = f"workflow {step.workflow!r} would be more than {CHILD_DEPTH_MAX} levels deep"
        return Failure("too_deeply_nested", text, retryable=False)
    if plan is None:
        text = f"step {step.id!r} starts workflow {step.workflow!r}; give it: workflows=[...]"
        return Failure("unknown_workflow", text, retryable=False)
    try:
        check_input(plan.definition, raw)
    except InvalidPayload as exc:
        return Failure("InvalidPayload", str(exc), retryable=False)
    return None
