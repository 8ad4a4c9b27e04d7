"""A lead agent with sub-agents on one stage; the fake tells them apart by their instructions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from tests.agent.run.stage import Stage

from treadle.worker.agent.agent import Agent
from treadle.worker.agent.core.entries import Entry, Nested
from treadle.worker.agent.testing import RecordedRequest, Turn, text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool

Role = Callable[[RecordedRequest, int], Turn]
"""What one of the agents answers, by how often it has answered in this conversation."""
USAGE = {
    "input_tokens": 10,
    "output_tokens": 5,
    "cache_read_input_tokens": 0,
    "cache_creation_input_tokens": 0,
}
"""Of every answer: what a run has used is 15 tokens an answer."""
priced = functools.partial(turn, usage=USAGE)


def name_of(request: RecordedRequest) -> str:
    """The name of the agent that asks."""
    return str(request.body["system"][0]["text"]).split()[0]


def family(**roles: Role) -> Callable[[RecordedRequest], Turn]:
    """Return the script of a fake in which each agent has its role."""

    def play(request: RecordedRequest) -> Turn:
        answers = sum(message["role"] == "assistant" for message in request.messages)
        return roles[name_of(request)](request, answers)

    return play


def agent(stage: Stage, name: str, **options: Any) -> Agent[Any]:
    """Return an agent of that name that its fake knows."""
    return stage.agent(
        name=name,
        **{"instructions": f"{name} works.", "description": f"Does {name}'s work."} | options,
    )


def ask(name: str, task: str, id: str) -> Any:
    """Return the block by which an agent hands a task on."""
    return tool_use(name, {"task": task}, id)


def asked(stage: Stage, name: str) -> list[RecordedRequest]:
    """The requests of one agent."""
    return [request for request in stage.fake.requests if name_of(request) == name]


def entries_of(entries: Iterable[Entry], *path: str) -> list[Entry]:
    """The entries of the sub-agent to which these calls lead."""
    found = list(entries)
    for call_id in path:
        found = [
            entry.entry for entry in found if isinstance(entry, Nested) and entry.call_id == call_id
        ]
    return found


# ------------------------------------------------------------------ roles

TWO = (ask("search", "Find a.", "a"), ask("search", "Find b.", "b"))


def two(request: Any, n: int) -> Any:
    """Hand out two tasks, then put their results together."""
    return priced(*TWO) if n == 0 else priced(text(f"a and b: {request.tool_results}"))


def find(request: Any, n: int) -> Any:
    """Give the task back as found."""
    task = request.messages[0]["content"][0]["text"]
    return priced(text(task.replace("Find", "found")))


@tool(idempotent=True)
async def look(n: int) -> str:
    """Look."""
    return f"seen {n}"


def looking(request: Any, n: int) -> Any:
    """Go on for ever."""
    return priced(tool_use("look", {"n": n}))
