"""All that a driver works with, made once per agent: the spec, the model, the tools, the rules."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.sdk.errors import UserError, clause
from treadle.sdk.subjects import RegisterAddress
from treadle.worker.agent import hooks as hooking
from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.conversation import Block, Usage
from treadle.worker.agent.core.entries import Level, ReplyVerdict
from treadle.worker.agent.core.provider_budget import ProviderBudget
from treadle.worker.agent.core.spec import ASK_HUMAN, AgentSpec
from treadle.worker.agent.core.state import State
from treadle.worker.agent.core.watch import OWN_TOOLS, guard
from treadle.worker.agent.escalation import Escalation
from treadle.worker.agent.hooks import Hooks
from treadle.worker.agent.models.port import Model
from treadle.worker.agent.models.prices import PriceTable
from treadle.worker.agent.models.retrying import Passage, RetryPolicy
from treadle.worker.agent.outputs import Output
from treadle.worker.agent.provider import OF_THIS_PROCESS, Gate
from treadle.worker.agent.tools.canonical import args_hash, well_formed_json
from treadle.worker.agent.tools.checking import check_arguments, check_calls
from treadle.worker.agent.tools.policy import Policy
from treadle.worker.agent.tools.tool import AnyTool
from treadle.worker.cancellation import CancelToken
from treadle.worker.shared import SharedValues

if TYPE_CHECKING:
    from treadle.worker.agent.subagents import Subagent

_ALLOWED = ("execute", "needs_approval")


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """What one run is driven with."""

    spec: AgentSpec
    model: Model
    models: Mapping[str, Model] = field(default_factory=dict[str, Model])
    """Further models, by the name a hook may switch to."""
    tools: Mapping[str, AnyTool]
    subagents: Mapping[str, Subagent] = field(default_factory=dict[str, "Subagent"])
    output: Output
    policy: Policy
    hooks: Hooks = field(default_factory=Hooks)
    deps: Any = None
    prices: PriceTable | None = None
    model_retry: RetryPolicy = field(default_factory=RetryPolicy)
    model_timeout_s: float = 600.0
    summary_model: Model | None = None
    provider_budget: ProviderBudget | None = None
    shared: SharedValues | None = None
    """What all workers know of providers; None is an agent that runs in this process alone."""
    address: RegisterAddress | None = None
    """Which step's register the run moves; None is none."""
    after_loss: bool = False
    """The worker of an execution before this one vanished."""
    stream: bool = True
    sequential: bool = False
    approval_timeout: timedelta = timedelta(0)
    """How long people are waited for; 0 is for ever."""
    approval_default: ReplyVerdict = "expired"
    approval_escalation: tuple[Escalation, ...] = ()
    run: str = ""
    step: str = ""
    cancelled: CancelToken | None = None
    heartbeat: Callable[[], None] = lambda: None
    tool_sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    """How the wait before another attempt of a tool is waited."""

    def model_for(self, name: str) -> Model:
        """Return the model of that name: the agent's own, or one it may switch to."""
        return self.models.get(name, self.model)

    def passage(self, model: Model, now_ms: Callable[[], int]) -> Passage | None:
        """Return the gate before the model's provider; None if nothing is counted."""
        if self.provider_budget is None:
            return None
        shared = self.shared or OF_THIS_PROCESS
        name = f"{model.provider}/{model.name}"
        return Gate(
            shared,
            name,
            self.provider_budget,
            now_ms,
            self.address,
            after_loss=self.after_loss,
        )

    def check_model(self, name: str) -> None:
        """Raise ``UserError`` unless a hook may switch to a model of that name."""
        if name and name not in self.models and name != self.spec.model:
            known = ", ".join([self.spec.model, *self.models])
            raise UserError(
                f"prepare_next_turn switched to the model {name!r}, which the agent does not have: "
                f"it has {known}. Add it to models=, or name one of these."
            )

    def cost(self, model: str, usage: Usage) -> int:
        """Return the cost in millionths of a USD; 0 without a price."""
        if self.prices is None:
            return 0
        return self.prices.cost_micros(model, usage) or 0

    def approval_due_ms(self, now_ms: int) -> int:
        """Return when the default takes effect for what is asked now; 0 is never."""
        wait_ms = int(self.approval_timeout / timedelta(milliseconds=1))
        return now_ms + wait_ms if wait_ms else 0

    def escalation_levels(self, now_ms: int) -> tuple[Level, ...]:
        """Return when who else is asked, of what is asked now."""
        millisecond = timedelta(milliseconds=1)
        return tuple(
            Level(at_ms=now_ms + int(each.after / millisecond), to=each.to)
            for each in self.approval_escalation
        )

    # ---------------------------------------------------------------- judging

    async def judge(self, state: State, uses: Sequence[Block]) -> tuple[ToolCall, ...]:
        """Decide about each proposed call: schema, policy, hook, approval, storm."""
        checked = check_calls(uses, self._offered())
        calls: list[ToolCall] = []
        used = Counter(state.executed)
        for call in guard(self.spec, state.watch, checked):
            call = await self._judged(state, call, used)
            used[call.name] += call.decision in ("execute", "needs_approval")
            calls.append(call)
        return tuple(calls)

    def _offered(self) -> dict[str, Any]:
        offered: dict[str, Any] = {**self.tools, **self.subagents}
        own = [tool for tool in self.spec.tools if tool.name not in offered]
        if self.spec.output_tool is not None:
            own.append(self.spec.output_tool)
        described = {tool.name: _Described(tool.name, tool.input_schema) for tool in own}
        return {**offered, **described}

    async def _judged(self, state: State, call: ToolCall, used: Mapping[str, int]) -> ToolCall:
        # What an agent may do to the world is the policy's; the runtime's own tools do nothing.
        if call.name in OWN_TOOLS and call.name not in self.policy.forbidden:
            return _question(call) if call.name == ASK_HUMAN else call
        tool = self._tool(call.name)
        call = _decided(call, *self.policy.decide(call, state, used=used, tool=tool))
        before = self.hooks.before_tool_call
        if before is None or tool is None or call.decision not in _ALLOWED:
            return call
        returned = await hooking.call(before, call)
        if returned is None:
            return call
        if isinstance(returned, hooking.Block):
            return _decided(call, "denied", returned.reason)
        changed = msgspec.structs.replace(
            call, input=returned, args_hash=args_hash(returned), decision="execute", reason=""
        )
        changed = check_arguments(changed, tool)
        return _decided(changed, *self.policy.decide(changed, state, used=used, tool=tool))

    def _tool(self, name: str) -> Any:
        """Return what the name stands for, a tool or a sub-agent, or ``None``."""
        return self.tools.get(name) or self.subagents.get(name)

    async def judge_edited(
        self, state: State, call: ToolCall, given: Mapping[str, Any]
    ) -> ToolCall:
        """Return the call with a person's arguments, judged like a model's.

        Its decision is ``execute``, or ``reason`` says what is wrong with them. That they need an
        approval is no objection: they have one.
        """
        tool = self._tool(call.name)
        if tool is None:
            return _decided(call, "invalid", f"There is no tool {call.name!r} any more.")
        try:
            clean = well_formed_json(given)
            hashed = args_hash(clean)
        except ValueError as exc:
            return _decided(call, "invalid", f"The arguments cannot be read: {clause(exc)}.")
        edited = msgspec.structs.replace(
            call, input=clean, args_hash=hashed, decision="execute", reason=""
        )
        edited = check_arguments(edited, tool)
        decision, reason = self.policy.decide(edited, state, used=_used(state, call), tool=tool)
        if decision == "needs_approval":
            decision, reason = "execute", ""
        edited = _decided(edited, decision, reason)
        before = self.hooks.before_tool_call
        if before is None or edited.decision != "execute":
            return edited
        returned = await hooking.call(before, edited)
        if isinstance(returned, hooking.Block):
            return _decided(edited, "denied", returned.reason)
        if returned is not None and args_hash(returned) != edited.args_hash:
            changed = msgspec.json.encode(returned).decode()
            problem = f"A hook of the agent would run it as {changed}. Approve these, or others."
            return _decided(edited, "denied", problem)
        return edited


def _used(state: State, call: ToolCall) -> Counter[str]:
    """Return the calls that count before this one: those that ran, and those ahead of it."""
    used = Counter(state.executed)
    for other in state.open_calls:
        if other.id == call.id:
            break
        used[other.name] += other.decision in ("execute", "needs_approval")
    return used


class _Described:
    """A tool that is checked elsewhere: any arguments pass here."""

    def __init__(self, name: str, input_schema: dict[str, Any]) -> None:
        self.name = name
        self.input_schema = input_schema

    def bind(self, proposed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as they are."""
        return dict(proposed)


def _question(call: ToolCall) -> ToolCall:
    if call.decision != "execute":
        return call
    question = call.input.get("question")
    if isinstance(question, str) and question.strip():
        return _decided(call, "question", "")
    return _decided(call, "invalid", "ask_human asked nothing: it needs a question, as a text.")


def _decided(call: ToolCall, decision: Any, reason: str) -> ToolCall:
    return msgspec.structs.replace(call, decision=decision, reason=reason)
