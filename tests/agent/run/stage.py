"""A stage for whole runs: an agent, the real adapter, and a strict fake of the API behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from treadle.worker.agent.agent import Agent
from treadle.worker.agent.core.conversation import ModelRequest
from treadle.worker.agent.core.entries import Entry
from treadle.worker.agent.core.request import build_request
from treadle.worker.agent.core.rules import validate_request
from treadle.worker.agent.core.state import State, fold
from treadle.worker.agent.events import AgentEvent
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.models.retrying import RetryPolicy
from treadle.worker.agent.ports import MemoryJournal
from treadle.worker.agent.result import AgentResult
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn

MODEL = "claude-test"
QUICK = RetryPolicy(first_delay_s=0.001, delay_s_max=0.002)
Turns = Iterable[Turn] | Callable[[RecordedRequest], Turn]


class Stage:
    """One fake and its model; agents made here speak to it."""

    def __init__(self, turns: Turns = (), *, window: int = 200_000, **fake: Any) -> None:
        self.fake = FakeAnthropic(turns, **fake)
        self._window = window
        self.events: list[AgentEvent] = []
        self.journal = MemoryJournal()
        self.models: list[AnthropicModel] = []

    def model(self, name: str = MODEL, **options: Any) -> AnthropicModel:
        options = {"context_window": self._window, "max_output_tokens": 1_000} | options
        made = AnthropicModel(name, base_url=self.fake.base_url, api_key="k", **options)
        self.models.append(made)
        return made

    def agent(self, **options: Any) -> Agent[Any]:
        if "model" not in options:
            options["model"] = self.model()
        return Agent(options.pop("name", "tester"), **({"model_retry": QUICK} | options))

    async def run(self, agent: Agent[Any], goal: Any = "Go.", **options: Any) -> AgentResult[Any]:
        """Run it; whatever it leaves has to be a conversation that can go on."""
        given = {"on_event": self.events.append, "journal": self.journal} | options
        result = await agent.run(goal, **given)
        if result.state.answer is None and result.state.messages:
            can_go_on(agent, result.state)
        for request in self.fake.requests:
            assert request.status != 400, request.error
        return result

    @property
    def entries(self) -> list[Entry]:
        return self.journal.entries

    def named(self, name: str) -> list[AgentEvent]:
        return [event for event in self.events if event.name == name]

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    async def __aenter__(self) -> Self:
        await self.fake.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for model in self.models:
            await model.close()
        await self.fake.__aexit__(kind, exc, trace)


@dataclass
class Played:
    """A run that has ended."""

    result: AgentResult[Any]
    stage: Stage
    agent: Agent[Any]

    @property
    def requests(self) -> list[RecordedRequest]:
        return self.stage.fake.requests

    @property
    def reason(self) -> str:
        return self.result.stop_reason

    def results(self, request: int) -> dict[str, Any]:
        """The results in the last message of that request."""
        return self.requests[request].tool_results

    def said(self, request: int) -> str:
        """All texts of the last message of that request, those in results too."""
        return said(self.requests[request].messages[-1])


def play(turns: Turns, goal: Any = "Go.", *, window: int = 200_000, **options: Any) -> Played:
    """Run an agent once; ``run`` and ``fake`` hold options of the run and of the fake."""

    async def go() -> Played:
        given, of_fake = options.pop("run", {}), options.pop("fake", {})
        async with Stage(turns, window=window, **of_fake) as stage:
            agent = stage.agent(**options)
            return Played(await stage.run(agent, goal, **given), stage, agent)

    return asyncio.run(go())


def can_go_on(agent: Agent[Any], state: State) -> ModelRequest:
    """Return the request that a person's next words lead to, which the API has to take."""
    from treadle.worker.agent.core.entries import Heard

    heard = Heard(source="follow_up", content=[{"type": "text", "text": "And now?"}])
    request = build_request(agent.spec, fold(state, [heard]), "turn")
    validate_request(request)
    return request


def said(message: dict[str, Any]) -> str:
    texts: list[str] = []
    for block in message["content"]:
        inner = block.get("content", block.get("text", ""))
        if isinstance(inner, list):
            texts += [str(each.get("text", "")) for each in inner]
        else:
            texts.append(str(inner))
    return "\n".join(texts)


def blocks(request: RecordedRequest, kind: str) -> list[dict[str, Any]]:
    """All blocks of a kind in the conversation of the request, without cache markers."""
    return [
        {key: value for key, value in block.items() if key != "cache_control"}
        for message in request.messages
        for block in message["content"]
        if block["type"] == kind
    ]


@dataclass
class Log:
    """What tools have done, in order."""

    lines: list[Any] = field(default_factory=list)

    def __call__(self, line: Any) -> None:
        self.lines.append(line)

    def count(self, line: Any) -> int:
        return self.lines.count(line)


async def until(condition: Callable[[], object], within_s: float = 5.0) -> None:
    """Wait for a condition, with a bound."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.002)


def kinds(entries: Sequence[Entry]) -> list[str]:
    return [type(entry).__name__ for entry in entries]
