"""Which calls an agent may make, whatever its model proposes. Pure.

    policy = Policy(forbidden={"issue_refund"}, max_calls_per_tool={"search": 5}, rule=office_hours)

``rule(call, state)`` returns ``None`` for no objection, ``Deny`` or ``Ask``. A rule that raises
denies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from treadle.worker.agent.core.calls import Decision, ToolCall
from treadle.worker.agent.tools.tool import AnyTool


class Deny(msgspec.Struct, frozen=True):
    """The call must not run; the model is told why."""

    reason: str


class Ask(msgspec.Struct, frozen=True):
    """The call runs only if a person agrees."""

    reason: str = ""


Rule = Callable[[ToolCall, Any], Deny | Ask | None]


@dataclass(frozen=True)
class Policy:
    """The bounds of an agent's actions. Forbidden goes before allowed."""

    allowed: AbstractSet[str] | None = None
    """Names of the tools that may run; ``None`` is all."""
    read_only: bool = False
    """Only tools that are declared ``read_only`` may run, and those named in ``unless``."""
    unless: AbstractSet[str] = frozenset()
    """Names of tools that may run under ``read_only``, such as one that runs the tests."""
    forbidden: AbstractSet[str] = frozenset()
    """Names of actions that must not run, whether there is such a tool or not."""
    max_calls_per_tool: Mapping[str, int] = field(default_factory=dict[str, int])
    """Most executed calls of a tool in a run."""
    rule: Rule | None = None

    def within(self, outer: Policy) -> Policy:
        """Return the policy of a sub-agent of an agent with ``outer``: what that forbids, too."""
        unless = self.unless
        if outer.read_only:
            unless = self.unless & outer.unless if self.read_only else outer.unless
        return replace(
            self,
            forbidden=self.forbidden | outer.forbidden,
            read_only=self.read_only or outer.read_only,
            unless=unless,
        )

    def decide(
        self,
        call: ToolCall,
        state: Any = None,
        *,
        used: Mapping[str, int] | None = None,
        tool: AnyTool | None = None,
    ) -> tuple[Decision, str]:
        """Return the decision about one call and the reason for the model.

        ``used`` counts the calls of the run that were executed, by tool.
        """
        name = call.name
        if name in self.forbidden:
            return "denied", (
                f"{name} is forbidden in this run, whatever its arguments. Reach the goal without "
                "it, or say that it cannot be reached."
            )
        if self.allowed is not None and name not in self.allowed:
            names = ", ".join(sorted(self.allowed)) or "none"
            return "denied", f"{name} is not among the allowed actions of this run: {names}."
        if self.read_only and name not in self.unless and not (tool and tool.read_only):
            return "denied", (
                f"{name} is not one of the tools that only read, and nothing may be changed in "
                "this run. Use the tools that you are offered, and say what has to be changed."
            )
        if call.decision != "execute":
            return call.decision, call.reason
        most = self.max_calls_per_tool.get(name)
        if most is not None and (used or {}).get(name, 0) >= most:
            return "over_budget", (
                f"{name} may be called {most} times in this run, and was. Go on without it."
            )
        objection = self._objection(call, state)
        if isinstance(objection, Deny):
            return "denied", objection.reason or f"{name} was denied by the policy of this run."
        if objection is not None:
            return "needs_approval", objection.reason
        if tool is not None and tool.needs_approval(call.input):
            return "needs_approval", ""
        return "execute", ""

    def judge(
        self,
        calls: Sequence[ToolCall],
        tools: Mapping[str, AnyTool],
        state: Any = None,
        *,
        used: Mapping[str, int] | None = None,
    ) -> tuple[ToolCall, ...]:
        """Return the checked calls of one answer with the decision about each.

        Those that may run count for the ones after them.
        """
        counts = Counter(used or {})
        judged: list[ToolCall] = []
        for call in calls:
            decision, reason = self.decide(call, state, used=counts, tool=tools.get(call.name))
            if decision in ("execute", "needs_approval"):
                counts[call.name] += 1
            judged.append(msgspec.structs.replace(call, decision=decision, reason=reason))
        return tuple(judged)

    def _objection(self, call: ToolCall, state: Any) -> Deny | Ask | None:
        if self.rule is None:
            return None
        try:
            found: Any = self.rule(call, state)
        except Exception as exc:  # noqa: BLE001 — a user's rule may raise anything
            return Deny(f"{call.name} was denied: the rule about it failed ({type(exc).__name__}).")
        if found is None or isinstance(found, (Deny, Ask)):
            return found
        return Deny(f"{call.name} was denied: the rule about it gave no clear answer.")
