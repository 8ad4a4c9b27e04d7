"""The driver: performs what ``decide`` asks for, appends what came of it, and asks again.

    state --decide--> action --perform--> entries --append--> journal
      ^------------------- apply -------------------------------'

One turn is one model call and its batch of tools. Between turns the driver listens: what people
have said is heard before the next model call, and a run does not end over unheard words. A
sub-agent is driven by a driver of its own, which writes to the same ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, assert_never

import msgspec

from treadle.sdk.errors import clause
from treadle.worker.agent import asking, compacting, model_turn, nesting, tool_turn
from treadle.worker.agent import hooks as hooking
from treadle.worker.agent.core import compaction, nested
from treadle.worker.agent.core import decide as deciding
from treadle.worker.agent.core.budget import calls_left, reached, time_left_ms
from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.conversation import ModelFault, Usage
from treadle.worker.agent.core.entries import (
    Checked,
    Entry,
    Heard,
    Judged,
    Opened,
    Stopped,
    Switched,
    TurnEnded,
)
from treadle.worker.agent.core.request import retired
from treadle.worker.agent.core.state import State, fold
from treadle.worker.agent.core.stops import StopReason
from treadle.worker.agent.core.telling import overrun_text
from treadle.worker.agent.events import Emitter, tell_stop
from treadle.worker.agent.ledger import Ledger, NestedLedger
from treadle.worker.agent.letters import Letters, NestedInbox, newest
from treadle.worker.agent.ports import Clock, Inbox, Letter, LetterKind
from treadle.worker.agent.tools.canonical import well_formed

if TYPE_CHECKING:
    from treadle.worker.agent.equipment import Equipment

Where = Literal["turn", "stopped", "waiting"]


class Reached(NamedTuple):
    """Where a drive has come to.

    ``turn``     a turn has ended, and the run goes on
    ``stopped``  the run is over: ``state.stopped`` says why
    ``waiting``  people have to answer first
    """

    where: Where
    state: State


class Driver:
    """Drives one run, from wherever its journal has left off."""

    def __init__(
        self,
        equipment: Equipment,
        ledger: Ledger,
        inbox: Inbox,
        emitter: Emitter,
        clock: Clock,
        *,
        limit: str = "",
        iteration: int = -1,
        is_retried: bool = False,
        outer: Driver | None = None,
        quota: int | None = None,
    ) -> None:
        """Make a driver.

        ``is_retried`` says that whoever drives it makes a failed model call again later.
        ``outer`` drives the agent whose sub-agent this is. ``quota`` is how many model calls the
        next turn may make in sub-agents; ``None`` is any number.
        """
        self._equipment = equipment
        self._ledger = ledger
        self._emitter = emitter
        self._clock = clock
        self._limit = limit
        self._outer = outer
        self._quota = quota
        self.iteration = iteration
        self.is_retried = is_retried
        state = ledger.state
        self._interrupted: frozenset[str] = frozenset(
            id for id in state.started if id not in state.results
        )
        """Calls that were running when an earlier driver of this run ended."""
        self._letters = Letters(inbox, state.seen)
        self._heard_hooks_at = -1

    @property
    def state(self) -> State:
        """What has happened so far."""
        return self._ledger.state

    @property
    def root(self) -> Driver:
        """The driver of the agent that all others work for."""
        return self if self._outer is None else self._outer.root

    # ---------------------------------------------------------------- drive

    async def open(self, opened: Opened) -> None:
        """Begin the run, or the next conversation of its step."""
        await self.append(opened)
        self._emitter.emit("agent_run.started", **({"phase": opened.phase} if opened.phase else {}))

    def resumed(self) -> None:
        """Tell that this driver goes on from stored entries."""
        self._emitter.turn = self.state.turn
        names = [self.state.started[id].name for id in sorted(self._interrupted)]
        self._emitter.emit("agent_run.resumed", entries=self.state.entries, interrupted=names)

    async def follow_up(self, text: str) -> None:
        """Go on with a run that has stopped, or was interrupted between turns."""
        await self._said("follow_up", [text], 0)

    async def drifted(self) -> bool:
        """Stop for a person if the agent is another than the one that began the run.

        Return whether it stopped; a person who was told of this very change decides by going on.
        """
        versions, stopped = self._equipment.spec.versions, self.state.stopped
        drift = versions.drift(self.state.versions)
        if not drift or (stopped is not None and stopped.drifted == versions):
            return False
        detail = (
            f"the agent's {' and '.join(drift)} changed since this run began, and what it was told "
            "may not hold any more. Send a message to go on with the agent as it is now, or "
            "cancel the run"
        )
        await self._close(
            Stopped(
                at_ms=self._clock(),
                reason="needs_human",
                text=self.state.text,
                detail=detail,
                drifted=versions,
                retired=retired(self._equipment.spec, self.state),
            )
        )
        self._emitter.emit("agent_run.resume_unsafe", drift=list(drift))
        return True

    async def stop(
        self, reason: StopReason, detail: str, fault: ModelFault | None = None
    ) -> Reached:
        """End the run from outside: every open call of the conversation gets an answer."""
        if reason not in ("cancelled", "timeout"):  # Those do not wait for anything any more.
            await self.look()
        stopped = Stopped(
            at_ms=self._clock(),
            reason=reason,
            text=self.state.text,
            detail=self._with_unheard(detail),
            # Its usage was counted when the call failed.
            fault=None if fault is None else msgspec.structs.replace(fault, usage=Usage()),
        )
        await self._close(stopped)
        await self.ended(stopped)
        return Reached("stopped", self.state)

    async def _close(self, stopped: Stopped) -> None:
        """End the run, its sub-agents first, in one piece."""
        before = self.state
        entries = nested.closing(
            self._equipment.spec, before, stopped.reason, stopped.detail, stopped.at_ms
        )
        await self.append(*entries, stopped)
        await nesting.tell_ends(self._equipment, self, before, entries)

    async def ended(self, stopped: Stopped) -> None:
        """Tell everybody that the run is over, whatever ended it."""
        tell_stop(self._emitter, stopped)
        if (on_stop := self._equipment.hooks.on_stop) is not None:
            await hooking.call(on_stop, stopped)

    async def turn(self) -> Reached:
        """Drive until a turn has ended, the run is over, or people have to answer.

        Raises ``ModelError`` and ``ModelBusy`` for a call that may succeed later: the state is
        as before it, and driving on makes the call again. At the end of ``max_duration`` the run
        stops, whatever it is doing.
        """
        limit = asyncio.timeout(None)
        try:
            async with limit:
                return await self._turn(limit)
        except TimeoutError:
            if not limit.expired():
                raise
        return await self._overrun()

    async def _overrun(self) -> Reached:
        return await self.stop("timeout", overrun_text(self._equipment.spec.budget))

    def _left_s(self) -> float | None:
        """Return the time until the hard limit; ``None`` without one, and while people decide."""
        state = self.state
        if state.stopped is not None or state.asking:
            return None
        left_ms = time_left_ms(self._equipment.spec.budget, state.elapsed_ms(self._clock()))
        return None if left_ms is None else left_ms / 1000

    def cut(self, limit: asyncio.Timeout, left_s: float) -> None:
        """Let the turn be cut off after so many seconds."""
        limit.reschedule(asyncio.get_running_loop().time() + max(0.0, left_s))

    async def _turn(self, limit: asyncio.Timeout) -> Reached:
        if (left_s := self._left_s()) is not None and left_s <= 0:
            return await self._overrun()
        while True:
            if limit.when() is None and (left_s := self._left_s()) is not None:
                self.cut(limit, left_s)
            self._emitter.turn = self.state.turn
            action = deciding.decide(self._equipment.spec, self.state, self._clock(), self._limit)
            match action:
                case deciding.Finish():
                    stop = self.state.stopped
                    assert stop is not None
                    if await self._reopened(stop, by_hook=False):
                        return Reached("turn", self.state)
                    await self.flush()
                    return Reached("stopped", self.state)
                case deciding.CallModel():
                    if not await self._hear():
                        await model_turn.call_model(self._equipment, self, action)
                case deciding.Judge():
                    calls = await self._equipment.judge(self.state, action.uses)
                    # At once, so that sub-agents side by side cannot both take the last call.
                    shared = self._outer.calls_left() if self._outer is not None else None
                    calls = deciding.limit_calls(self._equipment.spec, self.state, calls, shared)
                    await self.append(Judged(at_ms=self._clock(), calls=calls))
                    self._emit_judged(calls)
                case deciding.Run():
                    answered = filter(self.state.has_reply, self._interrupted)
                    interrupted = self._interrupted.difference(answered)
                    await tool_turn.run_calls(self._equipment, self, action.calls, interrupted)
                    self._interrupted = frozenset[str]()
                case deciding.Advance():
                    where = await nesting.advance(self._equipment, self, action)
                    if where is not None and not (where == "turn" and self._limit):
                        return Reached(where, self.state)
                case deciding.Ask():
                    if not await asking.ask(self._equipment, self, action.calls):
                        return Reached("waiting", self.state)
                case deciding.Check():
                    await self._check(action)
                case deciding.Compact():
                    await compacting.compact(self._equipment, self, action)
                case deciding.Record():
                    # At a bound from outside there is no later turn for the last answer.
                    if await self._record(action.entries) and not self._limit:
                        return Reached("turn", self.state)
                case _:
                    assert_never(action)

    async def _record(self, entries: Sequence[Entry]) -> bool:
        """Append what follows from the state; return whether a turn has ended with it."""
        stop = next((entry for entry in entries if isinstance(entry, Stopped)), None)
        if stop is not None:
            if await self._reopened(stop, by_hook=True):
                return True
            await self.look()
            told = msgspec.structs.replace(stop, detail=self._with_unheard(stop.detail))
            entries = [told if entry is stop else entry for entry in entries]
            stop = told
        ended = next((entry for entry in entries if isinstance(entry, TurnEnded)), None)
        if ended is None:
            before = self.state
            await self.append(*entries)
            await nesting.tell_ends(self._equipment, self, before, entries)
            if stop is not None:
                if stop.detail == compaction.ASK_TEXT:
                    self._emitter.emit("agent.recovery.fired", stage="ask")
                await self.ended(stop)
            for entry in entries:
                if isinstance(entry, Heard) and entry.limit:
                    self._emitter.emit("agent.exhaustion.soft", limit=entry.limit)
            return False
        # In one piece: what the hooks decided about a turn is not asked for again.
        decided = await self._after_turn(fold(self.state, map(self._placed, entries)))
        await self.append(*entries, *decided)
        if (found := ended.detection) is not None:
            fields = {"tier": found.tier, "tool": found.tool, "level": found.level}
            self._emitter.emit("agent.loop.detected", **fields)
            if found.level > 1:
                self._emitter.emit("agent.guardrail.escalated", **fields)
        self._emitter.emit("agent.turn.ended", used=msgspec.to_builtins(self.state.used))
        for entry in decided:
            if isinstance(entry, Stopped):
                await self.ended(entry)
        return True

    async def _after_turn(self, after: State) -> list[Entry]:
        """Return what the hooks decide about a turn that has come to this state."""
        decided: list[Entry] = []
        hooks = self._equipment.hooks
        if hooks.prepare_next_turn is not None:
            following = await hooking.call(hooks.prepare_next_turn, after)
            if following is not None:
                self._equipment.check_model(following.model)
                model, thinking = following.model, following.thinking
                decided.append(Switched(at_ms=self._clock(), model=model, thinking=thinking))
        should_stop = hooks.should_stop_after_turn
        if should_stop is not None and await hooking.call(should_stop, after):
            detail = "should_stop_after_turn ended the run"
            decided.append(
                Stopped(at_ms=self._clock(), reason="completed", text=after.text, detail=detail)
            )
        return decided

    # ---------------------------------------------------------------- people

    async def _hear(self) -> bool:
        """Take what was said since; return whether the model has to hear something new."""
        if self.state.watch.streaks.is_paused:
            return False  # The answer goes on first: nothing may stand between.
        steering = await self.take("steer")
        texts = [letter.text for letter in steering]
        hooks = self._equipment.hooks
        if hooks.get_steering_messages is not None and self._heard_hooks_at != self.state.turn:
            self._heard_hooks_at = self.state.turn
            texts += await hooking.call(hooks.get_steering_messages)
        if not texts:
            return False
        await self._said("steering", texts, newest(steering))
        return True

    async def _reopened(self, stop: Stopped, *, by_hook: bool) -> bool:
        """Go on instead of ending, if there is something to be heard first."""
        if stop.reason not in ("completed", "needs_human"):
            return False
        if stop.reason == "completed" and self._has_no_turn_left():
            return False  # A result that was accepted is not given up for a turn there is not.
        steering = await self.take("steer")
        follow_ups = await self.take("follow_up")
        hooks = self._equipment.hooks
        texts = [letter.text for letter in follow_ups]
        if (
            not steering
            and not texts
            and by_hook
            and stop.reason == "completed"
            and hooks.get_followup_messages is not None
        ):
            texts = await hooking.call(hooks.get_followup_messages)
        if not steering and not texts:
            return False
        # In one piece: a turn that has ended with nothing to be heard next could not go on.
        entries: list[Entry] = [TurnEnded(at_ms=self._clock())] if self.state.is_turn_open else []
        if steering:
            entries.append(self._heard("steering", [s.text for s in steering], newest(steering)))
        if texts:
            entries.append(self._heard("follow_up", texts, newest(follow_ups)))
        await self.append(*entries)
        await self.flush()
        self._emitter.emit("agent_run.reopened", messages=len(steering) + len(texts))
        return True

    def _has_no_turn_left(self) -> bool:
        spec, state = self._equipment.spec, self.state
        if spec.on_limit != "fail":
            return False  # There is a last answer yet.
        return reached(spec.budget, state.used, state.elapsed_ms(self._clock())) is not None

    def _with_unheard(self, detail: str) -> str:
        """Return why the run stops, and how many messages it leaves unheard."""
        if not (count := self._letters.unheard):
            return detail
        what = "1 message to it was" if count == 1 else f"{count} messages to it were"
        return f"{clause(detail)}. {what} not heard" if detail else f"{what} not heard"

    async def take(self, kind: LetterKind) -> list[Letter]:
        """Take all of a kind that has arrived and was not heard yet."""
        return await self._letters.take(kind, self.state.seen)

    async def look(self) -> None:
        """See what has arrived, and leave it for those who take it."""
        await self._letters.look(self.state.seen)

    @property
    def is_steered(self) -> bool:
        """True while words lie there that the model has to hear first."""
        return self._letters.has_steering

    async def _said(
        self, source: Literal["steering", "follow_up"], texts: Sequence[str], seen: int
    ) -> None:
        await self.append(self._heard(source, texts, seen))
        self._emitter.emit("agent.message.heard", source=source, messages=len(texts))

    def _heard(
        self, source: Literal["steering", "follow_up"], texts: Sequence[str], seen: int
    ) -> Heard:
        content = [{"type": "text", "text": _framed(source, text)} for text in texts]
        return Heard(at_ms=self._clock(), source=source, content=content, seen=seen)

    # ---------------------------------------------------------------- results

    async def _check(self, action: deciding.Check) -> None:
        proposed: Any = action.text if action.call is None else action.call.input
        problem, output = await self._equipment.output.check(proposed, self.state)
        await self.append(Checked(at_ms=self._clock(), problem=problem, output=output))

    # ---------------------------------------------------------------- sub-agents

    def child(self, call: ToolCall, quota: int) -> Driver:
        """Return the driver of the sub-agent that a call of the open turn runs."""
        return Driver(
            self._equipment.subagents[call.name].equipped(self._equipment, call),
            NestedLedger(self._ledger, call.id),
            NestedInbox(self._letters, call.id),
            self._emitter.nested(call.id),
            self._clock,
            iteration=self.iteration,
            is_retried=self.is_retried,
            outer=self,
            quota=quota,
        )

    def calls_left(self) -> int | None:
        """Return how many more tool calls may run beside those under way; ``None``: any number."""
        own = calls_left(self._equipment.spec.budget, self.state.used, nested.pending(self.state))
        outer = self._outer.calls_left() if self._outer is not None else None
        return min((left for left in (own, outer) if left is not None), default=None)

    def steps_left(self) -> int:
        """Return how many model calls the sub-agents may make in this turn."""
        left = self._equipment.spec.budget.max_steps - self.state.used.steps
        return left if self._quota is None else min(left, self._quota)

    @property
    def read_to(self) -> int:
        """Position in the inbox up to which all was read."""
        return self._letters.read_to

    # ---------------------------------------------------------------- entries

    async def append(self, *entries: Entry) -> None:
        """Apply the entries; store them if one of them has to be, with those that wait."""
        await self._ledger.append([self._placed(entry) for entry in entries])

    def _placed(self, entry: Entry) -> Entry:
        if isinstance(entry, TurnEnded):
            return msgspec.structs.replace(entry, iteration=self.iteration)
        return entry

    async def flush(self) -> None:
        """Store what waits."""
        await self._ledger.flush()

    @property
    def emitter(self) -> Emitter:
        """Where events go."""
        return self._emitter

    def now_ms(self) -> int:
        """Return the time of the run's clock."""
        return self._clock()

    def _emit_judged(self, calls: tuple[ToolCall, ...]) -> None:
        for call in calls:
            self._emitter.emit(
                "agent.call.judged", tool=call.name, id=call.id, decision=call.decision
            )


def _framed(source: str, text: str) -> str:
    text = well_formed(text)
    if source == "follow_up":
        return text
    return f"A person says, as guidance for the work under way and not as a new task:\n{text}"
