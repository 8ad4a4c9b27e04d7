"""``treadle run show`` and ``timeline`` of what did not go as wished: waits without an end, steps
that never began. A real server, an engine and a worker; the entry point when the run has ended."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.cli.conftest import Run
from tests.client.stage import Stage, chain, done, ended, play, raw
from tests.engine.stand import open_stand

from treadle.cli import exits
from treadle.sdk import NonRetryable, Workflow
from treadle.sdk.client.steps import FAILED_ITEMS_MAX
from treadle.sdk.messages import ChunkDone, Ended, ItemFailure, Results, RunRequested
from treadle.sdk.run import MapState, StepEntry
from treadle.sdk.settings import Settings
from treadle.worker import TaskContext, Worker


def unmet() -> Workflow[Any]:
    """Return a workflow of a signal and an event that do not come, and a task that fails then."""
    workflow = Workflow("unmet")
    waits = [
        workflow.wait_for_signal("word", signal="go", timeout=0.05, on_timeout="complete"),
        workflow.wait_for_event("paid", "order.paid", timeout=0.05, on_timeout="complete"),
    ]
    broken = workflow.task("broken", after=waits)
    workflow.task("behind", after=[broken])
    return workflow


def breaking() -> Worker:
    worker = Worker("w")

    @worker.handler("broken")
    async def break_(ctx: TaskContext[Any]) -> None:
        raise NonRetryable(f"given {ctx.input}")

    return worker


@pytest.mark.slow
def test_waits_that_ran_out_and_steps_never_reached_are_told_apart_from_others(
    treadle: Run, settings: Settings
) -> None:
    async def ran() -> None:
        async with open_stand(settings) as stand:
            await stand.engine()
            stand.worker(breaking())
            await stand.client.start(unmet(), id="r1")
            await stand.ended("r1")

    asyncio.run(ran())
    shown = treadle("run", "show", "r1").out
    rows = {line.split()[0]: " ".join(line.split()) for line in shown.splitlines() if line}
    assert rows["word"].endswith("timed out without go; completed with null")
    assert rows["paid"].endswith("timed out without order.paid; completed with null")
    assert rows["behind"] == "behind not reached after broken"
    steps = {step["id"]: step for step in treadle("run", "show", "r1", "--json").json["steps"]}
    assert (steps["word"]["timed_out"], steps["behind"]["status"]) == ("complete", "not_reached")
    spans = treadle("run", "timeline", "r1", "--json").lines
    told = {span["step"]: (span["outcome"], span.get("detail")) for span in spans}
    assert told["word"] == ("timed out", "go; completed with null")
    assert told["paid"] == ("timed out", "order.paid; completed with null")
    assert "timed out  go; completed with null" in treadle("run", "timeline", "r1").out


@pytest.mark.slow
def test_a_step_is_shown_with_what_it_was_given_and_what_it_has_put_out(
    treadle: Run, settings: Settings
) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        request = RunRequested(workflow="flow", definition=version, input=raw({"n": 1}))
        requested = await stage.event("r1", request)
        steps = {"first": done("e9"), "loop": StepEntry("active", 0, 1_000)}
        await stage.document("r1", definition=version, requested=requested, steps=steps)
        register = msgspec.structs.replace(ended(["x" * 5_000]), attempt=2)
        await stage.register("r1", "first", "work", register)

    play(settings, story)
    told = treadle("run", "show", "r1", "--step", "first", "--json").json
    assert (told["input"], told["output"]) == ({"n": 1}, ["x" * 5_000])
    assert (told["step"]["status"], told["step"]["attempt"]) == ("completed", 2)
    row = next(line for line in treadle("run", "show", "r1").out.splitlines() if "first" in line)
    assert row.split()[:3] == ["first", "completed", "2"]
    shown = treadle("run", "show", "r1", "--step", "first").out
    assert '"n": 1' in shown and "output, 5004 bytes" in shown
    assert "more characters: --json has it whole" in shown and "x" * 4_000 not in shown
    loop = treadle("run", "show", "r1", "--step", "loop", "--json").json
    assert loop["input"] == ["x" * 5_000] and "output" not in loop
    outputs = treadle("run", "show", "r1", "--outputs", "--json").json
    assert outputs["status"] == "running"
    assert outputs["outputs"] == {"first": {"size_bytes": 5_004, "value": ["x" * 5_000]}}
    assert "5004" in treadle("run", "show", "r1", "--outputs").out
    assert "outputs" not in treadle("run", "show", "r1", "--json").json
    unknown = treadle("run", "show", "r1", "--step", "no", code=exits.USAGE)
    assert "has no step 'no': workflow 'flow' has 'first', 'loop'" in unknown.err
    treadle("run", "show", "r1", "--step", "first", "--outputs", code=exits.USAGE)


@pytest.mark.slow
def test_what_is_too_large_or_gone_is_said_and_not_shown(treadle: Run, settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        steps = {"first": done("e9"), "loop": done("e10")}
        await stage.document("r1", definition=version, requested=1, steps=steps)
        await stage.register("r1", "first", "work", ended("y" * 100_000))

    play(settings, story)
    told = treadle("run", "show", "r1", "--outputs", "--json").json["outputs"]
    assert told == {"first": {"size_bytes": 100_002}}, "what is gone has no output"
    assert "treadle run show r1 --step first" in treadle("run", "show", "r1", "--outputs").out
    gone = treadle("run", "show", "r1", "--step", "loop")
    assert "no output" in gone.out and "! its output: " in gone.err


def test_the_first_failed_items_of_a_map_are_named_and_the_others_counted(
    treadle: Run, settings: Settings
) -> None:
    each, chunks = 15, 3
    workflow = Workflow[Any]("flow")
    workflow.map("items", "work", tolerated_failures=100)

    def failed(chunk: int) -> Ended:
        indices = range(chunk * each, (chunk + 1) * each)
        failures = tuple(ItemFailure(index, "Boom", f"no {index}") for index in reversed(indices))
        output = raw(Results(failures=failures))
        about = ChunkDone(first=chunk * each, count=each, failed=each)
        return Ended(parent="e", outcome="completed", iterations=1, output=output, chunk=about)

    async def story(stage: Stage) -> None:
        version = await stage.client.register(workflow)
        request = RunRequested(workflow="flow", definition=version, input=raw([0] * each * chunks))
        requested = await stage.event("r1", request)
        state = MapState(
            each * chunks, chunks, each, 99, next=chunks, under_way=((1, 1),), done=30, failed=30
        )
        entry = StepEntry("active", 0, 1_000)
        await stage.document(
            "r1",
            definition=version,
            requested=requested,
            steps={"items": entry},
            maps={"items": state},
        )
        for chunk in (0, 2):
            await stage.register("r1", f"items={chunk}", "work", failed(chunk))

    play(settings, story)
    told = treadle("run", "show", "r1", "--step", "items", "--json").json
    wanted = [*range(15), *range(30, 35)]
    assert [item["index"] for item in told["failed_items"]] == wanted
    assert len(wanted) == FAILED_ITEMS_MAX and told["failed_items_more"] == 10
    shown = treadle("run", "show", "r1", "--step", "items").out
    assert "  item 34: Boom: no 34\n  and 10 more\n" in shown
