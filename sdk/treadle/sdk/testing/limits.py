"""The limits of a simulated run: the engine's own core over records in memory.

One run is alone in its world, so what waits are its own steps: those that are under way together.
"""

from __future__ import annotations

from collections.abc import Callable

from treadle.engine.core import Placed, Plan, advance, effects
from treadle.engine.core import slots as core
from treadle.engine.core.flow import (
    RateDeferred,
    SlotsGranted,
    below,
    grant_moment,
    is_limited,
    is_timely,
    line_of,
    resolve,
    slots_of,
    weight_of,
)
from treadle.engine.core.rates import reserve
from treadle.sdk.definition import TypedStep
from treadle.sdk.messages import (
    Flow,
    MapChunk,
    Queued,
    Register,
    SlotClaim,
    SlotRecord,
    SlotWaiter,
    TaskInput,
)
from treadle.sdk.run import RunDocument
from treadle.sdk.spending import SharedBudget
from treadle.sdk.subjects import step_of

Place = Callable[[str, Register], None]
Named = Callable[[str], tuple[object, dict[str, object]]]


class SimulatedLimits:
    """Slots and rates by key, and who waits for them."""

    def __init__(
        self,
        plan: Callable[[], Plan],
        run: str,
        now_ms: Callable[[], int],
        registers: dict[str, Placed],
        place: Place,
        is_paused: Callable[[], bool],
    ) -> None:
        self._plan = plan
        self._run = run
        self._now_ms = now_ms
        self._registers = registers
        self._place = place
        self._is_paused = is_paused
        self._records: dict[str, SlotRecord] = {}
        self._waiters: dict[str, dict[int, SlotWaiter]] = {}
        self._rates: dict[str, int] = {}
        self._sequence = 0

    def first(
        self,
        run: RunDocument,
        name: str,
        task_input: TaskInput,
        chunk: MapChunk | None,
        named: Named,
        budgets: tuple[SharedBudget, ...] = (),
    ) -> Register:
        """Return the first value of the register of a step, or of a chunk of one."""
        step, flow = self._plan().steps[step_of(name)], None
        if isinstance(step, TypedStep) and is_limited(step):
            flow = resolve(run.workflow, step, *named(step.id), run.priority)
        work = self._plan().work(name)
        return effects.first_register(
            self._plan(), run, work, task_input, flow, chunk, budgets=budgets
        )

    def settle(self, step_id: str, placed: Placed) -> None:
        """Do what limits ask of a register that was just stored."""
        register = placed.register
        if isinstance(register, Queued):
            self._admit(step_id, placed, register)
            return
        for limit in slots_of(register):
            if limit in self._records:
                position = below(register, placed.sequence)
                self._records[limit] = core.leave(self._records[limit], step_id, position)
                self._grant(limit)

    def _admit(self, step_id: str, placed: Placed, queued: Queued) -> None:
        flow, token, now_ms = queued.task.flow, placed.sequence, self._now_ms()
        assert flow is not None
        for claim in flow.slots:
            record = self._records.get(claim.key, SlotRecord())
            record, entry = core.enter(record, step_id, token, claim.limit, now_ms)
            self._records[claim.key] = record
            if entry != "held":
                self._wait(claim, step_id, token, flow, queued.since_ms)
                # Its own older slot may be what was freed for whoever waits.
                self._grant(claim.key)
                return
        event: SlotsGranted | RateDeferred = SlotsGranted(token)
        if flow.rates and not is_timely(queued.task, now_ms):
            due_ms = self._due_ms(flow, weight_of(queued.task))
            if due_ms > now_ms:
                event = RateDeferred(token, due_ms)
        moment = grant_moment(self._run, token, queued, now_ms)
        step = self._plan().work(step_id)
        self._place(step_id, advance(step, placed, event, moment, is_paused=self._is_paused()))

    def _wait(self, claim: SlotClaim, step_id: str, token: int, flow: Flow, since_ms: int) -> None:
        waiter = SlotWaiter(
            address=step_id,
            token=token,
            line=line_of(flow),
            priority=flow.priority,
            fair=flow.fair,
            weight=flow.weight,
            since_ms=since_ms,
        )
        self._sequence += 1
        self._waiters.setdefault(claim.key, {})[self._sequence] = waiter
        self._records[claim.key] = core.queue(self._records[claim.key], waiter, claim.limit)

    def _grant(self, limit: str) -> None:
        """Give free slots to those whose turn it is, as the engine does in one write."""
        granted: list[SlotWaiter] = []
        waiters = self._waiters.get(limit, {})
        while (line := core.next_line(record := self._records[limit])) is not None:
            after = record.lines[line].after
            place = next((s for s, w in waiters.items() if s > after and w.line == line), 0)
            head = waiters.get(place)
            self._records[limit], is_new = core.grant(record, line, head, place, self._now_ms())
            if head is not None and is_new:
                granted.append(waiters.pop(place))
        for waiter in granted:
            placed = self._registers[waiter.address]
            if isinstance(placed.register, Queued) and placed.sequence == waiter.token:
                self._admit(waiter.address, placed, placed.register)
            else:
                position = below(placed.register, placed.sequence)
                record = self._records[limit]
                self._records[limit] = core.leave(record, waiter.address, position)

    def _due_ms(self, flow: Flow, count: int) -> int:
        dues: list[int] = []
        for claim in flow.rates:
            now_us, next_us = self._now_ms() * 1000, self._rates.get(claim.key, 0)
            self._rates[claim.key], due_us = reserve(
                next_us, now_us, claim.interval_us, claim.burst, count
            )
            dues.append(-(-due_us // 1000))
        return max(dues)
