"""Effects of a run document: each is idempotent, whoever drives it, however often."""

from __future__ import annotations

import asyncio
from typing import assert_never

import msgspec

from treadle.engine.children import Children
from treadle.engine.core import effects
from treadle.engine.core.facts import ChildStarted, StepEnded, StepParked
from treadle.engine.core.forking import given_task
from treadle.engine.core.maps import missing_from, numbers
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan
from treadle.engine.forks import Forks
from treadle.engine.inputs import Inputs
from treadle.engine.lane_log import Lane
from treadle.engine.lane_turns import LaneTurns
from treadle.engine.lanes import Lanes
from treadle.engine.ledger import Ledger
from treadle.engine.pauses import Pauses
from treadle.engine.registers import Registers
from treadle.engine.steps import Steps, first_fact
from treadle.engine.timers import Timers
from treadle.engine.versions import Versions
from treadle.engine.waiters import Waiters
from treadle.sdk import failpoints
from treadle.sdk.bus.connection import Connection, Unknown
from treadle.sdk.definition import WorkStep
from treadle.sdk.lanes import Place
from treadle.sdk.messages import CancelNotice, Inline
from treadle.sdk.run import UNDER_WAY, RunDocument
from treadle.sdk.subjects import RegisterAddress, Subjects, chunk_id, step_of

Found = ChildStarted | StepEnded | StepParked
"""What driving finds out that the document has to hear."""

_PARALLEL = 64
"""Effects of one document under way at once: enough to hide the round trip of each."""


class Driver:
    """Drives the effects of documents."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        registers: Registers,
        steps: Steps,
        inputs: Inputs,
        timers: Timers,
        lanes: Lanes,
        pauses: Pauses,
        children: Children,
        waiters: Waiters,
        forks: Forks,
        versions: Versions,
        ledger: Ledger,
    ) -> None:
        self._connection = connection
        self._subjects = subjects
        self._registers = registers
        self._steps = steps
        self._inputs = inputs
        self._timers = timers
        self._lanes = lanes
        self._lane_turns = LaneTurns(lanes)
        self._pauses = pauses
        self._children = children
        self._waiters = waiters
        self._forks = forks
        self._versions = versions
        self._ledger = ledger

    async def drive(
        self, plan: Plan | None, run: RunDocument, driven: RunDocument | None = None
    ) -> list[Found]:
        """Make true everything that a document as it stands asks for; return what it has to hear.

        ``driven`` is an earlier one that this engine has driven. What it has to hear is heard again
        if the document does not change by it.
        """
        commands = effects.of_document(plan, run, driven)
        found = await self._perform_all(plan, run, commands)
        if run.parent is not None and effects.TellParent() in commands:
            # After the registers: what a stopped loop has used is in them.
            await self._children.tell_parent(plan, run)
        if plan is not None and run.maps:
            self._forget_chunks(plan, run, driven)
        if run.is_terminal and plan is not None:
            for step in plan.steps.values():
                if isinstance(step, WorkStep):
                    self._registers.forget(self._address(plan, run, step.id))
        return found

    async def announce(self, run: RunDocument) -> None:
        """Make true what whoever sees the document relies on: a pause is known to the engines."""
        if run.is_paused:
            await self._pauses.settle(run)

    def _forget_chunks(self, plan: Plan, run: RunDocument, driven: RunDocument | None) -> None:
        """Drop what is known of chunks that are over, also by another engine."""
        for step_id, state in run.maps.items():
            before = driven.maps.get(step_id) if driven else None
            is_over = run.steps[step_id].status not in UNDER_WAY
            if is_over:
                self._inputs.lists.forget(run.run, step_id)
            elif before is None or before.under_way == state.under_way:
                continue
            known = before.under_way if before else state.under_way
            for number in numbers(known) if is_over else missing_from(state.under_way, known):
                self._registers.forget(self._address(plan, run, chunk_id(step_id, number)))

    async def _perform_all(
        self, plan: Plan | None, run: RunDocument, commands: tuple[effects.Command, ...]
    ) -> list[Found]:
        found: list[Found | None] = []
        if len(commands) == 1:
            found.append(await self._perform(plan, run, commands[0]))
        else:
            for start in range(0, len(commands), _PARALLEL):
                batch = commands[start : start + _PARALLEL]
                found += await asyncio.gather(*(self._perform(plan, run, each) for each in batch))
        return [fact for fact in found if fact is not None]

    async def _perform(
        self, plan: Plan | None, run: RunDocument, command: effects.Command
    ) -> Found | None:
        match command:
            case effects.StartChild():
                assert plan is not None
                return await self._children.start(plan, run, command.step)
            case effects.CancelChild():
                await self._children.cancel(run, command)
            case effects.TellParent():
                pass  # Comes last: see ``drive``.
            case effects.CreateRegister():
                assert plan is not None
                return await self._create(plan, run, command.step)
            case effects.EndRegister():
                assert plan is not None
                address = self._address(plan, run, command.step)
                ended_ms = run.steps[step_of(command.step)].ended_ms
                moment = Moment(run.run, f"end-{ended_ms}", ended_ms)
                await self._steps.end(address, command.failure, moment)
            case effects.SetTimer():
                await self._timers.set(run.run, command)
            case effects.ClearTimers():
                await self._timers.clear(run.run)
            case effects.NotifyCancel():
                self._notify(run, command)
            case effects.AwaitEvent():
                assert plan is not None
                await self._waiters.wait(plan, run, command.step)
            case effects.ForgetWaiter():
                assert plan is not None
                await self._waiters.forget(plan, run, command.step)
            case effects.Supersede():
                place = Place(run.place, run.run)
                await self._lanes.supersede(Lane.named(run.lane, run.domain), place)
            case effects.EnterLane():
                await self._lanes.enter(Lane.named(run.lane, run.domain), run.run, run.requested)
            case effects.SettleLane():
                await self._lane_turns.settle(Lane.named(run.lane, run.domain), run.places)
            case effects.SettlePause():
                await self._pauses.settle(run)
            case _:
                assert_never(command)
        return None

    async def _create(
        self, plan: Plan, run: RunDocument, step_id: str
    ) -> StepEnded | StepParked | None:
        """Make the register exist; return what the document has to hear of it at once."""
        address, began = self._address(plan, run, step_id), run.steps[step_of(step_id)].event
        known = self._registers.known(address)
        if known is not None:
            # Whoever created it may have died before it set the deadline.
            await self._steps.begun(address, known)
            return first_fact(step_id, known, began)
        step, head = plan.work(step_id), 0
        flow = await self._inputs.flow(plan, run, step_id)
        budgets = await self._ledger.budgets(run, step_id)
        if step_id not in plan.steps:
            items, chunk = await self._inputs.of_chunk(plan, run, step_id)
            first = effects.first_register(plan, run, step, items, flow, chunk)
        elif run.fork is not None and step_id in run.fork.given:
            given = await self._forks.given(run.fork.given[step_id])
            head = await self._forks.restore(address, run.fork.given[step_id], given)
            begins = given_task(given, has_saved=head > 0)
            first = effects.first_register(
                plan, run, step, Inline(given.input), flow, budgets=budgets, begins=begins
            )
        else:
            task_input = await self._inputs.of_step(plan, run, step)
            first = effects.first_register(plan, run, step, task_input, flow, budgets=budgets)
        first = await self._versions.first(step, first)
        placed = await self._registers.create(address, first, head)
        failpoints.reach("engine.register-created")
        placed = await self._steps.released(address, placed)
        await self._steps.begun(address, placed)
        return first_fact(step_id, placed, began)

    def _address(self, plan: Plan, run: RunDocument, step_id: str) -> RegisterAddress:
        return RegisterAddress(run.domain, run.run, step_id, plan.work(step_id).type)

    def _notify(self, run: RunDocument, command: effects.NotifyCancel) -> None:
        notice = msgspec.json.encode(
            CancelNotice(run=run.run, step=command.step, reason=command.reason)
        )
        try:
            self._connection.publish(self._subjects.cancel(run.run), notice)
        except Unknown:
            return  # A hint: workers also meet the ended register at their next boundary.
