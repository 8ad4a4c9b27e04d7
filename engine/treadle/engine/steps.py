"""Events of one step: decided on the step's register, and nowhere else.

    event ──advance──> next value ──compare-and-set──> register      the end of a step too
                                                         └──> a fact for the run document

An event whose id is the parent of the register's value was applied before: its effects are
driven again. Anything else that does not hold the token is stale.

A register that waits has an effect of its own: if a message is stored that it has not seen, it is
woken by it. Whoever stores the register looks after the write, whoever handles the message looks
at the register: one of the two sees the other's.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeGuard

from treadle.engine.admission import Admission
from treadle.engine.core import effects
from treadle.engine.core.advance import (
    Placed,
    RegisterEvent,
    Work,
    advance,
    is_live,
    is_still,
    lost,
)
from treadle.engine.core.bounds import spent_by, task_of, too_large
from treadle.engine.core.facts import StepEnded, StepParked, StepResumed
from treadle.engine.core.flow import gated
from treadle.engine.core.maps import is_under_way
from treadle.engine.core.moment import Moment
from treadle.engine.core.pausing import hold, release, resume_of
from treadle.engine.definitions import Definitions
from treadle.engine.documents import Documents
from treadle.engine.inbox import Inbox
from treadle.engine.ledger import Ledger
from treadle.engine.pauses import Pauses
from treadle.engine.planned import RunPlans
from treadle.engine.registers import Conflict, Fenced, Moved, Registers
from treadle.engine.timers import Timers
from treadle.engine.turns import Turns
from treadle.engine.versions import Versions
from treadle.sdk import failpoints
from treadle.sdk.errors import InvalidPayload, StoredUnreadable
from treadle.sdk.messages import (
    Ended,
    Failure,
    LiveRegister,
    MessageSent,
    Parked,
    Queued,
    Register,
    ResumeRequested,
    SettleEvent,
    Sleeping,
    StepCompleted,
    StepWaiting,
    Task,
    TimerFired,
)
from treadle.sdk.run import RunDocument
from treadle.sdk.stored import missing
from treadle.sdk.subjects import RegisterAddress, step_of

Fact = StepEnded | StepParked | StepResumed

GHOST_DELIVERIES = 20
"""A register that the document does not know is asked about this often, 100 ms apart, before it
is ended: a deposed leader may answer with an old document for a moment."""


class Answer(Enum):
    """What to do with an event that gives no fact."""

    DONE = "done"
    STALE = "stale"
    """It changed nothing, and what it may have changed before has changed again."""
    LATER = "later"


class Steps:
    """Moves registers."""

    def __init__(
        self,
        registers: Registers,
        documents: Documents,
        definitions: Definitions,
        plans: RunPlans,
        timers: Timers,
        inbox: Inbox,
        ledger: Ledger,
        pauses: Pauses,
        admission: Admission,
        versions: Versions,
        turns: Turns,
    ) -> None:
        self._registers = registers
        self._documents = documents
        self._definitions = definitions
        self._plans = plans
        self._timers = timers
        self._inbox = inbox
        self._ledger = ledger
        self._pauses = pauses
        self._admission = admission
        admission.find_step, admission.on_held = self._step, self.released
        self._versions = versions
        self._turns = turns

    async def handle(
        self, address: RegisterAddress, event: RegisterEvent, moment: Moment, deliveries: int
    ) -> Fact | Answer:
        """Decide an event on its register; return the fact it makes, if any."""
        placed = self._registers.known(address)
        is_known = placed is not None and is_live(placed.register)
        if placed is None or _may_be_old(placed, event, moment):
            standing = await self._registers.look(address)
            if isinstance(standing, StoredUnreadable):
                if not await self._is_active(address):
                    return Answer.DONE  # What is left of a step that is over needs no value.
                raise standing
            placed = standing
        if placed is None:
            if deliveries >= GHOST_DELIVERIES and await self._is_active(address):
                raise missing(self._registers.subject(address))
            return Answer.LATER
        if placed.register.parent == moment.id:
            return await self._driven(address, placed, event)
        if not is_live(placed.register):
            return Answer.DONE
        if not is_known and not await self._is_active(address):
            # Not known for having been read: the question is asked again.
            self._registers.forget(address)
            # What was read is not trusted: the next look has to ask the document again.
            self._registers.forget(address)
            if deliveries < GHOST_DELIVERIES:
                return Answer.LATER
            await self.end(address, _ghost(moment), moment)
            return Answer.DONE
        return await self._decide(address, placed, event, moment)

    async def _decide(
        self, address: RegisterAddress, placed: Placed, event: RegisterEvent, moment: Moment
    ) -> Fact | Answer:
        register = placed.register
        assert is_live(register)
        task = task_of(register)
        step = await self._step(address, task)
        if step is None:
            return Answer.LATER
        step, at = await self._versions.at(step, placed, event)
        newest = await self._newest(address, event)
        is_paused = await self._pauses.holds(address.run)
        at = await self._ledger.informed(address, at, event)
        new = advance(step, at, event, moment, newest, is_paused=is_paused)
        if new is at.register:
            if isinstance(event, TimerFired):
                # Fired early: the redo of an older event has replaced the schedule that stands.
                await self.set_timers(address, register)
            return Answer.STALE
        token = head = placed.sequence
        follow = True
        if isinstance(event, SettleEvent):
            head, follow = event.head, False
        outcome = await self._move(
            address, register, new, moment, token=token, head=head, follow=follow
        )
        if isinstance(outcome, Conflict):
            # Two executions of one token: neither is believed, and the next attempt goes on
            # from the checkpoint that stands.
            assert isinstance(register, Task)
            again = lost(step, register, moment)
            if is_paused:
                again = hold(again, moment)
            outcome = await self._move(
                address, register, again, moment, token=token, head=token, follow=True
            )
        if isinstance(outcome, Fenced | Conflict):
            if outcome.head is None and await self._is_active(address):
                raise missing(self._registers.subject(address))
            return Answer.STALE
        failpoints.reach("engine.register-stored")
        placed = outcome.placed
        before = task.deadline_ms if isinstance(register, Task) else -1
        if _needs_timers(placed.register, before):
            await self.set_timers(address, placed.register)
        placed = await self._admission.settle(address, placed)
        return await self._told(
            address, placed, moves=isinstance(register, Parked) and not register.line
        )

    async def _move(
        self,
        address: RegisterAddress,
        register: LiveRegister,
        new: Register,
        moment: Moment,
        *,
        token: int,
        head: int,
        follow: bool,
    ) -> Moved | Fenced | Conflict:
        """Store the next value; the step fails if the server does not take one so large."""
        try:
            return await self._registers.move(address, new, token=token, head=head, follow=follow)
        except InvalidPayload as exc:
            failed = too_large(register, str(exc), moment)
            return await self._registers.move(
                address, failed, token=token, head=head, follow=follow
            )

    async def _driven(
        self, address: RegisterAddress, placed: Placed, event: RegisterEvent
    ) -> Fact | Answer:
        await self.set_timers(address, placed.register)
        placed = await self._admission.settle(address, placed)
        moves = isinstance(event, MessageSent | TimerFired | ResumeRequested)
        return await self._told(address, placed, moves=moves)

    async def _told(
        self, address: RegisterAddress, placed: Placed, *, moves: bool
    ) -> Fact | Answer:
        """Return what the document has to hear of a register that this event has brought here.

        ``moves`` says that the document may believe it parked.
        """
        if _waits(placed.register):
            standing = await self._woken(address, placed)
            moves, placed = standing is not placed, standing
            await self._turns.settle(address, placed)
        if _is_held(placed.register):
            standing = await self.released(address, placed)
            moves, placed = standing is not placed, standing
        if moves and not is_still(placed.register):
            return resumed_fact(address.step, placed)
        return _fact(address.step, placed)

    async def _newest(self, address: RegisterAddress, event: RegisterEvent) -> int:
        """Return the newest message to the step, if the verdict depends on it."""
        if not isinstance(event, StepCompleted | StepWaiting) or not event.takes_messages:
            return 0
        message = await self._inbox.newest(address)
        failpoints.reach("engine.messages-looked")
        return message.moment.sequence if message else 0

    async def _woken(self, address: RegisterAddress, placed: Placed) -> Placed:
        """Wake a waiting register by a message that is stored; return what stands then."""
        message = await self._inbox.newest(address)
        while message is not None and _waits(placed.register):
            task = task_of(placed.register)
            step = await self._step(address, task)
            if step is None:
                return placed
            is_paused = await self._pauses.holds(address.run)
            step, at = await self._versions.at(step, placed, message.event)
            new = advance(step, at, message.event, message.moment, is_paused=is_paused)
            if new is at.register:
                return placed
            standing = await self._moved(address, placed, new, message.moment)
            if standing is None:
                return placed
            placed = standing
        return placed

    async def _moved(
        self, address: RegisterAddress, placed: Placed, new: Register, moment: Moment
    ) -> Placed | None:
        """Move a register that nobody executes, with its effects; return what stands then.

        That is another's value if it has moved already, and None if it is gone.
        """
        assert is_live(placed.register)
        token = placed.sequence
        outcome = await self._move(
            address, placed.register, new, moment, token=token, head=token, follow=True
        )
        assert not isinstance(outcome, Conflict)
        if isinstance(outcome, Fenced):
            return outcome.head
        failpoints.reach("engine.register-woken")
        await self.set_timers(address, outcome.placed.register)
        return await self._admission.settle(address, outcome.placed)

    async def begun(self, address: RegisterAddress, placed: Placed) -> None:
        """Drive the effects of a register that exists because its step is active."""
        await self.set_timers(address, placed.register)
        await self._admission.begin(address, placed)

    async def released(self, address: RegisterAddress, placed: Placed) -> Placed:
        """Release a register that was just held if its run was resumed meanwhile.

        Whoever resumed it may have looked at the register before it was held.
        """
        while _is_held(placed.register):
            failpoints.reach("engine.register-held")
            version = await self._documents.read(address.run)
            if version is None or version.run.is_paused or version.run.is_terminal:
                return placed
            resumed = resume_of(version.run)
            task = gated(release(placed.register, resumed), resumed)
            standing = await self._moved(address, placed, task, resumed)
            if standing is None:
                return placed
            placed = standing
        return placed

    async def set_timers(self, address: RegisterAddress, register: Register) -> None:
        """Drive the effects of a register as it stands."""
        for timer in effects.of_register(address.step, address.type, register):
            await self._timers.set(address.run, timer)

    async def end(self, address: RegisterAddress, failure: Failure, moment: Moment) -> Placed:
        """Store ``Ended`` whatever the register holds, also no register, or nothing at all."""
        standing = self._registers.known(address) or await self._registers.look(address)
        while True:
            register = standing.register if isinstance(standing, Placed) else None
            if isinstance(standing, Placed) and isinstance(register, Ended):
                self._registers.forget(address)
                return await self._admission.settle(address, standing)
            token = _revision(standing)
            ended = effects.cancelled(register, failure, moment)
            try:
                outcome = await self._registers.move(
                    address, ended, token=token, head=token, follow=True
                )
            except StoredUnreadable as exc:
                standing = exc
                continue
            if isinstance(outcome, Fenced):
                standing = outcome.head
                continue
            assert not isinstance(outcome, Conflict)
            standing = outcome.placed
            if isinstance(register, Parked) and register.line:
                await self._turns.left(address, register.line)

    async def _step(self, address: RegisterAddress, task: Task) -> Work | None:
        """Return the step under the definition of its task; None if it cannot be found now."""
        plan = await self._definitions.plan(task.workflow, task.definition)
        if plan is None or step_of(address.step) in plan.steps:
            return None if plan is None else plan.work(address.step)
        # A planner has planned it; a document in memory may be older than that.
        for look in (self._documents.get, self._documents.read):
            version = await look(address.run)
            plan = await self._plans.of_run(version.run) if version else None
            if plan is not None and step_of(address.step) in plan.steps:
                return plan.work(address.step)
        return None

    async def _is_active(self, address: RegisterAddress) -> bool:
        version = await self._documents.get(address.run)
        if version is None:
            return False
        if not _is_under_way(version.run, address.step):
            version = await self._documents.read(address.run)
        return version is not None and _is_under_way(version.run, address.step)


def _is_under_way(run: RunDocument, name: str) -> bool:
    entry = run.steps.get(name)
    if entry is None:
        return is_under_way(run, name)
    return entry.status in ("active", "parked")


def _revision(standing: Placed | StoredUnreadable | None) -> int:
    if isinstance(standing, StoredUnreadable):
        return standing.revision
    return standing.sequence if standing is not None else 0


def _may_be_old(placed: Placed, event: RegisterEvent, moment: Moment) -> bool:
    """True when the known value does not fit the event, so that it has to be read again."""
    if placed.register.parent == moment.id:
        return False
    token = getattr(event, "token", 0)
    return token != placed.sequence


def _waits(register: Register) -> TypeGuard[Parked]:
    return isinstance(register, Parked) and register.waits


def _is_held(register: Register) -> TypeGuard[Parked]:
    return isinstance(register, Parked) and register.paused


def _needs_timers(register: Register, deadline_before_ms: int) -> bool:
    if isinstance(register, Sleeping | Parked):
        return register.due_ms > 0
    if not isinstance(register, Task | Queued):
        return False
    return task_of(register).deadline_ms not in (0, deadline_before_ms)


def _fact(step: str, placed: Placed) -> Fact | Answer:
    register = placed.register
    match register:
        case Ended():
            return StepEnded(
                step,
                register.outcome,
                register.iterations,
                register.failure,
                register.parent,
                placed.sequence,
                register.spent,
                register.chunk,
            )
        case Parked(paused=False, line=""):
            return StepParked(
                step,
                register.reason,
                register.task.counted,
                register.parent,
                placed.sequence,
                register.waits,
                spent_by(register.task),
                register.failure,
            )
        case _:
            return Answer.DONE


def first_fact(step: str, placed: Placed, began: str) -> StepEnded | StepParked | None:
    """Return what the document has to hear of a step that was stopped before its first task.

    ``began`` is the event that made it active.
    """
    fact = _fact(step, placed) if placed.register.parent == began else None
    return fact if isinstance(fact, StepEnded | StepParked) else None


def resumed_fact(step: str, placed: Placed) -> StepResumed:
    """Return the fact that a parked register moves again."""
    return StepResumed(step, placed.register.parent, placed.sequence)


def _ghost(moment: Moment) -> Failure:
    return Failure("ghost", f"no active step of run {moment.run!r} has this register", False)
