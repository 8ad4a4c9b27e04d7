"""Runs a case: the agent as it is, in a mocked world, checked along its whole way.

The run is then repeated from every saved state, as if its worker had died there: a repetition
has to go the same way to the same end, and must not run what has run already.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from treadle.sdk.asks import Reply
from treadle.worker.agent.agent import Agent
from treadle.worker.agent.core.budget import Counters
from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.core.entries import Entry, Settled
from treadle.worker.agent.equipment import Equipment
from treadle.worker.agent.evals.case import Case
from treadle.worker.agent.evals.checking import check
from treadle.worker.agent.evals.diffing import diff
from treadle.worker.agent.evals.mocks import MockedWorld, mocked_agent
from treadle.worker.agent.evals.scripts import RecordedModel, ScriptedModel
from treadle.worker.agent.evals.stage import Quiet, Stage, clock_of, drive, limits_in, said_in
from treadle.worker.agent.evals.trajectory import Trajectory, trajectory
from treadle.worker.agent.events import AgentEvent
from treadle.worker.agent.models.retrying import RetryPolicy
from treadle.worker.agent.ports import now_ms
from treadle.worker.agent.tools.rendering import error_text


class CaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a case."""

    case: Case
    failures: tuple[str, ...] = ()
    """What is not as expected, each as a sentence."""
    trajectory: Trajectory
    entries: list[Entry] = []
    """The journal of the run: ``record`` makes a cassette of it."""
    used: Counters = Counters()
    duration_ms: int = 0
    """Of the run, without its repetitions."""
    replays: int = 0
    """Repetitions, one from each saved state."""
    replays_ok: int = 0

    @property
    def passed(self) -> bool:
        """True if all is as expected."""
        return not self.failures

    @property
    def stop_reason(self) -> str:
        """Why the run stopped."""
        return self.trajectory.stop_reason


async def run_case(
    agent: Agent[Any], case: Case, *, deps: Any = None, replay: bool = True
) -> CaseResult:
    """Run the agent on a case and check what it did; never raises for what the agent does.

    No tool of the agent is called: their functions are mocked, their schemas and rules stay.
    ``deps`` is for hooks and evidence predicates. ``replay=False`` leaves out the repetitions.
    """
    names = _Names(agent)
    if problems := names.problems(case):
        return CaseResult(case=case, failures=tuple(problems), trajectory=trajectory(()))
    world = MockedWorld({names.of(tool): each for tool, each in case.mocked_tools.items()})
    stage = Stage(answer=_scripted_replies(case, names))
    equipment = _equipment(agent, case, world, names, deps)
    events: set[str] = set()

    def on_event(event: AgentEvent) -> None:
        events.add(event.name)

    began_s = time.monotonic()
    broken = ""
    try:
        await drive(
            equipment,
            stage,
            Quiet(on_event, now_ms),
            now_ms,
            begin=lambda driver: driver.open(agent.opened(case.goal, now_ms())),
        )
    except Exception as exc:  # noqa: BLE001 — hooks and evidence are users' code; a suite goes on
        broken = f"the run broke off: {error_text(exc)}"
    duration_ms = round((time.monotonic() - began_s) * 1000)
    found, used = trajectory(stage.entries), stage.state.used
    failures = [broken] if broken else []
    failures += [f"{name} was called, and has no mocked result" for name in sorted(world.unmocked)]
    failures += check(
        case.expected, found, tool_calls=used.tool_calls, events=events, tool_name=names.of
    )
    replays = _Replays(agent, equipment, stage, world)
    if replay and not broken:
        failures += await replays.run()
    return CaseResult(
        case=case,
        failures=tuple(failures),
        trajectory=found,
        entries=stage.entries,
        used=used,
        duration_ms=duration_ms,
        replays=replays.count,
        replays_ok=replays.ok,
    )


def _equipment(
    agent: Agent[Any], case: Case, world: MockedWorld, names: _Names, deps: Any
) -> Equipment:
    real = agent.equipment()
    changes: dict[str, Any] = {
        "deps": deps,
        "run": case.case_id,
        "step": agent.name,
        "tool_sleep": _no_wait,
        **mocked_agent(agent, world),
    }
    if case.model is not None:
        changes |= {
            "model": ScriptedModel(case.model, real.model, tool_name=names.of),
            "models": {},
            "summary_model": None,
            "model_retry": msgspec.structs.replace(real.model_retry, first_delay_s=0.0),
            "stream": False,
        }
    return agent.equipment(**changes)


async def _no_wait(wait_s: float) -> None:
    """The mocked world is ready again at once."""
    del wait_s
    await asyncio.sleep(0)


def _scripted_replies(case: Case, names: _Names) -> Callable[[ToolCall], Reply | None]:
    replies = {names.of(tool): reply for tool, reply in case.replies.items()}

    def answer(call: ToolCall) -> Reply | None:
        scripted = replies.get(call.name)
        if scripted is None:
            return None
        return Reply(
            call_id=call.id,
            verdict=scripted.verdict,
            args_hash=call.args_hash,
            input=scripted.input,
            text=scripted.text,
            by="script",
        )

    return answer


class _Names:
    """How a case spells the agent's tools."""

    def __init__(self, agent: Agent[Any]) -> None:
        self._known = {spec.name for spec in agent.spec.tools}
        self._mockable = {*agent.tools, *agent.subagents}

    def of(self, name: str) -> str:
        """Return the agent's spelling; an unknown name as it is."""
        if name in self._known:
            return name
        plain = name.replace(".", "_")
        return plain if plain in self._known else name

    def problems(self, case: Case) -> list[str]:
        """Return which names of the case stand for nothing."""
        has = ", ".join(sorted(self._mockable)) or "none"
        found = [
            f"mocked_tools: the agent has no tool {name!r} (it has: {has}). Correct the name"
            for name in case.mocked_tools
            if self.of(name) not in self._mockable
        ]
        found += [
            f"replies: the agent has no tool {name!r}. Correct the name"
            for name in case.replies
            if self.of(name) not in self._known
        ]
        return found


# ------------------------------------------------------------------ repetitions


class _Replays:
    """The run again, from each saved state."""

    def __init__(
        self, agent: Agent[Any], equipment: Equipment, stage: Stage, world: MockedWorld
    ) -> None:
        self._agent = agent
        self._equipment = equipment
        self._batches = stage.batches
        self._entries = stage.entries
        self._world = world
        self.count = 0
        self.ok = 0

    async def run(self) -> list[str]:
        """Repeat the run from each saved state; return what went another way."""
        failures: list[str] = []
        for saved in range(1, len(self._batches)):
            before = [entry for batch in self._batches[:saved] for entry in batch]
            problem = await self._from(before)
            self.count += 1
            self.ok += not problem
            if problem:
                failures.append(f"replay from saved state {saved}: {problem}")
        return failures

    async def _from(self, before: list[Entry]) -> str:
        world = self._world.again()
        stage = Stage(before=before, said=said_in(self._entries), answer=_go_on)
        equipment = self._changed(world, before)
        clock = clock_of(self._entries, stage)
        try:
            await drive(
                equipment,
                stage,
                Quiet(None, clock),
                clock,
                limits=limits_in(self._entries),
            )
        except Exception as exc:  # noqa: BLE001 — as in the run itself
            return f"it broke off: {error_text(exc)}"
        return _problem(self._entries, before, stage.entries, world)

    def _changed(self, world: MockedWorld, before: list[Entry]) -> Equipment:
        real = self._agent.equipment()
        return self._agent.equipment(
            deps=self._equipment.deps,
            run=self._equipment.run,
            step=self._equipment.step,
            tool_sleep=_no_wait,
            **mocked_agent(self._agent, world),
            model=RecordedModel(self._entries, real.model, after=before),
            models={},
            summary_model=None,
            model_retry=RetryPolicy(retries=0, malformed_retries=0),
            stream=False,
        )


def _go_on(call: ToolCall) -> Reply | None:
    """Let a call run that was cut off: in the mocked world it is certain that it had no effect."""
    if call.decision != "uncertain":
        return None
    return Reply(call_id=call.id, verdict="approve", args_hash=call.args_hash, by="replay")


def _problem(
    original: list[Entry], before: list[Entry], replayed: list[Entry], world: MockedWorld
) -> str:
    settled = {entry.result.id for entry in before if isinstance(entry, Settled)}
    if twice := sorted(settled.intersection(world.calls)):
        return f"calls ran again whose results were saved: {', '.join(twice)}"
    return "; ".join(map(str, diff(original, replayed)))
