"""The input of a step's first task: the run's own, or the outputs of the steps before it.

Small inputs are copied into the task; large ones are referred to, so that a wide fan-in or a
fan-out of a big input neither meets the largest message nor is written many times.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from treadle.engine.core.facts import StepDecided
from treadle.engine.core.fitting import result_misfit, too_large
from treadle.engine.core.flow import is_limited, resolve
from treadle.engine.core.given import decision, needs_input
from treadle.engine.core.lists import LIST_BYTES_MAX, ListFault
from treadle.engine.core.maps import output_of
from treadle.engine.core.plan import Plan
from treadle.engine.lists import Lists
from treadle.engine.registers import Registers
from treadle.engine.waking import woken_at
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.definition import (
    MapStep,
    SleepStep,
    Step,
    SubWorkflowStep,
    TypedStep,
    WaitStep,
    has_keys,
)
from treadle.sdk.errors import InvariantError
from treadle.sdk.gathering import Gatherer
from treadle.sdk.given import asked_of, failed_before, given_by, shape_of
from treadle.sdk.handed_on import Carrier, handed_on
from treadle.sdk.messages import (
    Ended,
    Failure,
    Flow,
    FromRun,
    FromSteps,
    Inline,
    MapChunk,
    MapOutput,
    TaskInput,
)
from treadle.sdk.outcome import outcome_of
from treadle.sdk.payload import PAYLOAD_BYTES_MAX, check_bytes
from treadle.sdk.plans import result_of
from treadle.sdk.run import RunDocument, has_output, is_copied, kept_output
from treadle.sdk.shape import Shape, assembled, leaves
from treadle.sdk.stored import read
from treadle.sdk.subjects import RegisterAddress, Subjects, parse_chunk, step_of

INLINE_BYTES_MAX = 64 * 1024
"""Inputs up to this size travel inside the task; larger ones are read by the worker. Where the
server takes little, half of that: a task holds more than its input."""

_OUTPUTS_BYTES_MAX = 64 * 1024 * 1024
"""Outputs an engine keeps in memory, because the step after them usually comes at once."""

_carrier: msgspec.json.Decoder[Carrier] = msgspec.json.Decoder(Carrier)


class Outputs:
    """Recent payloads by key, bounded by their size."""

    def __init__(self, bytes_max: int = _OUTPUTS_BYTES_MAX) -> None:
        self._values: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0
        self._bytes_max = bytes_max

    def put(self, key: str, value: msgspec.Raw | bytes) -> None:
        """Keep a payload; the oldest go when there are too many."""
        data = bytes(value)
        old = self._values.pop(key, None)
        self._bytes += len(data) - (len(old) if old is not None else 0)
        self._values[key] = data
        while self._bytes > self._bytes_max:
            _, gone = self._values.popitem(last=False)
            self._bytes -= len(gone)

    def get(self, key: str) -> bytes | None:
        """Return a kept payload."""
        return self._values.get(key)


class Inputs:
    """Builds task inputs."""

    def __init__(self, js: JetStream, subjects: Subjects, registers: Registers) -> None:
        self._js = js
        self._subjects = subjects
        self._registers = registers
        self._gatherer = Gatherer(js, subjects)
        self.lists = Lists(self._list_of)
        self.outputs = Outputs()

    async def of_step(self, plan: Plan, run: RunDocument, step: Step) -> TaskInput:
        """Return the input of a step whose turn it is.

        Null stands for a step it waited for that did not complete.
        """
        if failed := failed_before(plan, run, step):
            return Inline(msgspec.Raw(msgspec.json.encode(failed)))
        shape = shape_of(plan, run, step)
        if shape is None:
            value = await self._event_payload(run.requested)
            if len(value) > self._inline_bytes_max():
                return FromRun(run.requested)
            return Inline(msgspec.Raw(value))
        most = self._inline_bytes_max()
        mapped = (run.maps[dep].size_bytes for dep in leaves(shape) if dep in run.maps)
        if sum(mapped) > most:
            return _references(plan, run, shape)
        values = await self._values(plan, run, shape)
        if sum(map(len, values.values())) > most:
            return _references(plan, run, shape)
        return Inline(msgspec.Raw(assembled(shape, values)))

    async def _values(self, plan: Plan, run: RunDocument, shape: Shape) -> dict[str, bytes]:
        return {
            leaf: given_by(plan, leaf) or await self.output(plan, run, leaf)
            for leaf in leaves(shape)
        }

    async def of_chunk(self, plan: Plan, run: RunDocument, name: str) -> tuple[Inline, MapChunk]:
        """Return the items of a chunk of a map, and what its task says of them."""
        step_id, number = parse_chunk(name) or ("", 0)
        step = plan.steps[step_id]
        assert isinstance(step, MapStep)
        piece, chunk = await self.lists.piece(plan, run, step, number)
        return Inline(msgspec.Raw(piece)), chunk

    async def _list_of(self, plan: Plan, run: RunDocument, step: MapStep) -> bytes:
        """Return the input of a map as JSON, wherever it is."""
        shape = shape_of(plan, run, step)
        if shape is None:
            return await self._event_payload(run.requested)
        for dep in leaves(shape):
            if dep in run.maps and run.maps[dep].size_bytes > LIST_BYTES_MAX:
                raise ListFault(
                    f"the output of map {dep!r} has {run.maps[dep].size_bytes} bytes, and a list "
                    f"of at most {LIST_BYTES_MAX} can be mapped over. Return less for each item"
                )
        return assembled(shape, await self._values(plan, run, shape))

    async def whole(self, plan: Plan, run: RunDocument, step: Step) -> bytes:
        """Return the input of a step as it is; raise ``InvalidPayload`` if it is too large."""
        what = f"input of step {step.id!r}"
        if failed := failed_before(plan, run, step):
            return msgspec.json.encode(failed)
        shape = shape_of(plan, run, step)
        if shape is None:
            return await self._event_payload(run.requested)
        return await self._bounded(what, plan, run, shape)

    async def result(self, plan: Plan, run: RunDocument) -> bytes:
        """Return the result of a completed run; raise ``InvalidPayload`` if it is too large."""
        what = f"result of run {run.run!r}"
        steps, is_single = outcome_of(plan.own, run)
        shapes: dict[str, Shape] = {step.id: result_of(plan.plans, run, step.id) for step in steps}
        shape = shapes[steps[0].id] if is_single else shapes
        return await self._bounded(what, plan, run, shape)

    async def _bounded(self, what: str, plan: Plan, run: RunDocument, shape: Shape) -> bytes:
        # What maps have put out may be far too much to be read.
        check_bytes(
            what, sum(run.maps[leaf].size_bytes for leaf in leaves(shape) if leaf in run.maps)
        )
        raw = assembled(shape, await self._values(plan, run, shape))
        check_bytes(what, len(raw))
        return raw

    def _inline_bytes_max(self) -> int:
        return min(INLINE_BYTES_MAX, self._js.connection.max_payload_bytes // 2)

    async def decision(self, plan: Plan, run: RunDocument, step: Step) -> StepDecided:
        """Return whether a step begins, how the list of a map is cut, and when a sleep is over."""
        if isinstance(step, SleepStep) and step.cron and not step.when:
            return woken_at(run, step, StepDecided(step.id, True))  # Nothing is read.
        if step.when or has_keys(step) or not isinstance(step, MapStep):
            decided = await self._asked(plan, run, step)
            if not decided.holds or not isinstance(step, MapStep):
                return woken_at(run, step, decided)
        item_bytes_max = self._js.connection.max_payload_bytes // 2
        chunk_bytes = self._inline_bytes_max()
        return await self.lists.decided(plan, run, step, chunk_bytes, item_bytes_max)

    async def _asked(self, plan: Plan, run: RunDocument, step: Step) -> StepDecided:
        for dep in leaves(asked_of(plan, run, step)):
            if dep in run.maps and run.maps[dep].size_bytes > PAYLOAD_BYTES_MAX:
                text = (
                    f"the output of map {dep!r} has {run.maps[dep].size_bytes} bytes, and a "
                    f"condition reads at most {PAYLOAD_BYTES_MAX}. Let a task sum it up"
                )
                return StepDecided(step.id, False, Failure("condition", text, retryable=False))
        run_input, steps = await self.named(plan, run, step, frozenset({"input", "steps"}))
        given = await self._given(plan, run, step) if needs_input(step) else None
        return decision(step, run_input, steps, given)

    async def _given(self, plan: Plan, run: RunDocument, step: Step) -> object:
        """Return the input of a step as a value."""
        if failed := failed_before(plan, run, step):
            return msgspec.to_builtins(failed)
        shape = shape_of(plan, run, step)
        if shape is None:
            return msgspec.json.decode(await self._event_payload(run.requested))
        return await self._value(plan, run, shape)

    async def _value(self, plan: Plan, run: RunDocument, shape: Shape) -> object:
        return msgspec.json.decode(assembled(shape, await self._values(plan, run, shape)))

    async def misfit(self, plan: Plan, run: RunDocument) -> Failure | None:
        """Return why the result of a run whose steps are over does not fit; None if it may."""
        if failure := too_large(plan, run):
            return failure
        outputs = {
            step.id: await self._value(plan, run, result_of(plan.plans, run, step.id))
            for step in outcome_of(plan.own, run).steps
        }
        return result_misfit(plan, run, outputs)

    async def flow(self, plan: Plan, run: RunDocument, step_id: str) -> Flow | None:
        """Return the limits of a step that begins, or a chunk of it; None if it has none."""
        step = plan.steps[step_of(step_id)]
        if not isinstance(step, TypedStep) or not is_limited(step):
            return None
        names = frozenset({"input", "steps"}) if has_keys(step) else frozenset[str]()
        run_input, outputs = await self.named(plan, run, step, names)
        return resolve(run.workflow, step, run_input, outputs, run.priority)

    async def named(
        self, plan: Plan, run: RunDocument, step: Step, names: frozenset[str]
    ) -> tuple[object, dict[str, object]]:
        """Return the run's input and the outputs that ``steps`` has, as far as they are named."""
        run_input: object = None
        if "input" in names:
            run_input = msgspec.json.decode(await self._event_payload(run.requested))
        asked = asked_of(plan, run, step) if "steps" in names else {}
        values = await self._values(plan, run, asked)
        steps = {name: msgspec.json.decode(assembled(of, values)) for name, of in asked.items()}
        return run_input, steps

    async def output(self, plan: Plan, run: RunDocument, step_id: str) -> bytes:
        """Return the output of a step that is over; null for one that has none to hand on."""
        step = plan.steps[step_id]
        if (held := kept_output(run, step)) is not None:
            return held
        if isinstance(step, WaitStep | SubWorkflowStep) or is_copied(run, step):
            return await self._event_payload(int(run.steps[step_id].event[1:]))
        assert isinstance(step, TypedStep)
        address = RegisterAddress(run.domain, run.run, step_id, step.type)
        if isinstance(step, MapStep):
            return await self._gatherer.output(address, output_of(step, run))
        key = self._registers.subject(address)
        kept = self.outputs.get(key)
        if kept is not None:
            return kept
        placed = await self._registers.read(address)
        if placed is None or not isinstance(placed.register, Ended):
            raise InvariantError(f"run {run.run!r}: completed step {step_id!r} has no output")
        self._registers.forget(address)
        self.outputs.put(key, placed.register.output)
        return bytes(placed.register.output)

    async def _event_payload(self, sequence: int) -> bytes:
        key = f"e{sequence}"
        kept = self.outputs.get(key)
        if kept is not None:
            return kept
        stored = await self._js.get(self._subjects.events_stream, sequence)
        if stored is None:
            raise InvariantError(f"event {sequence} is gone from {self._subjects.events_stream}")
        payload = handed_on(read(_carrier, stored), stored.time_ms)
        self.outputs.put(key, payload)
        return bytes(payload)


def _references(plan: Plan, run: RunDocument, shape: Shape) -> FromSteps:
    types: dict[str, str] = {}
    sequences: dict[str, int] = {}
    values: dict[str, msgspec.Raw] = {}
    maps: dict[str, MapOutput] = {}
    for dep in leaves(shape):
        if (value := given_by(plan, dep)) is not None:
            types[dep], sequences[dep], values[dep] = "", 0, msgspec.Raw(value)
            continue
        before = plan.steps[dep]
        if not has_output(run, before):
            types[dep] = ""
            sequences[dep] = 0
        elif (held := kept_output(run, before)) is not None:
            types[dep] = ""
            values[dep] = msgspec.Raw(held)
        elif isinstance(before, WaitStep | SubWorkflowStep) or is_copied(run, before):
            types[dep] = ""
            sequences[dep] = int(run.steps[dep].event[1:])
        else:
            assert isinstance(before, TypedStep)
            types[dep] = before.type
            if isinstance(before, MapStep):
                maps[dep] = output_of(before, run)
    single = isinstance(shape, str)
    is_plain = isinstance(shape, str) or all(name == part for name, part in shape.items())
    return FromSteps(types, sequences, single, values, maps, None if is_plain else shape)
