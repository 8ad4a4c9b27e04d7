"""An agent: a model, what it may do, and the bounds it does it in.

    investigate = Agent(
        "refund-investigator",
        model="anthropic:claude-...",
        instructions="Decide whether the evidence for a refund is sufficient.",
        tools=[read_order, issue_refund],
        output_type=Recommendation,
        budget=Budget(max_steps=20, max_cost_usd=0.50),
    )
    result = await investigate.run("Is the evidence for O-104 sufficient?")   # in this process
    worker.agent("investigate-refund", investigate)                            # durable, as a loop

Both drive the same functions over the same entries.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Generic

import msgspec
from typing_extensions import TypeVar

from treadle.sdk.errors import UserError
from treadle.sdk.ids import check_id
from treadle.worker.agent.core import nested, notes
from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.compaction import CompactionPolicy
from treadle.worker.agent.core.conversation import Block, ModelError, ThinkingLevel
from treadle.worker.agent.core.entries import Opened, ReplyVerdict, Stopped
from treadle.worker.agent.core.spec import (
    ASK_HUMAN,
    FINAL_OUTPUT,
    AgentSpec,
    OnLimit,
    ToolSpec,
    Versions,
)
from treadle.worker.agent.core.state import State
from treadle.worker.agent.driving import Driver, Reached
from treadle.worker.agent.equipment import Equipment
from treadle.worker.agent.events import Emitter, OnEvent
from treadle.worker.agent.hooks import Hooks
from treadle.worker.agent.ledger import RunLedger
from treadle.worker.agent.models.port import Model
from treadle.worker.agent.models.prices import PriceTable
from treadle.worker.agent.models.resolve import resolve_model
from treadle.worker.agent.models.retrying import ModelBusy, RetryPolicy
from treadle.worker.agent.outputs import Evidence, Output
from treadle.worker.agent.ports import Inbox, Journal, MemoryInbox, MemoryJournal, now_ms
from treadle.worker.agent.result import AgentResult
from treadle.worker.agent.subagents import Subagent, problems_of
from treadle.worker.agent.tools.canonical import well_formed_json
from treadle.worker.agent.tools.declaring import check_tools
from treadle.worker.agent.tools.policy import Policy
from treadle.worker.agent.tools.tool import AnyTool
from treadle.worker.cancellation import CancelToken

Out = TypeVar("Out", default=str)

_ASK_HUMAN = ToolSpec(
    name=ASK_HUMAN,
    description=(
        "Ask a person, and wait for the answer. For decisions that are not yours, and for what "
        "no tool can find out."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "question": {"type": "string", "minLength": 1},
            "options": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["question"],
        "additionalProperties": False,
    },
)


class Agent(Generic[Out]):
    """A model with tools, rules and bounds. It holds no state of any run."""

    def __init__(
        self,
        name: str,
        *,
        model: str | Model,
        instructions: str = "",
        tools: Sequence[AnyTool] = (),
        subagents: Sequence[Agent[Any]] = (),
        description: str = "",
        input_type: Any = None,
        output_type: type[Out] | Any = str,
        evidence: Sequence[Evidence] = (),
        budget: Budget | None = None,
        on_limit: OnLimit = "wrap_up",
        policy: Policy | None = None,
        hooks: Hooks | None = None,
        compaction: CompactionPolicy | None = None,
        summary_model: str | Model | None = None,
        models: Mapping[str, str | Model] | None = None,
        prices: PriceTable | None = None,
        model_retry: RetryPolicy | None = None,
        thinking: ThinkingLevel = "off",
        temperature: float | None = None,
        max_output_tokens: int = 0,
        sequential: bool = False,
        stream: bool = True,
        journal: bool = True,
        ask_human: bool = False,
        approval_timeout: timedelta = timedelta(0),
        approval_default: ReplyVerdict = "expired",
    ) -> None:
        """Make an agent; raise ``UserError`` naming every fault.

        ``model`` is ``"provider:name"`` or a model object. ``output_type`` other than ``str`` is
        asked for through a tool, and validated. ``evidence`` are predicates over the result: the
        model proposes that it is done, they decide. ``journal`` gives the agent its run journal,
        ``ask_human`` a way to ask. ``models`` are what a hook may switch to. ``max_output_tokens``
        bounds one answer (0: the model's own bound). ``subagents`` are agents that this one may
        hand tasks to, within its budget; ``description`` is what such a one is for, and
        ``input_type`` the fields it is called with (by default one text, ``task``).
        """
        self.name = check_id("agent name", name)
        budget = budget or Budget()
        compaction = compaction or CompactionPolicy()
        problems = [*budget.problems(), *compaction.problems()]
        taken = {FINAL_OUTPUT, ASK_HUMAN, *notes.NAMES}
        problems += [
            f"tool {tool.name!r} has the name of a built-in tool"
            for tool in tools
            if tool.name in taken
        ]
        self.description = description
        self.input_type = input_type
        delegates = [Subagent(agent) for agent in subagents]
        problems += problems_of(delegates, [*taken, *(tool.name for tool in tools)])
        if budget.max_cost_usd and prices is None:
            problems.append(
                "budget: max_cost_usd needs a price table, or nothing would count against it. "
                "Give prices=PriceTable(...)"
            )
        if problems:
            listed = "\n".join(f"  {problem}" for problem in problems)
            raise UserError(f"agent {name!r} cannot be made:\n{listed}")
        self._model = model
        self._models = dict(models or {})
        self._summary_model = summary_model
        self._resolved: dict[str, Model] = {}
        self.instructions = instructions
        self.tools: dict[str, AnyTool] = check_tools(tools)
        self.subagents: dict[str, Subagent] = {each.name: each for each in delegates}
        self._delegates = tuple(subagents)
        self.output = Output(output_type, evidence)
        self.budget = budget
        self.policy = policy or Policy()
        self.hooks = hooks or Hooks()
        self._on_limit: OnLimit = on_limit
        self._compaction = compaction
        self._prices = prices
        self._model_retry = model_retry or RetryPolicy()
        self._thinking: ThinkingLevel = thinking
        self._temperature = temperature
        self._max_output_tokens = max_output_tokens
        self._sequential = sequential
        self._stream = stream
        self._built_in = (
            *(notes.tools() if journal else ()),
            *((_ASK_HUMAN,) if ask_human else ()),
        )
        self._approval_timeout = approval_timeout
        self._approval_default: ReplyVerdict = approval_default

    # ---------------------------------------------------------------- what it is

    @cached_property
    def spec(self) -> AgentSpec:
        """The agent as data, made once: it is asked for in every turn. Resolves the model."""
        model = self._resolve(self._model)
        specs = (
            *(tool.spec for tool in self.tools.values()),
            *(each.spec for each in self.subagents.values()),
            *self._built_in,
        )
        below = [msgspec.to_builtins(each.versions) for each in self.subagents.values()]
        return AgentSpec(
            name=self.name,
            model=model.name,
            context_window=model.context_window,
            max_output_tokens=self._max_output_tokens or model.max_output_tokens,
            instructions=self.instructions,
            tools=specs,
            subagents=frozenset(self.subagents),
            output_tool=self.output.tool,
            budget=self.budget,
            on_limit=self._on_limit,
            compaction=self._compaction,
            thinking=self._thinking,
            temperature=self._temperature,
            versions=Versions(
                prompt=_hash(self.instructions),
                tools=_hash([*(msgspec.to_builtins(spec) for spec in specs), *below]),
                policy=_hash(_described(self.policy)),
                model=model.name,
            ),
        )

    @property
    def versions(self) -> Versions:
        """What a run of this agent is made with; its sub-agents count among its tools."""
        return self.spec.versions

    @property
    def depth(self) -> int:
        """How many levels of sub-agents it has."""
        return max((1 + each.depth for each in self.subagents.values()), default=0)

    def equipment(self, **changes: Any) -> Equipment:
        """Return what a driver needs to run this agent."""
        summary = self._summary_model
        equipment = Equipment(
            spec=self.spec,
            model=self._resolve(self._model),
            models={name: self._resolve(model) for name, model in self._models.items()},
            tools=self.tools,
            subagents=self.subagents,
            output=self.output,
            policy=self.policy,
            hooks=self.hooks,
            prices=self._prices,
            model_retry=self._model_retry,
            summary_model=None if summary is None else self._resolve(summary),
            stream=self._stream,
            sequential=self._sequential,
            approval_timeout=self._approval_timeout,
            approval_default=self._approval_default,
        )
        return replace(equipment, **changes)

    def opened(self, goal: str | Sequence[Block], at_ms: int, trace_id: str = "") -> Opened:
        """Return the entry that begins a run."""
        content = [{"type": "text", "text": goal}] if isinstance(goal, str) else list(goal)
        content = well_formed_json(content)
        return Opened(at_ms=at_ms, goal=content, versions=self.spec.versions, trace_id=trace_id)

    # ---------------------------------------------------------------- in this process

    async def run(
        self,
        goal: str | Sequence[Block] = "",
        *,
        deps: Any = None,
        state: State | None = None,
        journal: Journal | None = None,
        inbox: Inbox | None = None,
        on_event: OnEvent | None = None,
        cancelled: CancelToken | None = None,
        clock: Callable[[], int] = now_ms,
        id: str = "run",
    ) -> AgentResult[Out]:
        """Run the agent in this process until it stops, or waits for people.

        ``deps`` is what its tools get. ``state`` is that of an earlier result: the run goes on
        from it, with ``goal`` as a follow-up if given. ``inbox`` brings what people say
        meanwhile. Nothing outlives the process unless ``journal`` stores it.
        """
        inbox = inbox or MemoryInbox()
        equipment = self.equipment(deps=deps, run=id, step=self.name, cancelled=cancelled)
        emitter = Emitter(on_event, clock)
        ledger = RunLedger(state or State(), journal or MemoryJournal())
        driver = Driver(equipment, ledger, inbox, emitter, clock)
        if state is None:
            await driver.open(self.opened(goal, clock()))
        elif goal:
            text = goal if isinstance(goal, str) else "\n".join(b.get("text", "") for b in goal)
            await driver.follow_up(text)
        return self.result(await self._drive(driver, cancelled))

    async def _drive(self, driver: Driver, cancelled: CancelToken | None) -> Reached:
        while True:
            if cancelled is not None and cancelled.is_set():
                return await driver.stop("cancelled", "the run was cancelled")
            try:
                reached = await _unless(cancelled, driver.turn())
            except (ModelError, ModelBusy) as exc:
                return await driver.stop("failed", str(exc), fault=exc.fault)
            except asyncio.CancelledError:
                if cancelled is not None and cancelled.is_set():
                    return await driver.stop("cancelled", "the run was cancelled")
                raise
            if reached.where != "turn":
                return reached

    def result(self, reached: Reached) -> AgentResult[Out]:
        """Return what a run came to, typed."""
        state = reached.state
        stop = state.stopped
        if stop is None:
            waiting = nested.waiting(state)
            return AgentResult("needs_human", None, state.text, state.used, "", waiting, state)
        output = self._output_of(stop)
        return AgentResult(stop.reason, output, stop.text, state.used, stop.detail, (), state)

    def _output_of(self, stop: Stopped) -> Out | None:
        if bytes(stop.output) == b"null":
            return None
        decoded: Out = self.output.decode(stop.output)
        return decoded

    def _resolve(self, model: str | Model) -> Model:
        if not isinstance(model, str):
            return model
        if model not in self._resolved:
            self._resolved[model] = resolve_model(model)
        return self._resolved[model]

    async def close(self) -> None:
        """Close the connections of the models that this agent and its sub-agents have made."""
        for model in self._resolved.values():
            await model.close()
        self._resolved.clear()
        for agent in self._delegates:
            await agent.close()


async def _unless(cancelled: CancelToken | None, work: Any) -> Reached:
    """Await the work, cut short when the token is set: a model call's socket closes at once."""
    if cancelled is None:
        reached: Reached = await work
        return reached
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(cancelled.wait())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
        done: Reached = await task
        return done
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


def _described(policy: Policy) -> dict[str, Any]:
    return {
        "allowed": sorted(policy.allowed) if policy.allowed is not None else None,
        "forbidden": sorted(policy.forbidden),
        "max_calls_per_tool": dict(policy.max_calls_per_tool),
        "rule": getattr(policy.rule, "__qualname__", "") if policy.rule is not None else "",
    }


def _hash(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:16]
