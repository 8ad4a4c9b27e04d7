"""Effects of a run document: each is idempotent, whoever drives it, however often."""

from __future__ import annotations

import asyncio
from typing import assert_never

import msgspec

from treadle.engine.core import effects
from treadle.engine.core.moment import Moment
from treadle.engine.core.pausing import hold
from treadle.engine.core.plan import Plan
from treadle.engine.inputs import Inputs
from treadle.engine.lane_log import Lane
from treadle.engine.lanes import Lanes
from treadle.engine.pauses import Pauses
from treadle.engine.registers import Registers
from treadle.engine.steps import Steps
from treadle.engine.timers import Timers
from treadle.engine.waiters import Waiters
from treadle.sdk import failpoints
from treadle.sdk.bus.connection import Connection, Unknown
from treadle.sdk.definition import WorkStep
from treadle.sdk.messages import CancelNotice
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import RegisterAddress, Subjects

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
        waiters: Waiters,
    ) -> None:
        self._connection = connection
        self._subjects = subjects
        self._registers = registers
        self._steps = steps
        self._inputs = inputs
        self._timers = timers
        self._lanes = lanes
        self._pauses = pauses
        self._waiters = waiters

    async def drive(self, plan: Plan | None, run: RunDocument) -> None:
        """Make true everything that a document as it stands asks for."""
        commands = effects.of_document(plan, run)
        await self._perform_all(plan, run, commands)
        if run.is_terminal and plan is not None:
            for step in plan.steps.values():
                if isinstance(step, WorkStep):
                    self._registers.forget(self._address(plan, run, step.id))

    async def _perform_all(
        self, plan: Plan | None, run: RunDocument, commands: tuple[effects.Command, ...]
    ) -> None:
        if len(commands) == 1:
            await self._perform(plan, run, commands[0])
            return
        for start in range(0, len(commands), _PARALLEL):
            batch = commands[start : start + _PARALLEL]
            await asyncio.gather(*(self._perform(plan, run, command) for command in batch))

    async def _perform(self, plan: Plan | None, run: RunDocument, command: effects.Command) -> None:
        match command:
            case effects.CreateRegister():
                assert plan is not None
                await self._create(plan, run, command.step)
            case effects.EndRegister():
                assert plan is not None
                address = self._address(plan, run, command.step)
                ended_ms = run.steps[command.step].ended_ms
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
            case effects.SettleLane():
                await self._lanes.settle(Lane.named(run.lane, run.domain))
            case effects.SettlePause():
                await self._pauses.settle(run)
            case _:
                assert_never(command)

    async def _create(self, plan: Plan, run: RunDocument, step_id: str) -> None:
        address = self._address(plan, run, step_id)
        known = self._registers.known(address)
        if known is not None:
            # Whoever created it may have died before it set the deadline.
            await self._steps.set_timers(address, known.register)
            return
        step = plan.work(step_id)
        task = effects.first_task(plan, run, step, await self._inputs.of_step(plan, run, step))
        first = hold(task, Moment(run.run, task.parent, task.started_ms)) if run.is_paused else task
        placed = await self._registers.create(address, first)
        failpoints.reach("engine.register-created")
        placed = await self._steps.released(address, placed)
        await self._steps.set_timers(address, placed.register)

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
