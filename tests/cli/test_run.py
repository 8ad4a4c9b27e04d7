"""``treadle run``: what each command prints, stores and exits with.

The entry point on a real server; no engine runs, what one would write is written by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.cli.conftest import Run
from tests.client.stage import Stage, chain, done, ended, open_stage, parked

from treadle.cli import exits, runs
from treadle.sdk import Workflow
from treadle.sdk.messages import Failure, StepFailed
from treadle.sdk.run import Pause, StepEntry
from treadle.sdk.settings import Settings
from treadle.sdk.spending import SpendingLimits, Spent

Prepare = Callable[[Callable[[Stage], Awaitable[object]]], None]


@pytest.fixture
def prepare(settings: Settings) -> Prepare:
    """Set the namespace up, register a workflow, and write what a story needs."""

    def prepare(story: Callable[[Stage], Awaitable[object]]) -> None:
        async def on_stage() -> None:
            async with open_stage(settings) as stage:
                await stage.client.register(chain())
                await story(stage)

        asyncio.run(on_stage())

    return prepare


async def nothing(_: Stage) -> None:
    pass


def test_a_started_run_can_be_seen_listed_signalled_and_cancelled(
    treadle: Run, prepare: Prepare
) -> None:
    prepare(nothing)
    start = ("run", "start", "flow", "--id", "r1", "--metadata", "for=ana")
    assert treadle(*start, "--input", '{"n": 1}').out == "r1\n"
    assert treadle(*start, "--input", "-", "--json", stdin='{"n": 1}').json["run"] == "r1"
    conflict = treadle(*start, "--json", code=exits.CONFLICT).json["error"]
    assert conflict["type"] == "RunConflict" and conflict["run"] == "r1"

    shown = treadle("run", "show", "r1").out
    assert "r1  flow  requested" in shown and "not yet taken by an engine" in shown
    assert "treadle engine" in shown and "for=ana" in shown
    view = treadle("run", "show", "r1", "--json").json
    assert (view["id"], view["status"], view["metadata"]) == ("r1", "requested", {"for": "ana"})

    assert treadle("run", "signal", "r1", "go", "--payload", "1", "--json").json["run"] == "r1"
    assert (
        treadle("run", "cancel", "r1", "--reason", "late", "--json").json["requested"] == "cancel"
    )
    events = treadle("run", "history", "r1", "--json").lines
    assert [event["kind"] for event in events] == [
        *("run.requested", "run.signal_received", "run.cancel_requested")
    ]
    assert [line["id"] for line in treadle("run", "list", "--json").lines] == ["r1"]


def test_a_pause_that_changes_nothing_says_so(treadle: Run, prepare: Prepare) -> None:
    async def story(stage: Stage) -> None:
        await stage.document("r1", status="running", pause=Pause(event="e1", since_ms=1))

    prepare(story)
    assert treadle("run", "pause", "r1").out == "run r1 is paused already\n"
    assert treadle("run", "pause", "r1", "--json").json["requested"] == ""


@pytest.mark.slow
def test_a_run_in_a_lane_says_what_it_is_queued_behind(treadle: Run, prepare: Prepare) -> None:
    prepare(nothing)
    start = ("run", "start", "flow", "--lane", "chat:1", "--id")
    for name in ("r1", "r2", "r3"):
        treadle(*start, name)

    async def taken(stage: Stage) -> None:
        for name, status in (("r1", "running"), ("r2", "cancelled"), ("r3", "queued")):
            (requested,) = [event.sequence async for event in stage.client.history(name)]
            await stage.document(name, lane="chat:1", status=status, requested=requested)

    prepare(taken)
    shown = treadle("run", "show", "r3").out
    assert "r3  flow  queued" in shown and "lane chat:1" in shown
    assert "queued in lane 'chat:1' behind 1 run, held by r1\n    treadle run show r1" in shown
    listed = treadle("run", "list", "--status", "queued").out
    assert "queued in lane 'chat:1' behind 1 run, held by r1" in listed and "r2" not in listed
    ahead = treadle("run", "list", "--status", "queued", "--json").json["ahead"]
    assert (ahead["count"], ahead["holder"]) == (1, "r1")
    bad = treadle("run", "start", "flow", "--lane", "a\nb", "--json", code=exits.USAGE)
    assert "1 to 200 printable characters" in bad.json["error"]["message"]
    treadle("run", "start", "flow", "--lane", "other", "--id", "r1", code=exits.CONFLICT)


@pytest.mark.slow
def test_a_run_begins_when_it_was_asked_to(treadle: Run, prepare: Prepare) -> None:
    prepare(nothing)
    start = ("run", "start", "flow", "--id")
    treadle(*start, "r1", "--at", "2035-01-31T09:00:00+01:00", "--version-policy", "latest")
    treadle(*start, "r2", "--in", "15m")
    conflict = treadle(*start, "r2", "--in", "20m", code=exits.CONFLICT)
    assert "to begin 900 s after its request, not 1200 s" in conflict.err
    for wrong in (("--at", "tomorrow"), ("--version-policy", "newest")):
        treadle(*start, "r3", *wrong, code=exits.USAGE)

    async def taken(stage: Stage) -> None:
        first, second = [
            [event.value async for event in stage.client.history(name)] for name in ("r1", "r2")
        ]
        assert (len(first), len(second)) == (1, 1)
        await stage.document("r1", status="scheduled", requested=1, starts_ms=2_053_843_200_000)

    prepare(taken)
    shown = treadle("run", "show", "r1").out
    assert "r1  flow  scheduled" in shown and "begins 2035-01-31" in shown
    listed = treadle("run", "list", "--status", "scheduled").out
    assert "begins 2035-01-31" in listed and "r2" not in listed
    assert "it begins at 2035-01-31" in treadle("explain", "r1", code=exits.STUCK).out


def test_a_completed_run_prints_its_result(treadle: Run, prepare: Prepare) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        await stage.register("r1", "loop", "think", ended({"text": "hé"}))
        steps = {"first": done(), "loop": done(iterations=3)}
        await stage.document(
            "r1", definition=version, status="completed", steps=steps, ended_ms=9_000
        )

    prepare(story)
    assert treadle("run", "result", "r1").out == '{\n  "text": "hé"\n}\n'
    assert treadle("run", "result", "r1", "--json").json["result"] == {"text": "hé"}
    watched = treadle("run", "watch", "r1").out.splitlines()
    assert "run.ended  completed" in watched[-1]


@pytest.mark.slow
def test_how_a_run_ended_is_the_exit_code(treadle: Run, prepare: Prepare) -> None:
    async def story(stage: Stage) -> None:
        failure = Failure("Boom", "it broke", False, traceback="line 1\nline 2")
        steps = {"first": StepEntry("failed", 0, 1_000, 2_000, failure=failure)}
        bad = {"status": "failed", "failure": failure, "failed_step": "first", "steps": steps}
        await stage.document("bad", **bad)
        await stage.document("off", status="cancelled", failure=Failure("cancelled", "why"))
        await stage.document("back", status="running", undoing="failed", failure=failure)

    prepare(story)
    failed = treadle("run", "result", "bad", code=exits.RUN_FAILED)
    assert "'first'" in failed.err and "Boom: it broke" in failed.err and failed.out == ""
    error = treadle("run", "result", "bad", "--json", code=exits.RUN_FAILED).json["error"]
    assert (error["type"], error["step"], error["failure"]["type"]) == (
        "RunFailed",
        "first",
        "Boom",
    )
    assert "line 2" in treadle("run", "show", "bad").out
    treadle("run", "watch", "off", code=exits.RUN_CANCELLED)
    assert "cancelled already" in treadle("run", "cancel", "off").out
    assert "treadle run cancel back --now" in treadle("run", "cancel", "back").out
    assert "is stored" in treadle("run", "cancel", "back", "--now").out
    gone = treadle("run", "show", "gone", "--json", code=exits.UNKNOWN).json["error"]
    assert gone["type"] == "UnknownRun"
    treadle("run", "start", "flo", code=exits.UNKNOWN)
    treadle("run", "start", "flow", "--id", "a.b", code=exits.USAGE)
    treadle("run", "list", "--status", "done", code=exits.USAGE)


def test_a_wait_ends_with_its_own_exit_code_and_says_what_is_waited_for(
    treadle: Run, prepare: Prepare
) -> None:
    prepare(nothing)
    start = ("run", "start", "flow", "--id", "r1", "--timeout", "0.1")
    waited = treadle(*start, "--wait", code=exits.TIMED_OUT)
    assert "no engine is running" in waited.err
    watched = treadle(*start, "--watch", "--json", code=exits.TIMED_OUT).lines
    assert watched[0]["kind"] == "run.requested" and watched[-1]["error"]["type"] == "TimeoutError"


@pytest.mark.slow
def test_a_healthy_wait_says_nothing_and_a_quiet_one_says_what_is_missing(
    treadle: Run, prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        await stage.register("r1", "loop", "think", ended("done"))
        steps = {"first": done(), "loop": done()}
        await stage.document("r1", definition=version, status="completed", steps=steps)

    prepare(story)
    assert treadle("run", "result", "r1").err == ""
    monkeypatch.setattr(runs, "QUIET_S", 0.01)
    start = ("run", "start", "flow", "--id", "r2", "--timeout", "1.5")
    told = treadle(*start, "--wait", code=exits.TIMED_OUT).err
    assert told.count("! requested, not yet taken by an engine\n") == 1
    told = treadle(*start, "--watch", code=exits.TIMED_OUT).err
    assert told.index("! no engine is running") < told.index("has not ended within")
    monkeypatch.setattr(runs, "QUIET_S", 30)
    for how in ("--wait", "--watch"):
        assert "! " not in treadle(*start[:-1], "0.1", how, code=exits.TIMED_OUT).err


def test_an_empty_list_names_the_server_and_the_namespace_it_asked(
    treadle: Run, prepare: Prepare, settings: Settings
) -> None:
    prepare(nothing)
    told = treadle("run", "list", "--workflow", "flow", "--status", "failed").err
    where = f"at {settings.url} in namespace {settings.namespace!r}"
    assert f"no runs of workflow 'flow' that are failed {where}" in told
    secret = runs.place_of("nats://ana:secret@h:1,nats://h:2", "ns")
    assert secret == "at nats://h:1,nats://h:2 in namespace 'ns'"


def test_a_signal_that_nothing_waits_for_is_told_apart_from_one_that_comes_too_late(
    treadle: Run, prepare: Prepare
) -> None:
    async def story(stage: Stage) -> None:
        await stage.document("old", status="completed")

    prepare(story)
    treadle("run", "start", "flow", "--id", "r1")
    assert "no step of workflow 'flow' waits for a signal 'go'" in (
        treadle("run", "signal", "r1", "go").err
    )
    late = treadle("run", "signal", "old", "go", code=exits.CONFLICT).err
    assert "has ended as completed, so nothing is left to receive signal 'go'" in late


@pytest.mark.slow
def test_iterations_are_named_for_loops_only(treadle: Run, prepare: Prepare) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        failure = Failure("Boom", "it broke")
        for step, kind in (("first", "work"), ("loop", "think")):
            await stage.client.start("flow", id=step)
            event = StepFailed(
                step=step,
                type=kind,
                token=1,
                head=1,
                iteration=0,
                attempt=1,
                worker="w",
                failure=failure,
            )
            await stage.js.store(stage.subjects.event(step), msgspec.json.encode(event))
            await stage.document(
                step,
                definition=version,
                status="failed",
                failure=failure,
                failed_step=step,
                steps={step: StepEntry("failed", failure=failure)},
            )

    prepare(story)
    for step, named in (("first", False), ("loop", True)):
        told = treadle("run", "result", step, code=exits.RUN_FAILED).err
        assert ("iteration" in told) is named
        assert ("iteration 0" in treadle("run", "history", step).out) is named
        assert ("iteration 0" in treadle("run", "watch", step, code=exits.RUN_FAILED).out) is named


@pytest.mark.slow
def test_a_parked_run_shows_the_command_that_resumes_it(treadle: Run, prepare: Prepare) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        entry = StepEntry("parked", 5, failure=Failure("max_iterations"))
        await stage.document("r1", definition=version, status="parked", steps={"loop": entry})
        register = parked("max_iterations", iteration=5, max_iterations=5)
        await stage.register("r1", "loop", "think", register)

    prepare(story)
    assert "treadle run resume r1 --max-iterations +10" in treadle("run", "show", "r1").out
    treadle("run", "resume", "r1", code=exits.CONFLICT)
    treadle("run", "resume", "r1", "--max-iterations", "many", code=exits.USAGE)
    assert treadle("run", "resume", "r1", "--max-iterations", "+10", "--json").json["run"] == "r1"


@pytest.mark.slow
def test_a_budget_is_raised_from_the_command_line(treadle: Run, prepare: Prepare) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        entry = StepEntry("parked", 2, failure=Failure("max_cost"))
        await stage.document("r1", definition=version, status="parked", steps={"loop": entry})
        limits, spent = SpendingLimits(cost_micro_usd=5), Spent(cost_micro_usd=5)
        register = parked("max_cost", iteration=2, max_iterations=5, limits=limits, spent=spent)
        await stage.register("r1", "loop", "think", register)

    prepare(story)
    assert "treadle run resume r1 --add-cost 5" in treadle("run", "show", "r1").out
    refused = treadle("run", "resume", "r1", "--add-tool-calls", "9", code=exits.CONFLICT)
    assert "would stop there again at max_cost" in refused.err
    treadle("run", "resume", "r1", "--add-cost", "0.5", "--add-tokens", "1000")
    history = treadle("run", "history", "r1").out
    assert "max_input_tokens +1000, max_output_tokens +1000, max_total_tokens +1000" in history
    assert "max_cost +0.5 USD" in history


def test_a_namespace_without_an_engine_says_how_to_set_it_up(treadle: Run) -> None:
    told = treadle("run", "list", code=exits.SERVER)
    assert "`treadle engine --namespace " in told.err


class Order(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    cents: int = 0


@pytest.mark.slow
def test_the_input_of_a_run_that_is_started_by_name_is_checked(
    treadle: Run, prepare: Prepare
) -> None:
    async def story(stage: Stage) -> None:
        workflow = Workflow("orders", input=Order)
        workflow.task("pay", "pay")
        await stage.client.register(workflow)

    prepare(story)
    start = ("run", "start", "orders", "--id", "r1")
    missing = treadle(*start, code=exits.USAGE).err
    assert "input of workflow 'orders': there is none, and it does not fit" in missing
    assert "`treadle run start orders --input JSON`" in missing
    wrong = treadle(*start, "--input", '{"id": "O-1", "cent": 5}', code=exits.USAGE).err
    assert "cent is no field of it: did you mean 'cents'?" in wrong
    assert "`treadle workflow show orders` has the schema" in wrong
    assert treadle("run", "list").out == ""
    treadle(*start, "--input", '{"id": "O-1", "cents": 5}')
    assert [event["kind"] for event in treadle("run", "history", "r1", "--json").lines] == [
        "run.requested"
    ]


def test_a_listing_of_a_workflow_that_is_not_registered_says_so(
    treadle: Run, prepare: Prepare
) -> None:
    prepare(nothing)
    told = treadle("run", "list", "--workflow", "flo", code=exits.UNKNOWN).err
    assert "workflow 'flo' is not registered (registered: 'flow')" in told
    assert "no runs of workflow 'flow'" in treadle("run", "list", "--workflow", "flow").err


def test_a_bound_between_two_iterations_names_how_many_there_were_and_none_that_failed(
    treadle: Run, prepare: Prepare
) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        failure = Failure("max_iterations", "the loop took all of its 5 iterations")
        entry = StepEntry("failed", 5, 1_000, 2_000, failure=failure)
        fields = {"status": "failed", "failure": failure, "failed_step": "loop"}
        await stage.document("r1", definition=version, steps={"loop": entry}, **fields)

    prepare(story)
    told = treadle("run", "result", "r1", code=exits.RUN_FAILED).err
    assert "failed at step 'loop': max_iterations: the loop took all of its 5" in told
    shown = treadle("run", "show", "r1").out
    assert "ITERATIONS" in shown and "5/5" in shown


def test_the_history_names_the_line_of_the_handler_that_failed(
    treadle: Run, prepare: Prepare
) -> None:
    async def story(stage: Stage) -> None:
        await stage.client.start("flow", id="r1")
        failure = Failure("Boom", "it broke", place="app.py:12")
        failed = StepFailed(step="first", type="work", token=1, head=1, attempt=1, failure=failure)
        await stage.event("r1", failed)

    prepare(story)
    assert "Boom: it broke (at app.py:12)" in treadle("run", "history", "r1").out
    event = treadle("run", "history", "r1", "--json").lines[-1]
    assert event["failure"]["place"] == "app.py:12"
