"""The plan workflow: explore, plan, and then implement and review until the review is content.

    explore (agent loop) ──> plan (agent loop) ──> build (agent loop)
    reads only               reads only            implementer and reviewer take turns

A workflow has no cycles, so the gate lives in the last step, whose iterations are the turns of
both agents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from treadle.sdk import Retry, Workflow
from treadle.sdk.building import Duration, StepRef
from treadle.sdk.definition import OnLimit
from treadle.sdk.errors import UserError
from treadle.worker.agent.agent import Agent
from treadle.worker.agent.durable import goal_of
from treadle.worker.agent.events import OnEvent
from treadle.worker.agent.plan.handler import PhaseHandler, carried_brief, first_brief
from treadle.worker.agent.plan.phases import Gate, OnNeedsFix
from treadle.worker.agent.plan.prompts import Prompts
from treadle.worker.agent.tools.declaring import did_you_mean
from treadle.worker.context import LoopContext

if TYPE_CHECKING:
    from treadle.worker.worker import Worker

Step = Literal["explore", "plan", "build"]

REVIEW_CYCLES = 2
REVIEW_CYCLES_MAX = 20
"""A reviewer that is not content after so many is not to be contented by one more."""
TURN_TIMEOUT = timedelta(minutes=15)
"""Of one turn: a model call, and the tools it asks for, which may be a whole test suite."""
TURN_RETRY = Retry(max_attempts=5)
ITERATIONS_ROOM = 20
"""Above the turns that the budgets allow: last answers, messages and waits are iterations too."""


class StepOptions(TypedDict, total=False):
    """Options of a step's agent loop, as ``Workflow.agent_loop`` takes them."""

    max_iterations: int
    max_duration: Duration
    loop_delay: Duration
    timeout: Duration
    retry: Retry | None
    on_limit: OnLimit
    max_tool_calls: int
    max_input_tokens: int
    max_output_tokens: int
    max_total_tokens: int
    max_cost_usd: float


class PlanWorkflow:
    """A workflow of four phases, each an agent with a conversation of its own."""

    def __init__(
        self,
        name: str,
        *,
        explorer: Agent[Any],
        planner: Agent[Any],
        implementer: Agent[Any],
        reviewer: Agent[Any],
        review_tools: AbstractSet[str] = frozenset(),
        max_review_cycles: int = REVIEW_CYCLES,
        on_needs_fix: OnNeedsFix = "fail",
        prompts: Prompts | None = None,
        options: Mapping[Step, StepOptions] | None = None,
        description: str = "",
    ) -> None:
        """Make the workflow; raise ``UserError`` naming every fault.

        Explorer, planner and reviewer get only those of their tools that are declared
        ``read_only``; ``review_tools`` names tools that the reviewer has besides, such as one that
        runs the tests. ``max_review_cycles`` is the most reviews of a run. After the last,
        ``on_needs_fix`` says whether the last step fails or completes with the verdict
        ``NEEDS_FIX``. ``options`` are those of the agent loops, by step.
        """
        self.name = name
        self._gate = Gate(max_review_cycles=max_review_cycles, on_needs_fix=on_needs_fix)
        self._prompts = prompts or Prompts()
        options = options or {}
        problems = self._problems(reviewer, review_tools, options)
        if problems:
            listed = "\n".join(f"  {problem}" for problem in problems)
            raise UserError(f"plan workflow {name!r} cannot be made:\n{listed}")
        self.explorer = explorer.read_only()
        self.planner = planner.read_only()
        self.implementer = implementer
        self.reviewer = reviewer.read_only(unless=review_tools)
        self.workflow: Workflow[Any] = Workflow(name, description=description)
        build_turns = implementer.budget.max_steps + reviewer.budget.max_steps + 2
        self.explore = self._loop("explore", (), explorer.budget.max_steps, options)
        self.plan = self._loop("plan", (self.explore,), planner.budget.max_steps, options)
        self.build = self._loop("build", (self.plan,), max_review_cycles * build_turns, options)

    def register(
        self,
        worker: Worker,
        *,
        deps: Any = None,
        request: Callable[[Any], str] | None = None,
        on_event: Callable[[LoopContext[Any]], OnEvent | None] | None = None,
        concurrency: int | None = None,
    ) -> None:
        """Let the worker serve the three steps.

        ``request`` makes the text that the plan is about of the run's input (default: a text as
        it is, else its JSON); the rest is as in ``worker.agent``. Raises ``HandlerError`` if one
        of the task types has a handler.
        """
        for step, handler in {
            self.explore: self._handler({"explore": self.explorer}, deps, on_event, request),
            self.plan: self._handler({"plan": self.planner}, deps, on_event),
            self.build: self._handler(
                {"implement": self.implementer, "review": self.reviewer}, deps, on_event
            ),
        }.items():
            worker.agent_handler(self._type(step.id), handler, concurrency=concurrency)

    def __repr__(self) -> str:
        return f"<plan workflow {self.name!r}>"

    def _handler(
        self,
        agents: Mapping[Any, Agent[Any]],
        deps: Any,
        on_event: Callable[[LoopContext[Any]], OnEvent | None] | None,
        request: Callable[[Any], str] | None = None,
    ) -> PhaseHandler:
        brief = first_brief(request or goal_of) if "explore" in agents else carried_brief
        return PhaseHandler(agents, self._prompts, self._gate, brief, deps=deps, on_event=on_event)

    def _loop(
        self,
        step: Step,
        after: tuple[StepRef, ...],
        turns: int,
        options: Mapping[Step, StepOptions],
    ) -> StepRef:
        given: StepOptions = {
            "max_iterations": turns + ITERATIONS_ROOM,
            "timeout": TURN_TIMEOUT,
            "retry": TURN_RETRY,
            **options.get(step, {}),
        }
        return self.workflow.agent_loop(step, self._type(step), after=after, **given)

    def _type(self, step: str) -> str:
        return f"{self.name}-{step}"

    def _problems(
        self,
        reviewer: Agent[Any],
        review_tools: AbstractSet[str],
        options: Mapping[Step, StepOptions],
    ) -> list[str]:
        found = self._prompts.problems()
        cycles = self._gate.max_review_cycles
        if not 1 <= cycles <= REVIEW_CYCLES_MAX:
            found.append(
                f"max_review_cycles is {cycles}; work is reviewed once at least, and at most "
                f"{REVIEW_CYCLES_MAX} times"
            )
        if self._gate.on_needs_fix not in get_args(OnNeedsFix):
            found.append(f"on_needs_fix is {self._gate.on_needs_fix!r}; it is 'fail' or 'complete'")
        found += [
            f"review_tools names {name!r}, which is no tool of the reviewer."
            + did_you_mean(name, reviewer.tools)
            for name in sorted(review_tools - set(reviewer.tools))
            if not reviewer.has_servers
        ]
        found += [
            f"options has {step!r}, which is no step; the steps are {', '.join(get_args(Step))}"
            for step in options
            if step not in get_args(Step)
        ]
        return found
