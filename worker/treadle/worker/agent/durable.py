"""An agent as the handler of an agent loop: one turn of the agent is one iteration of the step.

    iteration n   load the state (memory, else fold the journal) ── one turn ── settle
                       |                                                |
                  records beside the register, under its fence     continue | complete | fail | wait

The journal is the state. A worker keeps the states of the runs it has just served, each good for
one sequence of the step; any other worker folds the records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from treadle.sdk import payload
from treadle.sdk.asks import ASKS_MAX, Reply, problems
from treadle.sdk.errors import InvalidPayload
from treadle.sdk.run import PROVIDER_BUSY
from treadle.sdk.spending import Spent
from treadle.sdk.tracing import capture
from treadle.sdk.tracing.span import NO_CONTENT
from treadle.worker.agent.core import nested
from treadle.worker.agent.core.asks import asks, next_ms
from treadle.worker.agent.core.budget import Counters
from treadle.worker.agent.core.conversation import Block, ModelError
from treadle.worker.agent.core.entries import NOTHING, Entry
from treadle.worker.agent.core.state import State, fold
from treadle.worker.agent.core.stops import OF_STEP
from treadle.worker.agent.describing import described
from treadle.worker.agent.driving import Driver, Reached
from treadle.worker.agent.events import AgentEvent, Emitter, OnEvent
from treadle.worker.agent.ledger import RunLedger
from treadle.worker.agent.models.retrying import ModelBusy
from treadle.worker.agent.narrating import Narrator
from treadle.worker.agent.oversize import oversize
from treadle.worker.agent.ports import Letter
from treadle.worker.agent.tracing import Written, parts
from treadle.worker.context import LoopContext
from treadle.worker.step_cache import StepCache
from treadle.worker.waits import DELAY_S_MAX

if TYPE_CHECKING:
    from treadle.worker.agent.agent import Agent
    from treadle.worker.agent.equipment import Equipment

STATES_MAX = 256
"""Bound on the states a worker keeps in memory, beside that on their size."""

Goal = Callable[[Any], "str | Sequence[Block]"]
"""Bounds of the step by the names that an agent has for them, where those differ."""
_BOUNDS = ("max_steps", "max_tool_calls", "max_tokens", "max_cost", "timeout")

_decode_entries = msgspec.json.Decoder(list[Entry]).decode
_encode = msgspec.json.Encoder().encode


class Desk:
    """What one iteration has before it: the state, and where its journal goes on."""

    __slots__ = (
        "_ctx",
        "_entries",
        "base",
        "earlier",
        "is_cold",
        "narrator",
        "record",
        "state",
        "written",
    )

    def __init__(
        self,
        ctx: LoopContext[Any],
        state: State,
        base: Counters,
        record: int,
        written: Sequence[Written] = (),
    ) -> None:
        self._ctx = ctx
        self.state = state
        self.written = list(written)
        """What this iteration has stored, all its attempts together."""
        self.earlier = [each.entry for each in written]
        """What earlier attempts of this iteration have stored."""
        self._entries = state.entries
        self.narrator: Narrator | None = None
        """Told of answers that come in one piece."""
        self.base = base
        """What the run had used when this iteration began, whichever attempt this is."""
        self.record = record
        """Number of the next record."""
        self.is_cold = False
        """The state was folded from the journal: this worker did not serve the turn before."""

    @property
    def is_resumed(self) -> bool:
        """True when an earlier attempt of this iteration has stored something."""
        return bool(self.earlier)

    async def append(self, entries: Sequence[Entry]) -> None:
        """Store the entries as one record.

        Raises ``InvalidPayload``, which fails the step for good, if the server takes none so large.
        """
        try:
            await self._ctx.append_record(self.record, _encode(list(entries)))
        except InvalidPayload as exc:
            raise oversize(entries, self._ctx.step, exc) from exc
        self.record += 1
        for entry in entries:
            self.written.append(Written(self._entries, entry, self._ctx.attempt))
            self._entries += 1
        if self.narrator is not None:
            self.narrator.answered(entries)

    async def take(self, after: int) -> Sequence[Letter]:
        """Return the messages to the step after that sequence."""
        return [
            _letter(message.sequence, message.kind, message.payload)
            for message in await self._ctx.messages(after)
        ]


class Beginning(NamedTuple):
    """How a conversation begins."""

    goal: str | Sequence[Block]
    phase: str = ""
    carried: msgspec.Raw = NOTHING
    trace_id: str = ""


class AgentHandler:
    """The handler of an agent-loop step that an agent serves."""

    def __init__(
        self,
        agent: Agent[Any],
        *,
        deps: Any = None,
        goal: Goal | None = None,
        on_event: Callable[[LoopContext[Any]], OnEvent | None] | None = None,
    ) -> None:
        self._agent = agent
        self._deps = deps
        self._goal = goal or goal_of
        self._on_event = on_event
        self._warm = StepCache[tuple[State, int]](STATES_MAX)
        """State and number of the next record."""

    def prepare(self) -> None:
        """Import the model's SDK before a task comes: that takes seconds of a busy core.

        What is wrong with the agent is said by the iteration that needs it.
        """
        with contextlib.suppress(Exception):
            self._agent.equipment()

    async def close(self) -> None:
        """End the connections to MCP servers, when the worker stops."""
        await self._agent.disconnect()

    async def __call__(self, ctx: LoopContext[Any]) -> Any:
        """Drive one turn of the run and give the verdict it comes to."""
        desk = await self._desk(ctx)
        agent, beginning = self.conversation(ctx, desk)
        deps = self._deps(ctx) if callable(self._deps) else self._deps
        equipment = await agent.prepared(
            deps=deps,
            run=ctx.run,
            step=ctx.step,
            heartbeat=ctx.heartbeat,
            cancelled=ctx.cancelled,
            shared=ctx.shared,
            address=ctx.address,
            after_loss=ctx.losses > 0,
        )
        narrator = Narrator(ctx.say)
        if desk.earlier:
            narrator.restate(desk.earlier, desk.state.turn)
        if not equipment.stream:
            desk.narrator = narrator
        told = self._on_event(ctx) if self._on_event else None
        emitter = Emitter(_both(narrator, told), ctx.now_ms)
        driver = Driver(
            equipment,
            RunLedger(desk.state, desk),
            desk,
            emitter,
            ctx.now_ms,
            limit=OF_STEP.get(ctx.wrap_up, ctx.wrap_up),
            iteration=ctx.iteration,
            is_retried=True,
        )
        self._warm.drop(ctx.run, ctx.step)
        if beginning is not None:
            goal, phase, carried, trace_id = beginning
            await driver.open(
                agent.opened(
                    goal,
                    ctx.now_ms(),
                    trace_id,
                    phase=phase,
                    carried=carried,
                    versions=equipment.spec.versions,
                )
            )
        else:
            if desk.is_cold:
                driver.resumed()
            await driver.drifted()
        try:
            reached = await self._turn(ctx, driver)
        except ModelBusy as exc:
            self._note(ctx, desk, driver.state, equipment)
            # A provider may say anything, and a year is the longest wait that is no mistake.
            after_s = min(exc.retry_after_s, DELAY_S_MAX)
            until = datetime.fromtimestamp(ctx.now_ms() / 1000 + after_s, UTC)
            return ctx.wait(
                f"{PROVIDER_BUSY}: {exc.fault.message}", until=until, counts=False, line=exc.line
            )
        except ModelError:
            self._note(ctx, desk, driver.state, equipment)
            raise
        self._note(ctx, desk, driver.state, equipment)
        state = reached.state
        size_bytes = 4 * (nested.context_tokens(state) + state.used.usage.output_tokens)
        size_bytes += state.kept_bytes + 2_000
        self._warm.put(ctx.run, ctx.step, ctx.newest_record, (state, desk.record), size_bytes)
        return self.verdict(ctx, reached)

    def conversation(
        self, ctx: LoopContext[Any], desk: Desk
    ) -> tuple[Agent[Any], Beginning | None]:
        """Return the agent whose turn it is, and how its conversation begins, if it is to begin.

        A step that holds one conversation after another overrides this, and ``verdict``.
        """
        return self._agent, None if desk.state.entries else Beginning(self._goal(ctx.input))

    async def _turn(self, ctx: LoopContext[Any], driver: Driver) -> Reached:
        state = driver.state
        if state.stopped is None and state.ended_iteration == ctx.iteration:
            # The worker died between the end of the turn, or of the round, and its settle.
            return Reached("turn", state)
        return await driver.turn()

    async def _desk(self, ctx: LoopContext[Any]) -> Desk:
        warm = self._warm.get(ctx.run, ctx.step, ctx.newest_record)
        if warm is not None and ctx.attempt == 1:
            state, following = warm
            return Desk(ctx, state, state.total, following)
        state = State()
        base: Counters | None = Counters()
        written: list[Written] = []
        records = await ctx.read_records()
        for record in records:
            if record.iteration < ctx.iteration:
                base = None
            elif base is None:
                base = state.total
            entries = _decode_entries(record.body)
            if record.iteration == ctx.iteration:
                places = enumerate(entries, state.entries)
                written += (Written(at, entry, record.attempt) for at, entry in places)
            state = fold(state, entries)
        base = state.total if base is None else base
        desk = Desk(ctx, state, base, len(records), written)
        desk.is_cold = True
        return desk

    # ---------------------------------------------------------------- settle

    def verdict(self, ctx: LoopContext[Any], reached: Reached) -> Any:
        """Return the verdict about the iteration."""
        state = reached.state
        if reached.where == "turn":
            return ctx.continue_({"turn": state.turn})
        if reached.where == "waiting":
            return _waiting(ctx, state)
        stop = state.stopped
        assert stop is not None
        if stop.reason == "needs_human":
            return ctx.wait(stop.detail or "the agent needs a person's direction")
        has_output = bytes(stop.output) != b"null"
        if stop.reason == "completed" or (stop.reason in _BOUNDS and has_output):
            return ctx.complete(stop.output if has_output else stop.text)
        return ctx.fail(
            f"the agent stopped: {stop.detail or stop.reason}", retryable=False, type=stop.reason
        )

    def _note(self, ctx: LoopContext[Any], desk: Desk, state: State, equipment: Equipment) -> None:
        """Tell the engine what the iteration has used; a repeated telling counts once."""
        used = state.total - desk.base
        usage = used.usage
        ctx.report_spent(
            Spent(
                tool_calls=used.tool_calls,
                input_tokens=usage.input_tokens
                + usage.cache_read_tokens
                + usage.cache_write_tokens,
                output_tokens=usage.output_tokens,
                cost_micro_usd=used.cost_micro_usd,
            )
        )
        ctx.report_parts(
            parts(
                desk.written,
                attempt=ctx.attempt,
                model=equipment.spec.model,
                provider=equipment.model.provider,
                agents=equipment.subagents,
            ),
            described(desk.state, desk.written, equipment) if capture.is_on() else NO_CONTENT,
        )


def _both(narrator: Narrator, told: OnEvent | None) -> OnEvent:
    if told is None:
        return narrator

    def tell(event: AgentEvent) -> None:
        narrator(event)
        told(event)

    return tell


def _waiting(ctx: LoopContext[Any], state: State) -> Any:
    """Wait for people, until something happens without them; the rest is asked about later."""
    asking, calls = nested.asking(state), nested.waiting(state)
    # An id that no client could name does not make the run fail.
    asked = [each for each in asks(asking, calls) if not problems([each])]
    due_ms = next_ms(asking)
    names = ", ".join(sorted({call.name for call in calls}))
    until = datetime.fromtimestamp(due_ms / 1000, UTC) if due_ms else None
    reason = f"a person has to decide about {names}"
    return ctx.wait(reason, until=until, asks=asked[:ASKS_MAX])


def goal_of(given: Any) -> str | Sequence[Block]:
    """Return the goal that a step's input stands for: a text as it is, else its JSON."""
    if isinstance(given, str):
        return given
    return msgspec.json.format(payload.encode("input of the agent", given), indent=2).decode()


def _letter(sequence: int, kind: str, raw: Any) -> Letter:
    value = msgspec.json.decode(raw)
    if kind == "reply":
        try:
            return Letter(sequence=sequence, kind="reply", reply=msgspec.convert(value, Reply))
        except msgspec.ValidationError as exc:
            named = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
            about = str(named.get("call_id", ""))
            return Letter(sequence=sequence, kind="reply", text=str(exc), about=about)
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    is_follow_up = kind == "follow_up"
    return Letter(sequence=sequence, kind="follow_up" if is_follow_up else "steer", text=text)
