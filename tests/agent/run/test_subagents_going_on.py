"""Whatever a family of agents does: a run cut anywhere goes on to the same end, in the same rounds.

Hypothesis makes the family; each run is driven as the durable loop does it, a driver for each
iteration, and cut after every batch that its journal stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from treadle.worker.agent.agent import Agent
from treadle.worker.agent.core import nested
from treadle.worker.agent.core.budget import Budget, Counters
from treadle.worker.agent.core.conversation import ModelRequest, ModelResponse, Usage
from treadle.worker.agent.core.entries import Answered, Entry, Nested, Settled
from treadle.worker.agent.core.rules import validate_request
from treadle.worker.agent.core.state import State, apply, fold
from treadle.worker.agent.driving import Driver
from treadle.worker.agent.events import Emitter
from treadle.worker.agent.ledger import RunLedger
from treadle.worker.agent.ports import Letter, Reply
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import tool

Json = dict[str, Any]
Path = tuple[str, ...]
ITERATIONS_MAX = 1_000
"""Far beyond what the budgets leave; 93 were seen of an agent that asks in each of its turns."""
NAMES = ("lead", "middle", "leaf")
_entries = msgspec.json.Decoder(list[Entry])


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@dataclass(frozen=True, eq=False)
class Script:
    """What each agent calls in its first answers, and their budgets."""

    calls: dict[str, tuple[tuple[str, ...], ...]]
    budgets: dict[str, Budget]


@dataclass
class Family:
    """One run of a script, its batches with the iteration in which each was stored."""

    script: Script
    batches: list[tuple[int, tuple[Entry, ...]]] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    iteration: int = 0
    asked: int = 0
    ran: list[str] = field(default_factory=list)

    async def append(self, entries: Sequence[Entry]) -> None:
        stored = _entries.decode(msgspec.json.encode(list(entries)))
        self.batches.append((self.iteration, tuple(stored)))

    def cut(self, after: int) -> Family:
        """Return the run as it stood when so many batches were stored."""
        batches = self.batches[:after]
        entries = sum(len(batch) for _, batch in batches)
        letters = [letter for letter in self.letters if letter.sequence < 1_000 * (entries + 1)]
        return Family(self.script, list(batches), letters)

    async def take(self, after: int) -> Sequence[Letter]:
        return [letter for letter in self.letters if letter.sequence > after]

    @property
    def stored(self) -> list[Entry]:
        return [entry for _, batch in self.batches for entry in batch]

    def agent(self, name: str = "lead") -> Agent[Any]:
        below = {"lead": ["middle", "leaf"], "middle": ["leaf"], "leaf": []}[name]
        return Agent(
            name,
            model=Model(self, name),
            instructions=name,
            description=f"The {name}.",
            tools=[read, pay],
            subagents=[self.agent(each) for each in below],
            ask_human=True,
            budget=self.script.budgets[name],
        )

    async def run(self) -> State:
        """Drive from what is stored to the end, an iteration at a time."""
        agent = self.agent()
        equipment = agent.equipment(run="r", step="s", deps=self.ran)
        self.iteration = self.batches[-1][0] if self.batches else 0
        for _ in range(ITERATIONS_MAX):
            state = fold(State(), self.stored)
            if state.stopped is not None or state.ended_iteration != self.iteration:
                ledger = RunLedger(state, self)
                emitter = Emitter(None, lambda: 0)
                given: Json = {"iteration": self.iteration, "is_retried": True}
                driver = Driver(equipment, ledger, self, emitter, lambda: 0, **given)
                if not state.entries:
                    await driver.open(agent.opened("Do it.", 0))
                reached = await driver.turn()
                assert fold(State(), self.stored) == reached.state
                if reached.where == "stopped":
                    return reached.state
                if reached.where == "waiting":
                    self.decide(reached.state)
            self.iteration += 1
        raise AssertionError("the run does not end")

    def decide(self, state: State) -> None:
        """Answer the first call that waits, wherever it is."""
        calls = nested.waiting(state)
        assert calls
        call = calls[0]
        verdict: Any = "answer" if call.decision == "question" else "approve"
        given: Json = {"call_id": call.id, "verdict": verdict, "args_hash": call.args_hash}
        sequence = 1_000 * len(self.stored) + len(self.letters)
        self.letters.append(Letter(sequence=sequence, kind="reply", reply=Reply(**given)))


@dataclass(frozen=True, eq=False)
class Model:
    """Answers by the agent, its task and how often it has answered: whoever else is at work."""

    family: Family
    agent: str
    provider: str = "test"
    name: str = "scripted"
    max_output_tokens: int = 200
    context_window: int = 200_000

    async def respond(self, request: ModelRequest, **_: Any) -> ModelResponse:
        validate_request(request)
        self.family.asked += 1
        n = sum(message["role"] == "assistant" for message in request.messages)
        calls = self.family.script.calls[self.agent]
        content: list[Json] = [{"type": "text", "text": f"{self.agent} has ended."}]
        if n < len(calls) and (request.tool_choice or {}).get("type") != "none":
            content = [self._use(n, index, name) for index, name in enumerate(calls[n])]
        for _ in range(len(self.agent)):
            await asyncio.sleep(0)  # The agents interleave.
        stop_reason = "tool_use" if content[0]["type"] == "tool_use" else "end_turn"
        usage = Usage(input_tokens=7, output_tokens=3)
        return ModelResponse(content=content, stop_reason=stop_reason, usage=usage)

    def _use(self, n: int, index: int, name: str) -> Json:
        given: Json = {"n": 10 * n + index}
        if name in NAMES:
            given = {"task": f"Task {n} {index}."}
        if name == "ask_human":
            given = {"question": "Which?"}
        return {"type": "tool_use", "id": f"c{n}_{index}", "name": name, "input": given}

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return None

    async def close(self) -> None:
        return None


@tool(idempotent=True, max_attempts=1)
async def read(ctx: ToolContext[list[str]], n: int) -> str:
    """Read."""
    ctx.deps.append(ctx.idempotency_key)
    return f"read {n}"


@tool(requires_approval=True)
async def pay(ctx: ToolContext[list[str]], n: int) -> str:
    """Pay."""
    ctx.deps.append(ctx.idempotency_key)
    return f"paid {n}"


# ------------------------------------------------------------------ what is looked at


def flat(entries: Sequence[Entry], path: Path = ()) -> Iterator[tuple[Path, Entry]]:
    """Yield the entries of all agents, each with the calls that lead to it."""
    for entry in entries:
        if isinstance(entry, Nested):
            yield from flat([entry.entry], (*path, entry.call_id))
        else:
            yield path, entry


OWN = {"ask_human", "final_output"}
"""Acts on nothing but the run itself, so it is no call that counts."""


def counted(entries: Sequence[Entry]) -> Counters:
    """Count what the entries of all agents say was used."""
    used = Counters()
    for _, entry in flat(entries):
        if isinstance(entry, Answered):
            used += Counters(steps=1, usage=entry.usage)
        if isinstance(entry, Settled) and entry.result.attempts and entry.result.name not in OWN:
            used += Counters(tool_calls=entry.result.status not in ("refused", "skipped"))
    return used


def settled_keys(entries: Sequence[Entry]) -> set[str]:
    return {
        f"r:{'/'.join(('s', *path))}:{entry.result.id}"
        for path, entry in flat(entries)
        if isinstance(entry, Settled)
    }


def outcome(state: State) -> Any:
    """Return what has to be the same, whenever the agents' turns fell."""
    stopped = state.stopped
    assert stopped is not None and state.children == {}
    return stopped.reason, stopped.text, state.used, list(state.messages)


# ------------------------------------------------------------------ strategies

_budgets = st.builds(
    Budget,
    max_steps=st.sampled_from([4, 9, 30]),
    max_tool_calls=st.sampled_from([0, 0, 5]),
    max_total_tokens=st.sampled_from([0, 0, 80]),
)


def _answers(*names: str) -> st.SearchStrategy[tuple[tuple[str, ...], ...]]:
    answer = st.lists(st.sampled_from(names), min_size=1, max_size=3).map(tuple)
    return st.lists(answer, max_size=2).map(tuple)


scripts = st.builds(
    Script,
    calls=st.fixed_dictionaries(
        {
            "lead": _answers("middle", "middle", "leaf", "leaf", "read", "pay", "ask_human"),
            "middle": _answers("leaf", "leaf", "read", "pay", "nothing"),
            "leaf": _answers("read", "read", "pay", "ask_human"),
        }
    ),
    budgets=st.fixed_dictionaries(dict.fromkeys(NAMES, _budgets)),
)


@pytest.mark.slow
@settings(
    max_examples=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(scripts, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=2))
def test_a_family_cut_after_any_stored_batch_goes_on_to_the_same_end(
    script: Script, places: list[float]
) -> None:
    async def go() -> None:
        whole = Family(script)
        end = outcome(await whole.run())
        assert whole.asked == counted(whole.stored).steps
        assert len(whole.ran) == len(set(whole.ran))
        for cut in {1 + int(place * len(whole.batches)) for place in places}:
            family = whole.cut(cut)
            known, before = counted(family.stored).steps, settled_keys(family.stored)
            assert outcome(await family.run()) == end, f"cut after batch {cut}"
            assert family.asked == counted(family.stored).steps - known
            assert not before.intersection(family.ran), "a settled call ran again"

    asyncio.run(go())


@settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(scripts)
def test_the_counters_of_every_prefix_are_the_sum_over_all_agents(script: Script) -> None:
    async def go() -> None:
        family = Family(script)
        end = await family.run()
        state, budget = State(), script.budgets["lead"]
        for index, entry in enumerate(family.stored):
            state = apply(state, entry)
            assert state.used == counted(family.stored[: index + 1])
        assert state == end
        # The bounds on turns and calls hold to the last one, the wrapping-up answer aside.
        assert state.used.steps <= budget.max_steps + 1
        assert not budget.max_tool_calls or state.used.tool_calls <= budget.max_tool_calls

    asyncio.run(go())


@settings(
    max_examples=30,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(scripts)
def test_an_iteration_holds_at_most_one_model_call_of_each_agent(script: Script) -> None:
    async def go() -> None:
        family = Family(script)
        await family.run()
        calls = Counter(
            (iteration, path)
            for iteration, batch in family.batches
            for path, entry in flat(batch)
            if isinstance(entry, Answered)
        )
        assert max(calls.values()) == 1
        # Nor does a call of an agent follow on that of one above it.
        for iteration, path in calls:
            assert not any((iteration, path[:depth]) in calls for depth in range(len(path)))

    asyncio.run(go())
