"""The plan workflow from request to result: four agents, one after another.
Method: a real server, engine and worker in this process, a strict fake behind the real adapter."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel
from tests.agent.plan import stage
from tests.agent.plan.stage import answers_in, goal_in, phase_of, plan_workflow, playing, verdict

from treadle.sdk.client import RunHandle
from treadle.sdk.client.view import RunView
from treadle.sdk.errors import RunCancelled, RunFailed, UserError
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import Worker
from treadle.worker.agent import Agent, Budget, Policy
from treadle.worker.agent.core.watch import OWN_TOOLS
from treadle.worker.agent.events import AgentEvent
from treadle.worker.agent.mcp import McpServer
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.plan import Prompts
from treadle.worker.agent.testing import (
    FakeAnthropic,
    Gate,
    RecordedRequest,
    Turn,
    stall_after,
    text,
    tool_use,
    turn,
)

pytestmark = pytest.mark.slow

Play = Callable[[RecordedRequest], Turn]
Story = Callable[[RunHandle, FakeAnthropic], Awaitable[Any]]
FIX = verdict("NEEDS_FIX", "The flag is not documented.")
DONE = verdict("DONE")
GARBAGE = turn(text('Looks good to me! {"verdict": "DONE"}'))
WITHIN_S = 40


class Played(NamedTuple):
    """What came of a run."""

    result: Any
    failed: RunFailed | None
    view: RunView
    fake: FakeAnthropic
    events: list[AgentEvent]

    def iterations(self, step: str) -> int:
        return self.view.step(step).iterations

    @property
    def phases(self) -> list[str]:
        """The conversations in order, each by its phase."""
        return [phase_of(each) for each in self.fake.requests if answers_in(each) == 0]


@pytest.fixture
def played(settings: Settings) -> Callable[..., Played]:
    """Run the workflow against a model that plays like this, on a real server."""

    def run(
        play: Play, request: Any = stage.REQUEST, story: Story | None = None, **options: Any
    ) -> Played:
        stage.WRITTEN.clear()
        with FakeAnthropic(play) as fake:
            found = asyncio.run(_played(settings, fake, request, story, options))
        assert [each.error for each in fake.requests if each.status == 400] == []
        return found

    return run


async def _played(
    settings: Settings, fake: FakeAnthropic, request: Any, story: Story | None, options: Any
) -> Played:
    model = AnthropicModel("claude-test", base_url=fake.base_url, api_key="k")
    plan = plan_workflow(model, **options)
    worker = Worker()
    plan.register(worker, on_event=lambda _: events.append)
    place = {"url": settings.url, "namespace": settings.namespace}
    result: Any = None
    failed: RunFailed | None = None
    events: list[AgentEvent] = []
    async with local(worker, workflows=[plan.workflow], **place) as client:
        run = await client.start("change", request)
        async with asyncio.timeout(WITHIN_S):
            if story is not None:
                await story(run, fake)
            try:
                result = await run.result()
            except RunFailed as exc:
                failed = exc
            view = await run.get()
    await model.close()
    return Played(result, failed, view, fake, events)


def test_work_that_passes_its_review_is_done_at_once(played: Callable[..., Played]) -> None:
    run = played(playing([DONE]))
    begun = [each.fields.get("phase") for each in run.events if each.name == "agent_run.started"]
    assert begun == run.phases
    assert run.result == {
        "verdict": "DONE",
        "reviews": 1,
        "summary": "DONE!",
        "findings": [],
        "work": "Account of cycle 1.",
        "plan": "PLANNED it",
    }
    assert run.phases == ["explore", "plan", "implement", "review"]
    assert [run.iterations(step) for step in ("explore", "plan", "build")] == [2, 2, 4]


def test_a_review_that_wants_a_fix_gets_one_and_looks_again(played: Callable[..., Played]) -> None:
    run = played(playing([FIX, DONE]))
    assert (run.result["verdict"], run.result["reviews"]) == ("DONE", 2)
    assert run.phases == ["explore", "plan", *["implement", "review"] * 2]
    second = [each for each in run.fake.requests if phase_of(each) == "implement"][2]
    assert "- The flag is not documented." in goal_in(second)
    assert "Account of cycle 1." in goal_in(second)
    assert stage.WRITTEN == ["c0", "c1"]


@pytest.mark.parametrize("review", [FIX, GARBAGE])
def test_work_that_is_never_done_ends_at_the_bound(
    played: Callable[..., Played], review: Turn
) -> None:
    run = played(playing([review] * 2))
    assert run.failed is not None
    assert (run.failed.step, run.failed.failure.type) == ("build", "needs_fix")
    assert "not done after 2 of 2 reviews" in run.failed.failure.message
    assert Counter(run.phases) == {"explore": 1, "plan": 1, "implement": 2, "review": 2}


def test_a_step_after_the_plan_may_be_given_work_that_is_not_done(
    played: Callable[..., Played],
) -> None:
    run = played(playing([GARBAGE]), max_review_cycles=1, on_needs_fix="complete")
    result = run.result
    assert (result["verdict"], result["reviews"]) == ("NEEDS_FIX", 1)
    assert "Looks good to me!" in "\n".join(result["findings"])


def test_a_phase_sees_of_the_others_only_what_is_carried(played: Callable[..., Played]) -> None:
    run = played(playing([FIX, DONE]))
    carried = {"explore": "FOUND it", "plan": "PLANNED it", "implement": "Account of cycle"}
    for request in run.fake.requests:
        phase, said = phase_of(request), json.dumps(request.messages)
        assert stage.REQUEST in goal_in(request)
        assert ("text of a" in said) <= (phase == "explore")
        assert ("text of b" in said) <= (phase == "plan")
        assert ("wrote x" in said) <= (phase == "implement")
        assert ("3 passed" in said) <= (phase == "review")
        if phase == "review":
            assert carried["plan"] in said and carried["implement"] in said


def test_only_the_implementer_is_offered_tools_that_write(played: Callable[..., Played]) -> None:
    run = played(playing([DONE]))
    offered = {
        phase_of(each): {name for name in each.tool_names if name not in OWN_TOOLS}
        for each in run.fake.requests
    }
    assert offered == {
        "explore": {"read_file"},
        "plan": {"read_file"},
        "implement": {"read_file", "write_file", "run_tests"},
        "review": {"read_file", "run_tests"},
    }


@pytest.mark.parametrize("meddler", ["explore", "plan", "review"])
def test_a_phase_that_only_reads_is_refused_when_it_writes(
    played: Callable[..., Played], meddler: str
) -> None:
    calm = playing([DONE])
    tries = turn(tool_use("write_file", {"path": "evil", "content": "x"}, id="toolu_evil"))

    def play(request: RecordedRequest) -> Turn:
        return tries if (phase_of(request), answers_in(request)) == (meddler, 0) else calm(request)

    run = played(play)
    assert run.result["verdict"] == "DONE"
    assert stage.WRITTEN == ["c0"]
    refusals = [str(each.tool_results.get("toolu_evil")) for each in run.fake.requests]
    assert any("nothing may be changed in this run" in refusal for refusal in refusals)


def test_a_reviewer_that_insists_on_writing_has_given_no_verdict(
    played: Callable[..., Played],
) -> None:
    calm = playing([DONE, DONE])

    def play(request: RecordedRequest) -> Turn:
        if phase_of(request) == "review" and "cycle 1" in goal_in(request):
            path = f"evil{answers_in(request)}"
            return turn(tool_use("write_file", {"path": path, "content": "x"}))
        return calm(request)

    run = played(play)
    assert (run.result["verdict"], run.result["reviews"]) == ("DONE", 2)
    assert stage.WRITTEN == ["c0", "c1"]


def test_an_agents_own_policy_holds_beside_that_of_its_phase(played: Callable[..., Played]) -> None:
    calm = playing([DONE])

    def play(request: RecordedRequest) -> Turn:
        if (phase_of(request), answers_in(request)) == ("review", 0):
            return turn(tool_use("read_file", {"path": "secret"}, id="toolu_read"))
        return calm(request)

    run = played(play, review={"policy": Policy(forbidden={"read_file"})})
    assert run.result["verdict"] == "DONE"
    assert any(
        "forbidden" in str(each.tool_results.get("toolu_read")) for each in run.fake.requests
    )


def test_a_typed_verdict_is_taken_as_it_is(played: Callable[..., Played]) -> None:
    class Review(BaseModel):
        verdict: str
        findings: list[str]

    calm = playing([])

    def play(request: RecordedRequest) -> Turn:
        if phase_of(request) != "review":
            return calm(request)
        word = "NEEDS_FIX" if "cycle 1" in goal_in(request) else "DONE"
        return turn(tool_use("final_output", {"verdict": word, "findings": ["x"]}))

    run = played(play, review={"output_type": Review})
    assert run.result["verdict"] == "DONE"
    assert any("- x" in goal_in(each) for each in run.fake.requests)


def test_what_a_person_says_reaches_the_agent_at_work(played: Callable[..., Played]) -> None:
    heard: set[tuple[str, str]] = set()
    calm, gate = playing([FIX, DONE]), Gate()

    def play(request: RecordedRequest) -> Turn:
        if "Mind the tests." in json.dumps(request.messages):
            heard.add((phase_of(request), goal_in(request)))
        if (phase_of(request), answers_in(request)) == ("review", 0) and not gate.is_open:
            return turn(tool_use("run_tests", {}), fault=stall_after(0, gate=gate))
        return calm(request)

    async def story(run: RunHandle, fake: FakeAnthropic) -> None:
        await asyncio.to_thread(gate.wait_reached, WITHIN_S)
        await run.send("build", "Mind the tests.", id="hint")
        gate.open()

    run = played(play, story=story)
    assert run.result["reviews"] == 2
    # It was said to that conversation: the next one of the reviewer is another.
    assert [phase for phase, _ in heard] == ["review"]


@pytest.mark.parametrize("kind", ["steer", "follow_up"])
def test_what_is_said_during_the_last_verdict_is_heard_before_it_counts(
    played: Callable[..., Played], kind: Any
) -> None:
    calm, gate = playing([DONE]), Gate()

    def play(request: RecordedRequest) -> Turn:
        if "Not so fast." in json.dumps(request.messages):
            return FIX
        if (phase_of(request), answers_in(request)) == ("review", 1):
            return replace(DONE, fault=stall_after(0, gate=gate))
        return calm(request)

    async def story(run: RunHandle, fake: FakeAnthropic) -> None:
        await asyncio.to_thread(gate.wait_reached, WITHIN_S)
        await run.send("build", "Not so fast.", kind=kind, id="hint")
        gate.open()

    run = played(play, story=story, max_review_cycles=1)
    assert run.failed is not None and "not documented" in run.failed.failure.message


def test_a_cancelled_plan_ends_and_asks_nobody_any_more(played: Callable[..., Played]) -> None:
    calm, gate = playing([DONE]), Gate()

    def play(request: RecordedRequest) -> Turn:
        if phase_of(request) == "review":
            return turn(text("x"), fault=stall_after(0, gate=gate))
        return calm(request)

    async def story(run: RunHandle, fake: FakeAnthropic) -> None:
        await asyncio.to_thread(gate.wait_reached, WITHIN_S)
        await run.cancel("enough")
        await asyncio.to_thread(fake.wait_client_closed, fake.count)
        with pytest.raises(RunCancelled):
            await run.result()

    with pytest.raises(RunCancelled):
        played(play, story=story)


def test_an_implementer_that_breaks_off_fails_the_build(played: Callable[..., Played]) -> None:
    calm = playing([DONE])

    def play(request: RecordedRequest) -> Turn:
        if phase_of(request) == "implement":
            return turn(stop_reason="refusal")
        return calm(request)

    run = played(play)
    assert run.failed is not None
    assert (run.failed.step, run.failed.failure.type) == ("build", "refused")
    assert "review" not in run.phases


def test_each_conversation_has_a_budget_of_its_own_and_the_step_counts_them_all(
    played: Callable[..., Played],
) -> None:
    calm = playing([FIX, FIX, DONE])
    budget = {"implement": {"budget": Budget(max_steps=2)}, "max_review_cycles": 3}
    run = played(calm, **budget)
    assert run.result["reviews"] == 3
    assert not any("bound on turns" in json.dumps(each.messages) for each in run.fake.requests)
    bounded = {"build": {"max_tool_calls": 3}}
    run = played(calm, options=bounded, max_review_cycles=3)
    assert run.failed is not None and run.failed.failure.type == "max_tool_calls"
    assert run.view.step("build").spent.tool_calls == 3


def test_at_the_bound_of_the_step_the_last_iteration_ends_it(played: Callable[..., Played]) -> None:
    ending = {"build": {"max_iterations": 2, "on_limit": "wrap_up"}}
    run = played(playing([DONE]), options=ending, on_needs_fix="complete")
    result = run.result
    assert (result["verdict"], result["reviews"]) == ("NEEDS_FIX", 0)


def test_a_request_that_cannot_be_shown_to_every_phase_is_refused(
    played: Callable[..., Played],
) -> None:
    run = played(playing([DONE]), request="x" * 70_000)
    assert run.failed is not None and "at most 65536 bytes" in run.failed.failure.message
    assert run.fake.count == 0


def test_a_request_of_any_shape_reaches_the_explorer(played: Callable[..., Played]) -> None:
    run = played(playing([DONE]), request={"issue": 7})
    assert '"issue": 7' in goal_in(run.fake.requests[0])


def test_a_reviewer_may_be_allowed_a_tool_that_a_server_will_offer() -> None:
    agent: Agent[Any] = Agent(
        "a", model="anthropic:any", mcp=[McpServer("ci", command=["ci-server"])]
    )
    roles = dict.fromkeys(("explorer", "planner", "implementer", "reviewer"), agent)
    plan = stage.PlanWorkflow("change", **roles, review_tools={"ci_run"})
    assert plan.reviewer.policy.unless == {"ci_run"}
    assert plan.explorer.policy.read_only and not plan.implementer.policy.read_only


def test_a_plan_with_faults_is_refused_with_all_of_them() -> None:
    agent: Agent[Any] = Agent("a", model="anthropic:any", tools=stage.TOOLS)
    roles = dict.fromkeys(("explorer", "planner", "implementer", "reviewer"), agent)
    with pytest.raises(UserError) as caught:
        faults: dict[str, Any] = {
            "review_tools": {"run_test"},
            "max_review_cycles": 0,
            "on_needs_fix": "ignore",
            "prompts": Prompts(plan="{{PLAN}}"),
            "options": {"review": {}},
        }
        stage.PlanWorkflow("change", **roles, **faults)
    for fault in (
        "plan holds {{PLAN}}",
        "max_review_cycles is 0",
        "on_needs_fix is 'ignore'",
        "no tool of the reviewer. Did you mean 'run_tests'?",
        "options has 'review'",
    ):
        assert fault in str(caught.value)
