"""One run at a time: fold what is pending for it, compare-and-set, effects, ack.

Always in this order. The events stay un-acked until everything they ask for is true, so a
crash at any point is followed by the same work again, by any engine; each part of it notices
that it was done. Two engines on one run are normal: one loses a compare-and-set and looks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping

from treadle.engine.behind import is_behind
from treadle.engine.children import Children
from treadle.engine.core.advance import is_still
from treadle.engine.core.apply import (
    RunEvent,
    apply,
    forget_applied,
    request,
    without_definition,
)
from treadle.engine.core.facts import RunPlaced, StepParked
from treadle.engine.core.forking import Taken
from treadle.engine.core.maps import names_of
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan
from treadle.engine.core.progress import concluded, decided, to_conclude, to_decide
from treadle.engine.core.signals import APPLIED_SOFT_MAX
from treadle.engine.dead_letters import DeadLetters
from treadle.engine.definitions import Definitions
from treadle.engine.documents import Documents, Version
from treadle.engine.driver import Driver, Found
from treadle.engine.floor import AckFloor
from treadle.engine.forks import Forks, planned
from treadle.engine.inbox import Inbox
from treadle.engine.inputs import Inputs
from treadle.engine.lane_log import Lane
from treadle.engine.lanes import Lanes
from treadle.engine.pending import Pending
from treadle.engine.planned import RunPlans
from treadle.engine.registers import Registers
from treadle.engine.steps import Answer, Fact, Steps, resumed_fact
from treadle.sdk import failpoints
from treadle.sdk.definition import AgentLoopStep, ApprovalStep, Step, TypedStep
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.lanes import Place
from treadle.sdk.messages import (
    CancelRequested,
    ChildEnded,
    Ended,
    EventMatched,
    Failure,
    LaneEntered,
    LaneGranted,
    MessageSent,
    OutcomeKept,
    ParentEnded,
    Parked,
    PauseRequested,
    RecordKept,
    ResumeRequested,
    RunRequested,
    RunSuperseded,
    SignalReceived,
    StepGiven,
    TaskEvent,
    TimerFired,
)
from treadle.sdk.run import RunDocument, StepEntry
from treadle.sdk.spending import UNLIMITED
from treadle.sdk.subjects import RegisterAddress
from treadle.sdk.tracing import place as places

LATER_MS = 100
UNKNOWN_RUN_DELIVERIES = 50
"""An event whose run has no document yet is handed back this often, 100 ms apart: a start may be
on its way, or in another engine's hands. After that it is a dead letter."""

_log = logging.getLogger("treadle.engine")


class Runs:
    """Handles the pending events of runs."""

    def __init__(
        self,
        documents: Documents,
        registers: Registers,
        definitions: Definitions,
        plans: RunPlans,
        steps: Steps,
        driver: Driver,
        inputs: Inputs,
        dead_letters: DeadLetters,
        floor: AckFloor,
        lanes: Lanes,
        children: Children,
        inbox: Inbox,
        forks: Forks,
    ) -> None:
        self._documents = documents
        self._registers = registers
        self._definitions = definitions
        self._plans = plans
        self._steps = steps
        self._driver = driver
        self._inputs = inputs
        self._dead_letters = dead_letters
        self._floor = floor
        self._lanes = lanes
        self._children = children
        self._inbox = inbox
        self._forks = forks

    async def handle(self, batch: list[Pending]) -> None:
        """Handle all pending events of one run, then ack them or hand them back."""
        failpoints.reach("engine.events-taken")
        facts: list[tuple[RunEvent, Moment]] = []
        later: set[Pending] = set()
        tasks = [pending for pending in batch if isinstance(pending.event, TaskEvent)]
        for pending, answer in zip(tasks, await self._settle(tasks), strict=True):
            if answer is Answer.LATER:
                later.add(pending)
            elif answer is Answer.STALE:
                facts.extend(await self._moved_on(_address(pending), pending.moment))
            elif not isinstance(answer, Answer):
                facts.append((answer, pending.moment))
        for pending in batch:
            if not isinstance(pending.event, TaskEvent):
                facts.extend(await self._of_run_event(pending, later))
        if facts and not await self._fold_all(batch[0], facts):
            later = set(batch)
        failpoints.reach("engine.before-ack")
        for pending in batch:
            if pending in later:
                await self._later(pending)
            else:
                pending.ack()

    def place(self, run: str, batch: list[Pending]) -> places.Place:
        """Return what the log lines about these events of a run are about, as far as is known."""
        version = self._documents.known(run)
        workflow, trace = ("", "") if version is None else (version.run.workflow, version.run.trace)
        for pending in batch:
            if isinstance(pending.event, RunRequested) and not workflow:
                workflow, trace = pending.event.workflow, pending.event.trace
        place = places.Place(run, workflow, trace=trace)
        if len(batch) == 1 and isinstance(event := batch[0].event, TaskEvent):
            return place._replace(step=event.step, iteration=event.iteration, attempt=event.attempt)
        return place

    # ---------------------------------------------------------------- steps

    async def _settle(self, tasks: list[Pending]) -> list[Fact | Answer]:
        if len(tasks) == 1:
            return [await self._settle_one(tasks[0])]
        by_step: dict[str, list[int]] = {}
        for index, pending in enumerate(tasks):
            assert isinstance(pending.event, TaskEvent)
            by_step.setdefault(pending.event.step, []).append(index)
        answers: list[Fact | Answer] = [Answer.DONE] * len(tasks)

        async def in_order(indices: list[int]) -> None:
            for index in indices:
                answers[index] = await self._settle_one(tasks[index])

        await asyncio.gather(*(in_order(indices) for indices in by_step.values()))
        return answers

    async def _settle_one(self, pending: Pending) -> Fact | Answer:
        event = pending.event
        assert isinstance(event, TaskEvent)
        address = _address(pending)
        answer = await self._steps.handle(address, event, pending.moment, pending.deliveries)
        if isinstance(answer, Answer):
            return answer
        known = self._registers.known(address)
        if known is not None and isinstance(known.register, Ended):
            # The step after it usually starts at once: keep its output at hand.
            if known.register.chunk is None:
                self._inputs.outputs.put(self._registers.subject(address), known.register.output)
            self._registers.forget(address)
        return answer

    # ---------------------------------------------------------------- the run

    async def _of_run_event(
        self, pending: Pending, later: set[Pending]
    ) -> list[tuple[RunEvent, Moment]]:
        event, moment = pending.event, pending.moment
        match event:
            case RunRequested():
                self._inputs.outputs.put(moment.id, event.input)
                return [(event, moment)]
            case ChildEnded():
                self._inputs.outputs.put(moment.id, event.output)
                return [(event, moment)]
            case LaneEntered():
                return [(RunPlaced(event.request, is_queued=True), moment)]
            case (
                LaneGranted()
                | SignalReceived()
                | EventMatched()
                | CancelRequested()
                | RunSuperseded()
                | PauseRequested()
                | ParentEnded()
            ):
                return [(event, moment)]
            case OutcomeKept() | StepGiven() | RecordKept():
                return []  # The request that names it comes behind it.
            case ResumeRequested() | MessageSent():
                return await self._move_on(event, pending, later)
            case TimerFired():
                return await self._timer(event, pending, later)
            case _:
                raise AssertionError(event)

    async def _move_on(
        self, event: ResumeRequested | MessageSent, pending: Pending, later: set[Pending]
    ) -> list[tuple[RunEvent, Moment]]:
        """Move parked steps on; a step that is not parked reads its messages by itself.

        A message to an approval is for the document, which it may decide.

        A pause is over, and a budget raised, before the steps that it held are looked at: one of
        them may be held in this moment, and whoever holds it looks at the document after it.
        """
        if isinstance(event, ResumeRequested) and (not event.step or _raises_budgets(event)):
            if not await self._fold(pending.moment.run, [(event, pending.moment)], pending.domain):
                later.add(pending)
                return []
            failpoints.reach("engine.run-resumed")
        version = await self._documents.read(pending.moment.run)
        plan = await self._plan(version)
        if version is None or plan is None:
            later.add(pending)
            return []
        if isinstance(event, MessageSent):
            approval = plan.steps.get(event.step)
            if isinstance(approval, ApprovalStep):
                # Another engine may hold the one before it, and the first of them decides.
                decision = await self._inbox.decision(version.run, approval)
                return [decision] if decision else []
        facts: list[tuple[RunEvent, Moment]] = []
        for step_id, entry in version.run.steps.items():
            step = plan.steps[step_id]
            if entry.status not in ("active", "parked") or not _is_for(event, step):
                continue
            assert isinstance(step, TypedStep)
            for name in names_of(version.run, step_id):
                address = RegisterAddress(version.run.domain, version.run.run, name, step.type)
                facts += await self._moved(address, event, pending, entry)
        return facts

    async def _moved(
        self,
        address: RegisterAddress,
        event: ResumeRequested | MessageSent,
        pending: Pending,
        entry: StepEntry,
    ) -> list[tuple[RunEvent, Moment]]:
        placed = await self._registers.read(address)
        was_parked = placed is not None and isinstance(placed.register, Parked)
        if was_parked:
            await self._steps.handle(address, event, pending.moment, pending.deliveries)
            placed = await self._registers.read(address)
        if placed is None or is_still(placed.register):
            return []
        # It moves; and it may have moved on since, before anyone told the document.
        is_ours = placed.register.parent == pending.moment.id
        if was_parked or is_ours or entry.status == "parked":
            return [(resumed_fact(address.step, placed), pending.moment)]
        return []

    async def _timer(
        self, event: TimerFired, pending: Pending, later: set[Pending]
    ) -> list[tuple[RunEvent, Moment]]:
        if event.kind in ("run_deadline", "run_start") or not event.type:
            return [(event, pending.moment)]
        version = await self._documents.get(pending.moment.run)
        if version is None:
            later.add(pending)
            return []
        address = RegisterAddress(version.run.domain, version.run.run, event.step, event.type)
        answer = await self._steps.handle(address, event, pending.moment, pending.deliveries)
        if answer is Answer.LATER:
            later.add(pending)
        if answer is Answer.STALE:
            return await self._moved_on(address, pending.moment)
        return [] if isinstance(answer, Answer) else [(answer, pending.moment)]

    async def _moved_on(
        self, address: RegisterAddress, moment: Moment
    ) -> list[tuple[RunEvent, Moment]]:
        """Return the fact that a step moves which the document believes parked, if that is so.

        Whoever moved it on may have died before it said so, or whoever parked it said so late.
        """
        version = await self._documents.read(address.run)
        entry = version.run.steps.get(address.step) if version else None
        if entry is None or entry.status != "parked":
            return []
        placed = await self._registers.read(address)
        if placed is None or is_still(placed.register):
            return []
        return [(resumed_fact(address.step, placed), moment)]

    async def _fold_all(self, pending: Pending, facts: list[tuple[RunEvent, Moment]]) -> bool:
        """Fold the facts, and what was true already when the document heard of a parked step."""
        run_id, domain = pending.moment.run, pending.domain
        if not await self._fold(run_id, facts, domain):
            return False
        since: list[tuple[RunEvent, Moment]] = []
        for fact, moment in facts:
            if isinstance(fact, StepParked):
                address = await self._address_of(run_id, fact.step)
                since += await self._moved_on(address, moment) if address else []
        return not since or await self._fold(run_id, since, domain)

    async def _address_of(self, run_id: str, step_id: str) -> RegisterAddress | None:
        version = await self._documents.get(run_id)
        plan = await self._plan(version)
        if version is None or plan is None:
            return None
        step_type = plan.work(step_id).type
        return RegisterAddress(version.run.domain, run_id, step_id, step_type)

    async def _fold(self, run_id: str, facts: list[tuple[RunEvent, Moment]], domain: str) -> bool:
        """Apply the facts to the document and drive its effects; False if there is no run yet.

        Facts that driving finds are applied in their turn.
        """
        moment = facts[-1][1]
        while facts:
            found = await self._fold_once(run_id, facts, domain)
            if found is None:
                return False
            facts = [(fact, moment) for fact in found]
        return True

    async def _fold_once(
        self, run_id: str, facts: list[tuple[RunEvent, Moment]], domain: str
    ) -> list[Found] | None:
        """Apply facts and drive the effects; return what driving found, None without a run."""
        # A signal that overtook its start in the stream is applied after it, never dropped.
        facts.sort(key=lambda fact: not isinstance(fact[0], RunRequested))
        version = self._documents.known(run_id)
        if version is None and not isinstance(facts[0][0], RunRequested):
            version = await self._documents.read(run_id)
        is_fresh = False
        driven: RunDocument | None = None
        while True:
            folded, plan = await self._folded(version, facts, domain)
            if folded is None:
                return None
            if version is not None and folded is version.run:
                if is_fresh:
                    if is_behind(version.run, facts):
                        return None
                    break
                # Another engine may have written since: "it changes nothing" has to be true
                # of the document as it stands, or the event is lost.
                version, is_fresh = await self._documents.read(run_id), True
                continue
            if folded.status == "failed":
                if version is not None and not is_fresh:
                    # The letter is written before the status, so the failure must be certain.
                    version, is_fresh = await self._documents.read(run_id), True
                    continue
                await self._dead_letters.run_failed(folded)
            if version is None and folded.fork is not None and folded.fork.is_retry:
                await self._settle_letter(folded.fork.run, folded)
            await self._driver.announce(folded)
            driven = version.run if version is not None and version.is_driven else None
            stored = await self._documents.put(folded, version.revision if version else 0)
            if stored is not None:
                version = stored
                failpoints.reach("engine.document-stored")
                break
            version, is_fresh = await self._documents.read(run_id), True
        if version.is_driven:
            return []
        found = await self._driver.drive(plan, version.run, driven)
        version.is_driven = not found
        failpoints.reach("engine.effects-driven")
        return found

    async def _settle_letter(self, source: str, retry: RunDocument) -> None:
        with contextlib.suppress(StoredUnreadable):
            if (found := await self._documents.read(source)) is not None:
                await self._dead_letters.tried_again(found.run, retry)

    async def _folded(
        self, version: Version | None, facts: list[tuple[RunEvent, Moment]], domain: str
    ) -> tuple[RunDocument | None, Plan | None]:
        run = version.run if version else None
        plan = await self._plan(version)
        for event, moment in facts:
            if run is None:
                if not isinstance(event, RunRequested):
                    continue
                plan = await self._definitions.plan(event.workflow, event.definition)
                link = event.parent
                if link is not None and await self._children.is_orphaned(moment.run, link):
                    run = request(plan, event, moment, domain, is_orphaned=True)
                    continue
                lane = "" if event.is_scheduled else event.lane
                place = Place(moment.sequence, moment.run)
                ahead = await self._ahead(lane, place, event.places, domain)
                is_queued, behind = ahead is not None, ahead.run if ahead else ""
                kept: Mapping[str, Taken] = {}
                if event.fork is not None and plan is not None:
                    if not await self._forks.is_first(moment):
                        continue
                    kept = await self._forks.take_over(event.fork, moment.run, domain)
                    plan = await self._plans.of_run(
                        planned(event, event.fork, kept, moment, domain)
                    )
                run = request(
                    plan, event, moment, domain, is_queued=is_queued, behind=behind, kept=kept
                )
            elif plan is not None:
                plan = await self._plans.after(plan, run, event)
                if isinstance(event, RunPlaced):
                    place = Place(moment.sequence, moment.run, event.request)
                    ahead = await self._ahead(run.lane, place, run.places, domain)
                    behind = ahead.run if ahead else ""
                    event = RunPlaced(event.request, ahead is not None, behind)
                run = apply(plan, run, event, moment)
            else:
                run = without_definition(run, moment)
            if plan is not None and plan.has_decisions:
                run = await self._decided(plan, run, moment)
        if run is not None and len(run.applied) > APPLIED_SOFT_MAX:
            run = forget_applied(run, await self._floor.of(run.run))
        return run, plan

    async def _decided(self, plan: Plan, run: RunDocument, moment: Moment) -> RunDocument:
        """Decide the steps whose turn it is and that need it: no document is stored before."""
        while step := to_decide(plan, run):
            run = decided(plan, run, await self._inputs.decision(plan, run, step))
        if to_conclude(plan, run):
            run = concluded(plan, run, await self._inputs.misfit(plan, run), moment)
        return run

    async def _ahead(self, lane: str, place: Place, places: int, domain: str) -> Place | None:
        if not lane:
            return None
        ahead = await self._lanes.ahead(Lane.named(lane, domain), place, places)
        failpoints.reach("engine.lane-asked")
        return ahead

    async def _plan(self, version: Version | None) -> Plan | None:
        if version is None:
            return None
        return await self._plans.of_run(version.run)

    async def _later(self, pending: Pending) -> None:
        # A document that cannot be stored, in a full stream, is no run that was never requested.
        run = pending.moment.run
        if pending.deliveries < UNKNOWN_RUN_DELIVERIES or await self._floor.may_start(run):
            pending.later(LATER_MS)
            return
        failure = Failure(
            "unknown_run",
            f"run {run!r} has no document; it was never requested, or its retention has passed",
            retryable=False,
        )
        await self._dead_letters.pending("unknown_run", pending, failure)
        pending.ack()


def _address(pending: Pending) -> RegisterAddress:
    event = pending.event
    assert isinstance(event, TaskEvent)
    return RegisterAddress(pending.domain, pending.moment.run, event.step, event.type)


def _is_for(event: ResumeRequested | MessageSent, step: Step) -> bool:
    if isinstance(event, MessageSent):
        return event.step == step.id and isinstance(step, AgentLoopStep)
    return event.step in ("", step.id) and isinstance(step, TypedStep)


def _raises_budgets(event: ResumeRequested) -> bool:
    return event.add_spending != UNLIMITED or event.max_spending != UNLIMITED
