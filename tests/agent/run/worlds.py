"""Worlds for the property of going on: a model, tools and people, all scripted, nothing random.

A world answers the n-th question the same however often it is asked, so that a run which was cut
anywhere and went on can be compared with the one that was not.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import strategies as st

from treadle.sdk.asks import Reply
from treadle.worker.agent.agent import Agent
from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.compaction import CompactionPolicy
from treadle.worker.agent.core.conversation import ModelRequest, ModelResponse, Usage
from treadle.worker.agent.core.entries import Answered, Entry, Stopped
from treadle.worker.agent.core.rules import validate_request
from treadle.worker.agent.core.state import State, fold
from treadle.worker.agent.driving import Driver
from treadle.worker.agent.equipment import Equipment
from treadle.worker.agent.events import Emitter
from treadle.worker.agent.ledger import RunLedger
from treadle.worker.agent.ports import Letter
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import tool

Json = dict[str, Any]
TURNS_MAX = 60
_entries = msgspec.json.Decoder(list[Entry])


@dataclass(frozen=True, eq=False)
class Script:
    """What the model answers, when people speak, and the bounds of the agent."""

    answers: tuple[tuple[list[Json], str], ...]
    steering: frozenset[int]
    follow_ups: frozenset[int]
    typed: bool
    budget: Budget
    window: int


@dataclass
class World:
    """One run of a script, its journal in batches as they were stored."""

    script: Script
    batches: list[tuple[Entry, ...]] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    asked: int = 0
    """Questions to the model in this process."""
    ran: list[str] = field(default_factory=list)
    """Calls that ran in this process, by id."""

    # -------------------------------------------------------- the journal and the inbox

    async def append(self, entries: Sequence[Entry]) -> None:
        raw = msgspec.json.encode(list(entries))
        self.batches.append(tuple(_entries.decode(raw)))

    async def take(self, after: int) -> Sequence[Letter]:
        """What people say depends on what they have read, and on nothing else."""
        said = [
            Letter(sequence=1_000 * (index + 1) + number, kind=kind, text=f"{kind} {index}")
            for index in range(self.answered)
            for number, (kind, at) in enumerate(
                (("steer", self.script.steering), ("follow_up", self.script.follow_ups))
            )
            if index in at
        ]
        letters: list[Letter] = [*said, *self.letters]
        return [letter for letter in letters if letter.sequence > after]

    @property
    def stored(self) -> list[Entry]:
        return [entry for batch in self.batches for entry in batch]

    @property
    def answered(self) -> int:
        return sum(isinstance(entry, Answered) for entry in self.stored)

    def decide(self, calls: Sequence[ToolCall]) -> None:
        """Answer all that people are asked; of an uncertain call it is known that it took place."""
        for call in calls:
            n = call.input.get("n", 0)
            if call.decision == "uncertain":
                reply = Reply(call_id=call.id, verdict="answer", text=f"wrote {n}")
            elif call.decision == "question":
                reply = Reply(call_id=call.id, verdict="answer", text="as you like")
            else:
                verdict = "approve" if n % 2 else "reject"
                reply = Reply(call_id=call.id, verdict=verdict, args_hash=call.args_hash)
            # Letters arrive in their order: after what was said about the answers so far.
            sequence = 1_000 * self.answered + 10 + len(self.stored) + len(self.letters)
            self.letters.append(Letter(sequence=sequence, kind="reply", reply=reply))

    # -------------------------------------------------------- the model

    provider = "test"
    name = "scripted"
    max_output_tokens = 200

    @property
    def context_window(self) -> int:
        return self.script.window

    async def respond(self, request: ModelRequest, **_: Any) -> ModelResponse:
        is_paused = bool(self.stored) and _last_answer(self.stored).stop_reason == "pause_turn"
        validate_request(request, continues=is_paused)
        if "You summarise" in str(request.system):
            content = [{"type": "text", "text": "## Done\nthis\n## Next action\nthat"}]
            return ModelResponse(content=content, stop_reason="end_turn", usage=Usage())
        self.asked += 1
        n = self.answered
        answers = self.script.answers
        end = ([{"type": "text", "text": f"the end at {n}"}], "end_turn")
        content, stop_reason = answers[n] if n < len(answers) else end
        if n >= len(answers) and self.script.typed:
            use = {"type": "tool_use", "id": f"end{n}", "name": "final_output"}
            content, stop_reason = [{**use, "input": {"result": n}}], "tool_use"
        chars = len(msgspec.json.encode(request.messages))
        usage = Usage(input_tokens=chars // 4, output_tokens=10 * len(content))
        return ModelResponse(content=content, stop_reason=stop_reason, usage=usage)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        return None

    async def close(self) -> None:
        return None

    # -------------------------------------------------------- the agent

    async def run(self) -> State:
        """Drive from what is stored to the end."""
        agent, base = _equipped(self.script)
        equipment = dataclasses.replace(base, model=self, deps=self.ran)
        state = fold(State(), self.stored)
        emitter = Emitter(None, lambda: 0)
        driver = Driver(equipment, RunLedger(state, self), self, emitter, lambda: 0)
        if not state.entries:
            await driver.open(agent.opened("Do it.", 0))
        for _ in range(TURNS_MAX):
            reached = await driver.turn()
            if reached.where == "stopped":
                assert fold(State(), self.stored) == reached.state
                return reached.state
            if reached.where == "waiting":
                asking = reached.state.asking
                waiting = [c for c in reached.state.open_calls if c.id in asking]
                assert waiting
                self.decide(waiting)
        raise AssertionError("the run does not end")


@tool(idempotent=True, max_attempts=1)
async def read(ctx: ToolContext[list[str]], n: int) -> str:
    """Read; every fifth page is missing."""
    ctx.deps.append(ctx.call_id)
    if n % 5 == 0:
        raise LookupError(f"no page {n}")
    return f"read {n} " + "x" * 300


@tool
async def write(ctx: ToolContext[list[str]], n: int) -> str:
    """Write."""
    ctx.deps.append(ctx.call_id)
    return f"wrote {n}"


@tool(requires_approval=True)
async def pay(ctx: ToolContext[list[str]], n: int) -> str:
    """Pay."""
    ctx.deps.append(ctx.call_id)
    return f"wrote {n}"


@functools.lru_cache(maxsize=1)
def _equipped(script: Script) -> tuple[Agent[Any], Equipment]:
    agent: Agent[Any] = Agent(
        "scripted",
        model=World(script),
        tools=[read, write, pay],
        output_type=int if script.typed else str,
        ask_human=True,
        budget=script.budget,
        compaction=CompactionPolicy(keep=4, deep_keep=2),
    )
    return agent, agent.equipment(run="r", step="s")


def _last_answer(entries: Sequence[Entry]) -> Answered:
    answers = [entry for entry in entries if isinstance(entry, Answered)]
    return (
        answers[-1]
        if answers
        else Answered(purpose="turn", content=[], stop_reason="", usage=Usage())
    )


def outcome(state: State) -> Any:
    """Return what has to be the same, ids by their order."""
    stopped = state.stopped
    assert isinstance(stopped, Stopped)
    names: dict[str, str] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: names.setdefault(str(item), f"id{len(names)}")
                if key in ("id", "tool_use_id")
                else plain(item)
                for key, item in value.items()
            }
        return [plain(item) for item in value] if isinstance(value, list) else value

    messages = plain(list(state.messages))
    ended = (stopped.reason, bytes(stopped.output), stopped.text, state.used, state.turn)
    return ended, messages, state.journal, state.watch.ladder


# ------------------------------------------------------------------ strategies

_numbers = st.integers(0, 6)
_calls = st.one_of(
    st.builds(
        lambda name, n: (name, {"n": n}), st.sampled_from(["read", "write", "pay"]), _numbers
    ),
    st.builds(lambda name, n: (name, {"n": n}), st.sampled_from(["read", "write"]), _numbers),
    st.sampled_from(
        [
            ("read", {"n": "one"}),
            ("nothing", {}),
            ("ask_human", {"question": "Which?"}),
            ("update_run_journal", {"objective": "all of it"}),
            ("append_run_journal_entry", {"section": "blockers", "entry": "none"}),
            ("final_output", {"result": 7}),
            ("final_output", {"result": "seven"}),
        ]
    ),
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[Json], str]:
    """One answer of the model: mostly calls, at times something odd."""
    content: list[Json] = []
    if draw(st.booleans()):
        content.append({"type": "text", "text": draw(st.sampled_from(["well", "hm", " "]))})
    for name, given_input in draw(st.lists(_calls, max_size=3)):
        id = draw(st.sampled_from(["same", "other"]) | st.uuids(version=4).map(lambda u: u.hex))
        content.append({"type": "tool_use", "id": id, "name": name, "input": given_input})
    whole = "tool_use" if any(each["type"] == "tool_use" for each in content) else "end_turn"
    odd = ["max_tokens", "pause_turn", "refusal", "model_context_window_exceeded", "brand_new"]
    stop_reason = draw(st.sampled_from([whole] * 12 + odd))
    if stop_reason == "pause_turn":
        content = [each for each in content if each["type"] == "text"]
    return content, stop_reason


budgets = st.builds(
    Budget,
    max_steps=st.sampled_from([2, 5, 12, 30]),
    max_tool_calls=st.sampled_from([0, 0, 3, 8]),
    max_total_tokens=st.sampled_from([0, 0, 0, 6_000]),
)
scripts = st.builds(
    Script,
    answers=st.lists(answers(), max_size=9).map(tuple),
    steering=st.frozensets(st.integers(0, 8), max_size=2),
    follow_ups=st.frozensets(st.integers(0, 8), max_size=1),
    typed=st.booleans(),
    budget=budgets,
    window=st.sampled_from([2_500, 200_000]),
)
