"""Run a workflow in memory: no server, no waiting, the real core and the real handlers."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from treadle.engine.core import Plan
from treadle.sdk import payload
from treadle.sdk.asks import Ask
from treadle.sdk.builder import Workflow
from treadle.sdk.chunks import Chunk
from treadle.sdk.definition import AgentLoopStep, RespondStep, WorkflowDefinition, content_hash
from treadle.sdk.errors import RunCancelled, RunConflict, RunFailed, UserError
from treadle.sdk.messages import (
    CancelRequested,
    ClientEvent,
    MessageKind,
    MessageSent,
    PauseRequested,
    ResumeRequested,
    SignalReceived,
)
from treadle.sdk.metadata import Given
from treadle.sdk.spending import SpendingLimits, micro_usd
from treadle.sdk.testing.beginning import first_request
from treadle.sdk.testing.boundaries import LETS_LIVE, Boundaries
from treadle.sdk.testing.clock import VirtualLoop
from treadle.sdk.testing.event_log import Recorded
from treadle.sdk.testing.family import Family, result_of
from treadle.sdk.testing.mortal import Workers, make_task
from treadle.sdk.testing.people import Answers
from treadle.sdk.testing.waiting import Waiting, waits_of
from treadle.sdk.testing.world import BELOW, World

if TYPE_CHECKING:
    from treadle.worker import Worker
    from treadle.worker.registry import Handler

    Serving = Worker | Sequence[Worker] | Callable[[], Worker | Sequence[Worker]]

T = TypeVar("T")
RUN_ID = "simulated"
DEFAULT_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Signal(msgspec.Struct, frozen=True):
    """A signal to send to a simulated run."""

    name: str
    payload: Any = None
    after_s: float = 0
    """Virtual seconds after the start."""
    child: str = ""
    """Step whose run it is for, at that time; of a run below it, the steps joined by ``/``."""


class Event(msgspec.Struct, frozen=True):
    """An event to publish while a simulated run is under way."""

    name: str
    payload: Any = None
    after_s: float = 0
    """Virtual seconds after the start."""


class Message(msgspec.Struct, frozen=True):
    """A message to send to a step of a simulated run."""

    step: str
    payload: Any = None
    kind: MessageKind = "steer"
    after_s: float = 0
    """Virtual seconds after the start."""


class Version(msgspec.Struct, frozen=True):
    """A newer version of the workflow, that is registered while the run goes on."""

    workflow: Workflow | WorkflowDefinition
    after_s: float = 0
    """Virtual seconds after the request."""

    @property
    def definition(self) -> WorkflowDefinition:
        """The version; raise ``InvalidDefinition`` if it is none."""
        return self.workflow.build() if isinstance(self.workflow, Workflow) else self.workflow


class Resume(msgspec.Struct, frozen=True):
    """A resume, with raised bounds, of whatever is parked, and the end of a pause."""

    after_s: float
    add_iterations: int = 0
    add_duration_s: float = 0
    add_tool_calls: int = 0
    add_tokens: int = 0
    """Added to each bound on tokens that the step has."""
    add_cost_usd: float = 0


class SimulatedStep(msgspec.Struct, frozen=True):
    """How a step of a simulated run stands at the end."""

    status: str
    iterations: int
    output: Any = None
    asks: tuple[Ask, ...] = ()
    """What it asks people, if it waits."""


class SimulatedResponse(msgspec.Struct, frozen=True):
    """What a run has answered to the HTTP request that started it."""

    status: int
    headers: dict[str, str]
    body: Any


class SimulatedRun:
    """A run at the end of its simulation: it ended, is parked, or waits for a signal."""

    def __init__(self, family: Family, world: World, elapsed_s: float) -> None:
        assert world.run is not None
        self._family = family
        self._world = world
        self._plan = world.plan
        self._document = world.run
        self.status: str = world.run.status
        self.reason: str = world.run.failure.type if world.run.failure else ""
        """Type of the failure that ended the run, or name of the bound at which it is parked."""
        self.message: str = world.run.failure.message if world.run.failure else ""
        self.elapsed_s = elapsed_s if world.ended_s < 0 else world.ended_s
        """Virtual seconds from start to end."""
        self.history: tuple[Recorded, ...] = tuple(world.history)
        self.said: tuple[tuple[str, Chunk], ...] = tuple(world.said)
        """What was said to the output stream, in order, each with its step."""
        self.id = world.run_id
        self.waits_for: tuple[str, ...] = tuple(w.text for w in self._waits())
        """What a run that is not over waits for, a sentence for each step that waits."""

    def __repr__(self) -> str:
        text = f"{self._document.workflow}: {self.status}"
        if self._document.is_terminal:
            text += f" after {self.elapsed_s:g} s"
            if self.reason:
                text += f", {self._failed_at()}{self.reason}: {self.message}"
        elif self.waits_for:
            text += f", {'; '.join(self.waits_for)}"
        return f"<SimulatedRun {text}>"

    def _failed_at(self) -> str:
        step = self._document.failed_step
        return f"step {step!r}: " if step else ""

    def step(self, step_id: str) -> SimulatedStep:
        """Return how a step stands; raise ``KeyError`` for a step the workflow does not have."""
        self._plan.steps[step_id]
        entry = self._document.steps.get(step_id)
        status = entry.status if entry else "waiting"
        output = None
        if status in ("completed", "failed"):
            output = payload.decode(
                f"output of step {step_id!r}",
                self._world.outputs.left(step_id),
                bytes_max=payload.GATHERED_BYTES_MAX,
            )
        return SimulatedStep(
            status, self._world.iterations(step_id), output, self._world.asks(step_id)
        )

    def child(self, step_id: str) -> SimulatedRun:
        """Return the run that a step has started last; raise ``KeyError`` if it has none."""
        self._plan.steps[step_id]
        below = self._family.below(self._world, step_id)
        if below is None:
            raise KeyError(f"step {step_id!r} has started no run")
        return SimulatedRun(self._family, below, self.elapsed_s)

    def result(self, type_: Any = Any) -> Any:
        """Return the run's output; raise ``RunFailed`` or ``RunCancelled`` as a client would.

        Raises ``RunConflict``, with what it waits for, if the run is not over.
        """
        failure = self._document.failure
        if self.status == "cancelled":
            raise RunCancelled(self.id, self.message)
        if not self._document.is_terminal:
            raise self._not_over()
        if failure is not None:
            step = self._document.failed_step
            is_loop = isinstance(self._plan.steps.get(step), AgentLoopStep)
            iteration = self._world.iterations(step) if is_loop else None
            hint = (
                "Each event of the run, with its time, is in `history` of what simulate returned."
            )
            raise RunFailed(self.id, step, iteration, failure, hint)
        return self._decoded(result_of(self._world, self._plan), type_)

    def _decoded(self, raw: bytes | msgspec.Raw, type_: Any) -> Any:
        return payload.decode("output of the run", raw, type_, bytes_max=payload.GATHERED_BYTES_MAX)

    def _waits(self) -> list[Waiting]:
        """Return what the run waits for, and what its children do."""
        found = waits_of(self._plan, self._document)
        for step_id in self._plan.steps:
            entry = self._document.steps.get(step_id)
            below = self._family.below(self._world, step_id)
            if below is None or below.run is None or entry is None or entry.status != "active":
                continue
            for wait in SimulatedRun(self._family, below, 0)._waits():
                text = f"step {step_id!r} waits for a run of which {wait.text}"
                found.append(Waiting(text, wait.remedy))
        return found

    @property
    def response(self) -> SimulatedResponse | None:
        """What a respond step has answered; None while none has."""
        step = self._plan.steps.get(self._document.responded)
        if not isinstance(step, RespondStep):
            return None
        body = payload.decode("response", self._world.outputs.input_of(step.id).value)
        return SimulatedResponse(step.status, step.headers, body)

    def _not_over(self) -> RunConflict:
        waits = self._waits()
        texts = "; ".join(w.text for w in waits) or "nothing more can happen in it"
        remedy = " and ".join(w.remedy for w in waits) or "what it waits for"
        return RunConflict(
            self.id, f"is {self.status} and has no result yet: {texts}.", f"Give simulate {remedy}."
        )


async def simulate(
    workflow: Workflow | WorkflowDefinition,
    input: Any = None,
    worker: Worker | Sequence[Worker] = (),
    *,
    now: datetime | str = DEFAULT_NOW,
    signals: Mapping[str, Any] | Sequence[Signal] = (),
    messages: Sequence[Message] = (),
    events: Mapping[str, Any] | Sequence[Event] = (),
    answers: Answers | None = None,
    resume: Resume | None = None,
    pause_after_s: float | None = None,
    cancel_after_s: float | None = None,
    queued_s: float = 0,
    workflows: Sequence[Workflow | WorkflowDefinition] = (),
    start_after_s: float = 0,
    versions: Sequence[Version] = (),
    metadata: Mapping[str, Given] | None = None,
) -> SimulatedRun:
    """Run the workflow to its end in virtual time and return how it stands.

    Delays, timeouts, retries and ``asyncio.sleep`` in handlers take no real time. ``signals``
    maps names to payloads, sent at the start, or lists ``Signal`` objects with their times;
    ``messages`` lists messages to loops; ``events`` are published events, given like ``signals``.
    ``answers`` stands for the people who are asked: a function of an ask that returns a ``Reply``,
    or None for no answer yet. The run is paused after ``pause_after_s`` and resumed by ``resume``.
    ``queued_s`` is how long the run is queued in a lane behind others, ``start_after_s`` how long
    it is scheduled before; the other times count from its request. ``workflows`` are those that its
    steps start; it goes on until their runs are over too. ``versions`` are registered in the
    meantime, for loops that take newer ones; ``metadata`` is the run's. The run is
    returned as it is when nothing more can happen: ended, parked, or waiting for a signal or a
    message. Raises ``InvalidDefinition`` and ``InvalidPayload`` as a client would, and
    ``HandlerError`` if the worker lacks a handler.
    """
    live = prepared(
        workflow,
        input,
        worker,
        now=now,
        signals=signals,
        messages=messages,
        events=events,
        answers=answers,
        resume=resume,
        pause_after_s=pause_after_s,
        cancel_after_s=cancel_after_s,
        queued_s=queued_s,
        start_after_s=start_after_s,
        versions=versions,
        workflows=workflows,
        metadata=metadata,
    )
    # A thread of its own: the caller's loop runs in real time and cannot hold another one.
    return await asyncio.to_thread(live, LETS_LIVE)


def prepared(
    workflow: Workflow | WorkflowDefinition,
    input: Any,
    worker: Serving,
    *,
    now: datetime | str = DEFAULT_NOW,
    signals: Mapping[str, Any] | Sequence[Signal] = (),
    messages: Sequence[Message] = (),
    events: Mapping[str, Any] | Sequence[Event] = (),
    answers: Answers | None = None,
    resume: Resume | None = None,
    pause_after_s: float | None = None,
    cancel_after_s: float | None = None,
    queued_s: float = 0,
    start_after_s: float = 0,
    versions: Sequence[Version] = (),
    workflows: Sequence[Workflow | WorkflowDefinition] = (),
    metadata: Mapping[str, Given] | None = None,
) -> Callable[[Boundaries], SimulatedRun]:
    """Return what plays a simulated life with its boundaries, in a thread without a loop."""
    definition = _built(workflow)
    handlers = _handlers(worker)
    start = datetime.fromisoformat(now) if isinstance(now, str) else now
    plan = Plan(definition, content_hash(definition))
    others = [_built(each) for each in workflows]
    plans = {each.name: Plan(each, content_hash(each)) for each in (*others, definition)}
    request = first_request(plan, input, metadata, queued_s, start_after_s)
    planned = [*_planned(signals), *_letters(messages)]

    def live(boundaries: Boundaries) -> SimulatedRun:
        loop = VirtualLoop()
        loop.set_task_factory(make_task)
        workers = Workers(handlers, loop)
        now_ms = round(start.timestamp() * 1000)

        def make(family: Family, plan: Plan, run_id: str) -> World:
            queued = queued_s if run_id == RUN_ID else 0
            return World(
                plan,
                workers,
                now_ms,
                loop,
                family=family,
                run_id=run_id,
                queued_s=queued,
                answers=answers,
                boundaries=boundaries,
            )

        family = Family(plans, make, loop, workers)
        world = family.open(plan, RUN_ID)

        async def main() -> SimulatedRun:
            _schedule(family, planned, resume, pause_after_s, cancel_after_s)
            _publish(family, events)
            for number, newer in enumerate(versions):
                world.after(
                    f"version-{number}",
                    newer.after_s,
                    functools.partial(world.newer.register, newer.definition),
                )
            world.publish(request)
            await world.wait_idle()
            return SimulatedRun(family, world, loop.time())

        try:
            return loop.run_until_complete(main())
        finally:
            _close(loop)
            workers.bury()

    return live


def _handlers(worker: Serving) -> Callable[[], dict[str, Handler]]:
    """Return what gives a new process its handlers."""

    def of(workers: Worker | Sequence[Worker]) -> dict[str, Handler]:
        listed = list(workers) if isinstance(workers, Sequence) else [workers]
        return {task_type: h for each in listed for task_type, h in each.handlers.items()}

    return (lambda: of(worker())) if callable(worker) else (lambda: of(worker))


def _built(workflow: Workflow | WorkflowDefinition) -> WorkflowDefinition:
    return workflow.build() if isinstance(workflow, Workflow) else workflow


def _letters(messages: Sequence[Message]) -> list[tuple[float, str, ClientEvent]]:
    return [
        (
            m.after_s,
            "",
            MessageSent(
                step=m.step,
                kind=m.kind,
                id=f"m{number}",
                payload=msgspec.Raw(payload.encode(f"message to {m.step!r}", m.payload)),
            ),
        )
        for number, m in enumerate(messages)
    ]


def _planned(
    signals: Mapping[str, Any] | Sequence[Signal],
) -> list[tuple[float, str, ClientEvent]]:
    listed = (
        [Signal(name, value) for name, value in signals.items()]
        if isinstance(signals, Mapping)
        else list(signals)
    )
    return [
        (
            s.after_s,
            s.child,
            SignalReceived(name=s.name, payload=msgspec.Raw(payload.encode(s.name, s.payload))),
        )
        for s in listed
    ]


def _publish(family: Family, events: Mapping[str, Any] | Sequence[Event]) -> None:
    listed = (
        [Event(name, value) for name, value in events.items()]
        if isinstance(events, Mapping)
        else list(events)
    )
    for number, event in enumerate(listed):
        value = payload.decode(event.name, payload.encode(event.name, event.payload))
        family.root.after(
            f"published-{number}",
            event.after_s,
            lambda name=event.name, value=value: family.publish_external(name, value),  # type: ignore[misc]
        )


def _schedule(
    family: Family,
    planned: list[tuple[float, str, ClientEvent]],
    resume: Resume | None,
    pause_after_s: float | None,
    cancel_after_s: float | None,
) -> None:
    world = family.root
    for index, (after_s, child, event) in enumerate(planned):
        world.after(
            f"{BELOW if child else 'sent'}-{index}",
            after_s,
            lambda child=child, event=event: _below(family, child).publish(event),  # type: ignore[misc]
        )
    if pause_after_s is not None:
        pause = PauseRequested(reason="paused by the test")
        world.after("pause", pause_after_s, lambda: world.publish(pause))
    if cancel_after_s is not None:
        cancel = CancelRequested(reason="cancelled by the test")
        world.after("cancel", cancel_after_s, lambda: world.publish(cancel))
    if resume is not None:
        request = ResumeRequested(
            add_iterations=resume.add_iterations,
            add_duration_ms=round(resume.add_duration_s * 1000),
            add_spending=SpendingLimits(
                tool_calls=resume.add_tool_calls,
                input_tokens=resume.add_tokens,
                output_tokens=resume.add_tokens,
                total_tokens=resume.add_tokens,
                cost_micro_usd=micro_usd(resume.add_cost_usd),
            ),
        )
        world.after("resume", resume.after_s, lambda: _publish_to_all(family, request))


def _below(family: Family, path: str) -> World:
    """Return the world of the run that the steps of a path have started."""
    world: World | None = family.root
    for step_id in filter(None, path.split("/")):
        world = family.below(world, step_id) if world is not None else None
    if world is None:
        raise UserError(
            f"no run is started by step {path!r} when its signal comes. Send it later: "
            "Signal(..., after_s=...)."
        )
    return world


def _publish_to_all(family: Family, request: ResumeRequested) -> None:
    for world in list(family.worlds.values()):
        if world.run is not None:
            world.publish(request)


def _close(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close_sockets()
    loop.close()
