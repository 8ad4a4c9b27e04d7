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
import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any, Generic, NamedTuple, Self

import msgspec
from typing_extensions import TypeVar

from treadle.sdk.errors import UserError
from treadle.sdk.ids import check_id
from treadle.worker.agent.core import kept, nested, notes
from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.compaction import CompactionPolicy
from treadle.worker.agent.core.conversation import Block, ModelError, ThinkingLevel
from treadle.worker.agent.core.entries import NOTHING, Opened, ReplyVerdict, Stopped
from treadle.worker.agent.core.provider_budget import ProviderBudget
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
from treadle.worker.agent.escalation import Escalation, escalation_problems
from treadle.worker.agent.events import Emitter, OnEvent
from treadle.worker.agent.given import names_of, problems_of_models, problems_of_tools
from treadle.worker.agent.hooks import Hooks
from treadle.worker.agent.ledger import RunLedger
from treadle.worker.agent.mcp.server import McpServer
from treadle.worker.agent.mcp.toolbox import Toolbox
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


_NO_TOOLS: Mapping[str, AnyTool] = {}


class _Prepared(NamedTuple):
    """An agent with what the MCP servers offered, its sub-agents' too."""

    offered: Mapping[str, AnyTool]
    below: list[Versions]
    tools: Mapping[str, AnyTool]
    """All, by name."""
    spec: AgentSpec


class Agent(Generic[Out]):
    """A model with tools, rules and bounds. It holds no state of any run."""

    def __init__(
        self,
        name: str,
        *,
        model: str | Model,
        instructions: str = "",
        tools: Sequence[AnyTool] = (),
        mcp: Sequence[McpServer] = (),
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
        provider_budget: ProviderBudget | None = None,
        thinking: ThinkingLevel = "off",
        temperature: float | None = None,
        max_output_tokens: int = 0,
        sequential: bool = False,
        stream: bool = True,
        journal: bool = True,
        keep_output: bool = True,
        ask_human: bool = False,
        approval_timeout: timedelta = timedelta(0),
        approval_default: ReplyVerdict = "expired",
        approval_escalation: Sequence[Escalation] = (),
    ) -> None:
        """Make an agent; raise ``UserError`` naming every fault.

        ``model`` is ``"provider:name"`` or a model object. ``mcp`` are servers whose tools are
        offered beside ``tools``. ``output_type`` other than ``str`` is
        asked for through a tool, and validated. ``evidence`` are predicates over the result: the
        model proposes that it is done, they decide. ``journal`` gives the agent its run journal,
        ``keep_output`` a tool that reads outputs which were cut, if it has tools of its own or of
        ``mcp``, and ``ask_human`` a way to ask. ``models`` are what a hook may switch to.
        ``provider_budget`` is what all workers may use of the model's provider together.
        ``max_output_tokens`` bounds one answer (0: the model's own bound). ``subagents`` are agents
        that this one may hand tasks to, within its budget; ``description`` is what such a one is
        for, and ``input_type`` the fields it is called with (by default one text, ``task``). People
        are waited for during ``approval_timeout`` (0: for ever), and ``approval_escalation`` says
        who else is asked.
        """
        self.name = check_id("agent name", name)
        budget = budget or Budget()
        compaction = compaction or CompactionPolicy()
        provider_problems = provider_budget.problems() if provider_budget else ()
        problems = [*budget.problems(), *compaction.problems(), *provider_problems]
        problems += escalation_problems(approval_escalation, approval_timeout)
        asked = {"model": model, **{f"models[{key!r}]": m for key, m in (models or {}).items()}}
        if summary_model is not None:
            asked["summary_model"] = summary_model
        problems += [*problems_of_models(asked), *problems_of_tools(tools)]
        taken = {FINAL_OUTPUT, ASK_HUMAN, kept.READ, *notes.NAMES}
        names = names_of(tools)
        problems += [
            f"tool {name!r} has the name of a built-in tool" for name in names if name in taken
        ]
        self.description = description
        self.input_type = input_type
        delegates = [Subagent(agent) for agent in subagents]
        problems += problems_of(delegates, [*taken, *names])
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
        self._toolbox = Toolbox(mcp)
        self._prepared: _Prepared | None = None
        self.subagents: dict[str, Subagent] = {each.name: each for each in delegates}
        self._delegates = tuple(subagents)
        self.output = Output(output_type, evidence)
        self.budget = budget
        self.policy = policy or Policy()
        self.hooks = hooks or Hooks()
        self._on_limit: OnLimit = on_limit
        self._compaction = compaction
        self._prices = prices
        self._model_retry, self._provider_budget = model_retry or RetryPolicy(), provider_budget
        self._thinking: ThinkingLevel = thinking
        self._temperature = temperature
        self._max_output_tokens = max_output_tokens
        self._sequential = sequential
        self._stream = stream
        self._built_in = (
            *(notes.tools() if journal else ()),
            *((kept.SPEC,) if keep_output and (tools or mcp) else ()),
            *((_ASK_HUMAN,) if ask_human else ()),
        )
        self._approval_timeout = approval_timeout
        self._approval_default: ReplyVerdict = approval_default
        self._approval_escalation = tuple(approval_escalation)

    # ---------------------------------------------------------------- what it is

    @cached_property
    def spec(self) -> AgentSpec:
        """The agent as data, made once, without the tools of MCP servers. Resolves the model."""
        return self._spec_with({})

    def _spec_with(self, offered: Mapping[str, AnyTool]) -> AgentSpec:
        model = self._resolve(self._model)
        tools = (*self.tools.values(), *offered.values())
        specs = (
            *(tool.spec for tool in tools),
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
        return (self._prepared.spec if self._prepared else self.spec).versions

    @property
    def depth(self) -> int:
        """How many levels of sub-agents it has."""
        return max((1 + each.depth for each in self.subagents.values()), default=0)

    def equipment(self, **changes: Any) -> Equipment:
        """Return what a driver needs to run this agent, with what was prepared last."""
        summary, prepared = self._summary_model, self._prepared
        equipment = Equipment(
            spec=prepared.spec if prepared else self.spec,
            model=self._resolve(self._model),
            models={name: self._resolve(model) for name, model in self._models.items()},
            tools=prepared.tools if prepared else self.tools,
            subagents=self.subagents,
            output=self.output,
            policy=self.policy,
            hooks=self.hooks,
            prices=self._prices,
            model_retry=self._model_retry,
            provider_budget=self._provider_budget,
            summary_model=None if summary is None else self._resolve(summary),
            stream=self._stream,
            sequential=self._sequential,
            approval_timeout=self._approval_timeout,
            approval_default=self._approval_default,
            approval_escalation=self._approval_escalation,
        )
        return replace(equipment, **changes)

    def read_only(self, unless: AbstractSet[str] = frozenset()) -> Self:
        """Return the agent without the tools that may change something.

        It is offered only those declared ``read_only`` and those named in ``unless``, and its
        policy denies every other call, whatever the model proposes; so it is with its sub-agents.
        """
        policy = replace(self.policy, read_only=True, unless=self.policy.unless | unless)
        reader = copy.copy(self)
        reader.__dict__.pop("spec", None)
        reader._prepared = None
        reader.policy = policy
        reader.tools = {
            name: tool
            for name, tool in self.tools.items()
            if tool.read_only or name in policy.unless
        }
        reader._delegates = tuple(agent.read_only(policy.unless) for agent in self._delegates)
        reader.subagents = {agent.name: Subagent(agent) for agent in reader._delegates}
        return reader

    async def prepared(self, **changes: Any) -> Equipment:
        """Return what a driver needs, with the tools that the MCP servers offer now.

        Asks a server only when its list is not known or may have changed. Raises
        ``McpUnavailable`` if one cannot be reached.
        """
        if self._asks_servers:
            for each in self._delegates:
                await each.prepared()
            built_in = (spec.name for spec in self._built_in)
            taken = (*self.tools, *self.subagents, *built_in, FINAL_OUTPUT)
            offered = await self._toolbox.tools(taken) if self._toolbox else _NO_TOOLS
            below = [each.versions for each in self._delegates]
            known = self._prepared
            if known is None or known.offered is not offered or known.below != below:
                chosen = {name: tool for name, tool in offered.items() if self._may_offer(tool)}
                tools = {**self.tools, **chosen}
                self._prepared = _Prepared(offered, below, tools, self._spec_with(chosen))
        return self.equipment(**changes)

    @property
    def _asks_servers(self) -> bool:
        return bool(self._toolbox) or any(each._asks_servers for each in self._delegates)

    def _may_offer(self, tool: AnyTool) -> bool:
        policy = self.policy
        return not policy.read_only or tool.read_only or tool.name in policy.unless

    def opened(
        self,
        goal: str | Sequence[Block],
        at_ms: int,
        trace_id: str = "",
        *,
        phase: str = "",
        carried: msgspec.Raw = NOTHING,
        versions: Versions | None = None,
    ) -> Opened:
        """Return the entry that begins a conversation, and with the first one the run.

        ``versions`` are those of what was prepared.
        """
        content = [{"type": "text", "text": goal}] if isinstance(goal, str) else list(goal)
        return Opened(
            at_ms=at_ms,
            goal=well_formed_json(content),
            versions=versions or self.spec.versions,
            trace_id=trace_id,
            phase=phase,
            carried=carried,
        )

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
        from it, with ``goal`` as a follow-up if given; if the agent's prompt or tools are not
        what they were, it stops first with ``needs_human``, and a ``goal`` with the state of
        that result accepts the change. ``inbox`` brings what people say meanwhile. Nothing
        outlives the process unless ``journal`` stores it.
        """
        inbox = inbox or MemoryInbox()
        equipment = await self.prepared(deps=deps, run=id, step=self.name, cancelled=cancelled)
        emitter = Emitter(on_event, clock)
        ledger = RunLedger(state or State(), journal or MemoryJournal())
        driver = Driver(equipment, ledger, inbox, emitter, clock)
        if state is not None:
            driver.resumed()
        if state is None:
            await driver.open(self.opened(goal, clock(), versions=equipment.spec.versions))
        elif await driver.drifted():
            return self.result(Reached("stopped", driver.state))
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

    @property
    def has_servers(self) -> bool:
        """True if MCP servers offer it tools, whose names are known once it is connected."""
        return bool(self._toolbox)

    async def disconnect(self) -> None:
        """End what this event loop has open to MCP servers; a later run reconnects."""
        await self._toolbox.close()
        for agent in self._delegates:
            await agent.disconnect()

    async def close(self) -> None:
        """Close the connections to MCP servers, and those of the models.

        Those of sub-agents too.
        """
        await self.disconnect()
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
    described = {
        "allowed": sorted(policy.allowed) if policy.allowed is not None else None,
        "forbidden": sorted(policy.forbidden),
        "max_calls_per_tool": dict(policy.max_calls_per_tool),
        "rule": getattr(policy.rule, "__qualname__", "") if policy.rule is not None else "",
    }
    return described | ({"unless": sorted(policy.unless)} if policy.read_only else {})


def _hash(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:16]
