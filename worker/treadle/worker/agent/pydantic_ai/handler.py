"""An agent of pydantic-ai as the handler of an agent loop. One run of it is one iteration.

There is a second iteration only if a call has to be decided about: the step waits for a person,
and the next iteration goes on with the decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from pydantic_ai.agent import AbstractAgent

from treadle.sdk import payload
from treadle.sdk.asks import ASKS_MAX, Ask, Reply, problems
from treadle.sdk.errors import InvalidPayload, UserError
from treadle.worker.agent.pydantic_ai.capability import TreadleDurability
from treadle.worker.agent.pydantic_ai.records import Decided, Finished, Opened
from treadle.worker.agent.pydantic_ai.scope import Scope, UnfinishedTool, durable
from treadle.worker.context import LoopContext

_log = logging.getLogger("treadle.agent")


def serve(
    agent: AbstractAgent[Any, Any],
    *,
    deps: Any = None,
    prompt: Callable[[Any], Any] | None = None,
) -> PydanticHandler:
    """Return a handler that runs the agent durably: ``worker.handler(type)(serve(agent))``.

    ``prompt`` makes the user prompt of the step's input (default: a text as it is, else its
    JSON). ``deps`` is what the run gets, or a function of the context that returns it; it is made
    anew after a crash. Raises ``UserError`` if the agent has no ``TreadleDurability``.
    """
    if TreadleDurability.from_agent(agent) is None:
        raise UserError(
            f"agent {agent.name!r} has no TreadleDurability, so its runs would not be stored. Make "
            "it with Agent(..., capabilities=[TreadleDurability()])."
        )
    return PydanticHandler(agent, deps, prompt or _prompt_of)


class PydanticHandler:
    """Runs one agent, as often as it takes until it has an output."""

    def __init__(
        self, agent: AbstractAgent[Any, Any], deps: Any, prompt: Callable[[Any], Any]
    ) -> None:
        self._agent = agent
        self._deps = deps
        self._prompt = prompt

    async def __call__(self, ctx: LoopContext[Any]) -> Any:
        """Run the agent, from wherever its journal has left off."""
        async with durable(ctx) as scope:
            story = scope.story
            if story.finished is not None:
                return ctx.complete(story.finished.output)
            if story.opened is None:
                prompt = msgspec.Raw(payload.encode("prompt of the agent", self._prompt(ctx.input)))
                await scope.append(Opened(agent=self._agent.name or "", prompt=prompt))
            elif story.unfinished:
                await self._hear(ctx, scope)
            assert story.opened is not None
            deps = self._deps(ctx) if callable(self._deps) else self._deps
            try:
                result = await self._agent.run(msgspec.json.decode(story.opened.prompt), deps=deps)
            except UnfinishedTool as exc:
                return ctx.wait(str(exc), asks=_asks(scope, str(exc)))
            output = payload.encode(f"output of step {ctx.step!r}", result.output)
            await scope.append(Finished(output=msgspec.Raw(output)))
        return ctx.complete(msgspec.Raw(output))

    async def _hear(self, ctx: LoopContext[Any], scope: Scope) -> None:
        """Take what people have decided about calls that may have happened."""
        for message in await ctx.messages():
            if message.sequence <= scope.story.heard:
                continue
            try:
                reply = message.decode(Reply) if message.kind == "reply" else None
            except InvalidPayload as exc:
                _log.warning(
                    "agent.reply-unreadable run=%s message=%s: %s", ctx.run, message.id, exc
                )
                continue
            for key, call in scope.story.unfinished.items():
                if reply is None or reply.call_id != call.call_id:
                    continue
                if reply.verdict == "approve" and reply.args_hash not in ("", call.args_hash):
                    continue  # Of other arguments than these.
                if reply.input is not None:
                    continue  # Nothing but what may have happened can happen now.
                decided = Decided(
                    name=key.name,
                    nth=key.nth,
                    sequence=message.sequence,
                    verdict=reply.verdict,
                    text=reply.text,
                    by=reply.by,
                )
                await scope.append(decided)
                break
            else:
                _log.warning(
                    "agent.message-ignored run=%s message=%s kind=%s: a run of pydantic-ai hears "
                    "replies to calls that may have happened, and nothing else",
                    ctx.run,
                    message.id,
                    message.kind,
                )


def _asks(scope: Scope, why: str) -> list[Ask]:
    """Return what people are asked about calls that may have happened."""
    story = scope.story
    found = {
        call.call_id: Ask(
            id=call.call_id,
            kind="unsafe",
            tool=call.tool,
            text=story.raised.get(key, why),
            args_hash=call.args_hash,
            after=story.heard,
        )
        for key, call in story.unfinished.items()
    }
    # An id that no client could name does not make the run fail.
    return [ask for ask in found.values() if not problems([ask])][:ASKS_MAX]


def _prompt_of(given: Any) -> str:
    if isinstance(given, str):
        return given
    return msgspec.json.format(payload.encode("input of the agent", given), indent=2).decode()
