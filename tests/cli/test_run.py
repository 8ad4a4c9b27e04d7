"""``treadle run``: what each command prints, stores and exits with.

The entry point on a real server; no engine runs, what one would write is written by hand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.cli.conftest import Run
from tests.client.stage import Stage, chain, done, ended, open_stage, parked

from treadle.cli import exits
from treadle.sdk.messages import Failure
from treadle.sdk.run import StepEntry
from treadle.sdk.settings import Settings

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


def test_how_a_run_ended_is_the_exit_code(treadle: Run, prepare: Prepare) -> None:
    async def story(stage: Stage) -> None:
        failure = Failure("Boom", "it broke", False, traceback="line 1\nline 2")
        steps = {"first": StepEntry("failed", 0, 1_000, 2_000, failure=failure)}
        bad = {"status": "failed", "failure": failure, "failed_step": "first", "steps": steps}
        await stage.document("bad", **bad)
        await stage.document("off", status="cancelled", failure=Failure("cancelled", "why"))

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


def test_a_namespace_without_an_engine_says_how_to_set_it_up(treadle: Run) -> None:
    told = treadle("run", "list", code=exits.SERVER)
    assert "`treadle engine`" in told.err and "`treadle dev app.py`" in told.err
