"""Sub-agents in evaluations: mocked like tools, and no model is asked for them.

Method: a case with scripted results, and a run with a real sub-agent, recorded and replayed.
"""

from __future__ import annotations

import asyncio

from tests.agent.evals.stages import DONE, OK, agent, calls, reads, run
from tests.agent.run.family import agent as member
from tests.agent.run.family import asked, family, find, two
from tests.agent.run.stage import Stage

from treadle.worker.agent import Agent
from treadle.worker.agent.evals import diff, record, replay, trajectory


def test_a_case_scripts_what_a_sub_agent_comes_to() -> None:
    carrier = Agent("carrier", model="anthropic:claude-none", description="Asks the carrier.")
    result = run(
        agent(subagents=[carrier]),
        mocked_tools={"read_order": [OK], "carrier": [{"status": "ok", "output": "It was late."}]},
        model=[reads(), calls("carrier", task="Was O-1 late?"), DONE],
        expected={
            "stop_reason": "completed",
            "max_tool_calls": 2,
            "evidence": [{"tool": "carrier", "contains": "late"}],
        },
    )
    assert result.passed, result.failures
    assert result.replays == result.replays_ok > 3


def test_a_sub_agent_without_a_scripted_result_is_not_run() -> None:
    carrier = Agent("carrier", model="anthropic:claude-none", description="Asks the carrier.")
    result = run(agent(subagents=[carrier]), model=[calls("carrier", task="Was O-1 late?"), DONE])
    assert "carrier was called, and has no mocked result" in result.failures


def test_a_recorded_run_with_sub_agents_replays_without_them() -> None:
    async def go() -> None:
        async with Stage(family(lead=two, search=find)) as stage:
            lead = member(stage, "lead", subagents=[member(stage, "search")])
            result = await stage.run(lead)
            requests = stage.fake.count
            assert len(asked(stage, "search")) == 2
            cassette = record(stage.entries)
            replayed = await replay(lead, cassette)
            assert stage.fake.count == requests
            assert not diff(cassette, replayed)
            assert trajectory(replayed).stop_reason == result.stop_reason

    asyncio.run(go())
