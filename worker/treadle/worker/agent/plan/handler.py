"""The handler of a step that holds the conversations of a plan's phases, one after another.

Each conversation begins with a record of its own in the step's journal, which carries the brief.
What follows is worked out from the newest conversation alone (``phases.py``), so it is the same
for any worker, after any crash.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.sdk import payload
from treadle.sdk.errors import NonRetryable
from treadle.worker.agent.core.state import State
from treadle.worker.agent.driving import Reached
from treadle.worker.agent.durable import AgentHandler, Beginning, Desk
from treadle.worker.agent.events import OnEvent
from treadle.worker.agent.plan import phases
from treadle.worker.agent.plan.phases import Begin, Brief, End, Gate, Phase, Unfinished
from treadle.worker.agent.plan.prompts import Prompts
from treadle.worker.context import LoopContext

if TYPE_CHECKING:
    from treadle.worker.agent.agent import Agent

_decode_brief = msgspec.json.Decoder(Brief).decode


class PhaseHandler(AgentHandler):
    """Serves one step of a plan: the first of its phases begins, the others follow."""

    def __init__(
        self,
        agents: Mapping[Phase, Agent[Any]],
        prompts: Prompts,
        gate: Gate,
        brief: Callable[[Any], Brief],
        *,
        deps: Any = None,
        on_event: Callable[[LoopContext[Any]], OnEvent | None] | None = None,
    ) -> None:
        """Serve with these agents; ``brief`` makes what the first phase gets of the input."""
        self._first: Phase = next(iter(agents))
        super().__init__(agents[self._first], deps=deps, on_event=on_event)
        self._agents = agents
        self._prompts = prompts
        self._gate = gate
        self._brief = brief

    def prepare(self) -> None:
        """Import what the models of all phases need, before a task comes."""
        for agent in self._agents.values():
            with contextlib.suppress(Exception):
                agent.equipment()

    async def close(self) -> None:
        """End the connections to MCP servers of all phases."""
        for agent in self._agents.values():
            await agent.disconnect()

    def conversation(
        self, ctx: LoopContext[Any], desk: Desk
    ) -> tuple[Agent[Any], Beginning | None]:
        """Return whose turn it is: a conversation begins in an iteration of its own."""
        state = desk.state
        if not state.entries:
            return self._begin(Begin(self._first, self._brief(ctx.input)))
        agent = self._agents[self._phase(ctx, state)]
        if not desk.is_resumed and not ctx.wrap_up:
            match self._following(ctx, state):
                case Begin() as begin:
                    return self._begin(begin, state.trace_id)
                case _:
                    pass
        return agent, None

    def verdict(self, ctx: LoopContext[Any], reached: Reached) -> Any:
        """Return the verdict about the iteration: a stop may only be the end of a phase."""
        match self._following(ctx, reached.state):
            case None:
                return super().verdict(ctx, reached)
            case Begin(phase, brief):
                return ctx.continue_({"phase": phase, "reviews": brief.reviews})
            case End(output):
                return ctx.complete(output)
            case Unfinished(message):
                return ctx.fail(message, retryable=False, type=phases.NEEDS_FIX)

    def _following(self, ctx: LoopContext[Any], state: State) -> phases.Following | None:
        if state.stopped is None:
            return None
        phase, brief = self._phase(ctx, state), _decode_brief(state.carried)
        return phases.following(phase, brief, state.stopped, self._gate, ctx.wrap_up)

    def _begin(self, begin: Begin, trace_id: str = "") -> tuple[Agent[Any], Beginning]:
        phase, brief = begin
        goal = phases.goal(phase, brief, self._prompts)
        carried = msgspec.Raw(msgspec.json.encode(brief))
        return self._agents[phase], Beginning(goal, phase, carried, trace_id)

    def _phase(self, ctx: LoopContext[Any], state: State) -> Phase:
        for phase in self._agents:
            if phase == state.phase:
                return phase
        raise NonRetryable(
            f"the journal of step {ctx.step!r} is of phase {state.phase!r}, and this handler has "
            f"{', '.join(self._agents)}: another handler has begun the run. Register the one that "
            "it was begun with, or start the run anew."
        )


def first_brief(text_of: Callable[[Any], Any]) -> Callable[[Any], Brief]:
    """Return what makes a run's input the brief of its first phase."""

    def brief(given: Any) -> Brief:
        request = text_of(given)
        if not isinstance(request, str):
            raise NonRetryable(
                f"the request is a {type(request).__name__}, and a plan begins with a text. Return "
                "one from request=."
            )
        size_bytes = len(request.encode("utf-8", "replace"))
        if not request.strip() or size_bytes > phases.REQUEST_BYTES_MAX:
            raise NonRetryable(
                f"the request has {size_bytes} bytes; it needs some text, and at most "
                f"{phases.REQUEST_BYTES_MAX} bytes, because each phase is shown it whole. Put what "
                "is longer where the tools of the agents can read it."
            )
        return Brief(request=request)

    return brief


def carried_brief(given: Any) -> Brief:
    """Return the brief that the step before has left."""
    brief: Brief = payload.decode("input of the phase", msgspec.json.encode(given), Brief)
    return brief
