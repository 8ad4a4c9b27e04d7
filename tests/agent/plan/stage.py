"""A plan workflow whose four agents speak to one fake, told apart by their instructions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from treadle.sdk import failpoints
from treadle.worker.agent import Agent, Budget, tool
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.models.retrying import RetryPolicy
from treadle.worker.agent.plan import PlanWorkflow
from treadle.worker.agent.testing import RecordedRequest, Turn, text, tool_use, turn

REQUEST = "Add a flag, and keep {{PLAN}} as it is."
QUICK = RetryPolicy(first_delay_s=0.001, delay_s_max=0.002)
WRITTEN: list[str] = []
"""What the tools have written in this process."""


@tool(read_only=True)
async def read_file(path: str) -> str:
    """Read a file."""
    return f"text of {path}"


@tool(idempotent=True)
async def write_file(path: str, content: str) -> str:
    """Write a file."""
    failpoints.reach("test.write-before")
    WRITTEN.append(path)
    failpoints.reach("test.write-after")
    return f"wrote {content}"


@tool(idempotent=True)
async def run_tests() -> str:
    """Run the tests."""
    failpoints.reach("test.run-tests")
    return "3 passed"


TOOLS = [read_file, write_file, run_tests]


def plan_workflow(model: AnthropicModel, **options: Any) -> PlanWorkflow:
    """Return the workflow; every agent is given all tools. Options of an agent go by its phase."""

    def agent(phase: str) -> Agent[Any]:
        given = {"tools": TOOLS, "model_retry": QUICK, "budget": Budget(max_steps=8)}
        given |= {"instructions": f"You are to {phase}.", **options.pop(phase, {})}
        return Agent(phase, model=model, **given)

    return PlanWorkflow(
        "change",
        explorer=agent("explore"),
        planner=agent("plan"),
        implementer=agent("implement"),
        reviewer=agent("review"),
        **{"review_tools": {"run_tests"}} | options,
    )


def phase_of(request: RecordedRequest) -> str:
    """Return the phase that asks."""
    said = json.dumps(request.body["system"])
    return next(p for p in ("explore", "plan", "implement", "review") if f"to {p}." in said)


def answers_in(request: RecordedRequest) -> int:
    """Return how many answers the conversation holds."""
    return sum(message["role"] == "assistant" for message in request.messages)


def goal_in(request: RecordedRequest) -> str:
    """Return what the conversation began with."""
    return str(request.messages[0]["content"][0]["text"])


def verdict(word: str, *findings: str) -> Turn:
    """Return a review with this verdict."""
    found = json.dumps({"verdict": word, "summary": f"{word}!", "findings": findings})
    return turn(text(f"I ran it.\n```json\n{found}\n```"))


def playing(reviews: Sequence[Turn]) -> Callable[[RecordedRequest], Turn]:
    """Return a model that needs one call of a tool in each phase, and reviews like this.

    Which review it is shows in the account that it is given, so a call that is made again is
    answered alike.
    """

    def play(request: RecordedRequest) -> Turn:
        phase, first = phase_of(request), answers_in(request) == 0
        goal = goal_in(request)
        cycle = 2 if "of cycle 2" in goal else 1 if "of cycle 1" in goal else 0
        match phase:
            case "explore":
                return turn(tool_use("read_file", {"path": "a"})) if first else say("FOUND it")
            case "plan":
                return turn(tool_use("read_file", {"path": "b"})) if first else say("PLANNED it")
            case "implement":
                written = {"path": f"c{cycle}", "content": "x"}
                done = say(f"Account of cycle {cycle + 1}.")
                return turn(tool_use("write_file", written, id="toolu_same")) if first else done
            case _:
                return turn(tool_use("run_tests", {})) if first else reviews[cycle - 1]

    return play


def say(words: str) -> Turn:
    """Return an answer in words."""
    return turn(text(words))
