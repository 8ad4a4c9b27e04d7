"""One execution of a handler as the place in which runs of pydantic-ai are durable.

    operation ──known──> its stored result
              ──new────> [started] ── body ── completed ──> its result

The agent loop is run again from its beginning after a crash, and every operation that has a stored
result returns it. A call that must not happen twice, started and without a result, is not made.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
from pydantic_ai.durable_exec import record_durable_unit, replay_scope

from treadle.sdk import payload
from treadle.sdk.errors import HandlerError, NonRetryable
from treadle.worker.agent.pydantic_ai.records import (
    Completed,
    Decided,
    Entry,
    Key,
    Raised,
    Started,
    Story,
)
from treadle.worker.agent.tools.rendering import error_text
from treadle.worker.context import LoopContext

_decode = msgspec.json.Decoder(Entry).decode
_active: ContextVar[Scope | None] = ContextVar("treadle_pydantic_ai_scope", default=None)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call, as the model proposed it."""

    tool: str
    call_id: str
    args_hash: str


class UnfinishedTool(NonRetryable):
    """A call that must not happen twice was under way when its execution ended."""

    def __init__(self, call: Started, why: str) -> None:
        self.tool = call.tool
        self.call_id = call.call_id
        self.args_hash = call.args_hash
        super().__init__(
            f"the call {call.call_id!r} of {call.tool} {why}, and it must not happen twice. Look "
            f"whether it took effect, and answer with a message of kind 'reply': approve to make "
            "it now, answer with its result, or reject it."
        )


class Scope:
    """The journal of one execution, and how far its runs have come in it."""

    def __init__(self, ctx: LoopContext[Any], story: Story, following: int) -> None:
        self._ctx = ctx
        self._following = following
        self._counts: Counter[str] = Counter()
        self._busy: set[str] = set()
        self._writing = asyncio.Lock()
        self._runs = 0
        self.story = story

    @classmethod
    async def load(cls, ctx: LoopContext[Any]) -> Scope:
        """Read the journal of the step."""
        records = await ctx.read_records()
        return cls(ctx, Story(_decode(record.body) for record in records), len(records))

    def new_run_id(self) -> str:
        """Return an id for the next run, the same after a crash."""
        self._runs += 1
        return f"{self._ctx.run}:{self._ctx.step}:{self._runs - 1}"

    async def append(self, entry: Entry) -> None:
        """Store an entry; raise ``InvalidPayload`` if it is too large."""
        async with self._writing:
            body = payload.encode(f"record of step {self._ctx.step!r}", entry)
            await self._ctx.append_record(self._following, body)
            self._following += 1
            self.story.add(entry)

    async def perform(
        self,
        name: str,
        body: Callable[[], Awaitable[object]],
        *,
        call: Call | None = None,
        once: bool = False,
    ) -> object:
        """Return the result of the operation: the stored one, else that of ``body``, stored.

        ``once``: it must not happen twice. Raises ``UnfinishedTool`` if it may have happened, and
        ``NonRetryable`` if the run is not the one that its journal tells of.
        """
        key = Key(name, self._counts[name])
        if name in self._busy:
            raise NonRetryable(
                f"two operations {name!r} run side by side in step {self._ctx.step!r}, and after a "
                "crash they could not be told apart. Run one agent after the other, or give the "
                "agents names of their own."
            )
        self._counts[name] += 1
        if (done := self.story.completed.get(key)) is not None:
            self._check(key, done.args_hash, call)
            record_durable_unit(executed=False)
            return msgspec.json.decode(done.value)
        self._busy.add(name)
        try:
            value = await self._made(key, body, call, once=once)
        finally:
            self._busy.discard(name)
        record_durable_unit(executed=True)
        return value

    async def _made(
        self, key: Key, body: Callable[[], Awaitable[object]], call: Call | None, *, once: bool
    ) -> object:
        answered = self._answered(key, call) if once else None
        if once:
            if answered is None:
                shown = call or Call(tool=key.name, call_id="", args_hash="")
                await self.append(
                    Started(
                        name=key.name,
                        nth=key.nth,
                        tool=shown.tool,
                        call_id=shown.call_id or f"{key.name}#{key.nth}",
                        args_hash=shown.args_hash,
                    )
                )
            else:
                body = answered
        token = _active.set(None)  # What the operation does inside is part of it.
        try:
            value = await body()
        except Exception as exc:
            if once and answered is None:
                error = Raised(name=key.name, nth=key.nth, error=error_text(exc))
                await self.append(error)
            raise
        finally:
            _active.reset(token)
        raw = msgspec.Raw(payload.encode(f"result of {key.name}", value))
        hash_ = call.args_hash if call is not None else ""
        await self.append(Completed(name=key.name, nth=key.nth, value=raw, args_hash=hash_))
        return value

    def _answered(self, key: Key, call: Call | None) -> Callable[[], Awaitable[object]] | None:
        """Return what stands for a call that may have happened; ``None``: make it."""
        started = self.story.started.get(key)
        if started is None:
            return None
        self._check(key, started.args_hash, call)
        decided = self.story.decided.get(key)
        if decided is None:
            error = self.story.raised.get(key)
            why = f"has raised {error}" if error else "had begun when its worker was lost"
            raise UnfinishedTool(started, why)
        if decided.verdict == "approve":
            return None

        async def answer() -> object:
            return _told(decided)

        return answer

    def _check(self, key: Key, args_hash: str, call: Call | None) -> None:
        if call is not None and args_hash != call.args_hash:
            raise NonRetryable(
                f"operation {key.name!r} number {key.nth} of step {self._ctx.step!r} is called "
                "with other arguments than its journal says: the agent, or what it depends on, is "
                "not what it was when the run began. Start a new run."
            )


def _told(decided: Decided) -> object:
    """Return a person's words as the library stores the result of a tool."""
    if decided.verdict == "answer":
        return {"result": decided.text, "kind": "tool_return"}
    text = decided.text or "A person has rejected this call; it did not run."
    return {"message": text, "kind": "tool_failed"}


def active() -> Scope | None:
    """Return the scope that this code runs in, unless it runs inside one of its operations."""
    return _active.get()


@asynccontextmanager
async def durable(ctx: LoopContext[Any]) -> AsyncGenerator[Scope]:
    """Make the runs of agents with ``TreadleDurability`` durable, in a handler of an agent loop.

    Whatever the handler does besides must do the same after a crash. Raises ``HandlerError`` for
    the context of a task, which has no journal.
    """
    if not isinstance(ctx, LoopContext):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise HandlerError(
            f"step {ctx.step!r} is a task, and only an agent loop has a journal to run an agent "
            "durably. Define the step with agent_loop(...)."
        )
    scope = await Scope.load(ctx)
    token = _active.set(scope)
    try:
        with replay_scope():
            yield scope
    finally:
        _active.reset(token)
