"""Start, signal, cancel, resume: what is stored, and what is refused.

A real server and the client; no engine runs, what one would write is written by hand.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest
from tests.client.stage import Stage, chain, parked, play

from treadle.sdk import (
    Client,
    InvalidDefinition,
    InvalidId,
    InvalidPayload,
    RunConflict,
    ServerUnsuitable,
    UnknownRun,
    UnknownWorkflow,
    UserError,
    Workflow,
)
from treadle.sdk.client import requests
from treadle.sdk.definition import content_hash, to_plain
from treadle.sdk.messages import Failure
from treadle.sdk.run import StepEntry
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.sdk.spending import SpendingLimits, Spent


def test_a_start_is_durable_while_no_engine_is_up(own_server: NatsServer, namespace: str) -> None:
    settings = Settings(url=own_server.url, namespace=namespace)

    async def story(stage: Stage) -> None:
        run = await stage.client.start(chain(), {"n": 1}, id="r1", metadata={"for": "ana"})
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.restart)
        view = await run.get()
        assert (view.status, view.workflow, view.metadata) == ("requested", "flow", {"for": "ana"})
        assert [step.status for step in view.steps] == ["waiting", "waiting"]
        assert "requested, not yet taken by an engine" in [note.text for note in view.notes]
        assert "treadle engine" in [note.command for note in view.notes]
        assert [view.id for view in await stage.client.list()] == ["r1"]

    play(settings, story)


def test_who_makes_an_older_version_the_newest_again_is_warned(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    def version(most: int) -> Workflow[None]:
        workflow = Workflow("flow")
        workflow.agent_loop("loop", max_iterations=most)
        return workflow

    async def story(stage: Stage) -> None:
        old = await stage.client.register(version(1))
        new = await stage.client.register(version(2))
        await stage.client.register(version(2))
        assert not caplog.records, "a new version is the newest, and the same again changes nothing"
        await stage.client.start(version(1), id="r1")
        (told,) = [record.getMessage() for record in caplog.records]
        assert told.startswith(
            f"workflow.older-version workflow=flow version={old} instead_of={new}: "
        )
        caplog.clear()
        # Another process has stored it, and is about to say that it is the newest.
        definition = version(3).build()
        subject = stage.subjects.workflow_version("flow", content_hash(definition))
        raw = msgspec.json.encode(to_plain(definition), order="sorted")
        await stage.js.store(subject, raw)
        await stage.client.register(definition)
        assert not caplog.records

    play(settings, story)


def test_starting_one_id_twice_with_the_same_input_is_one_run(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        first = await stage.client.start(chain(), {"a": 1, "b": 2}, id="r1")
        again = await stage.client.start("flow", {"b": 2, "a": 1}, id="r1")
        assert first.id == again.id == "r1"
        assert await stage.stored("r1") == ["run.requested"]

    play(settings, story)


def test_an_id_that_was_started_with_something_else_is_a_conflict(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        other = Workflow("other")
        other.task("only", "work")
        await stage.client.start(chain(), {"a": 1}, id="r1")
        with pytest.raises(RunConflict, match="another input"):
            await stage.client.start("flow", {"a": 2}, id="r1")
        with pytest.raises(RunConflict, match="workflow 'flow', not 'other'"):
            await stage.client.start(other, {"a": 1}, id="r1")
        assert await stage.stored("r1") == ["run.requested"]

    play(settings, story)


def test_of_two_starts_at_once_the_first_that_is_stored_is_the_run(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await stage.client.register(chain())
        starts = (stage.client.start("flow", n, id="r1") for n in range(8))
        results = await asyncio.gather(*starts, return_exceptions=True)
        refused = [result for result in results if isinstance(result, RunConflict)]
        assert len(refused) == 7
        winner = next(n for n in range(8) if not isinstance(results[n], RunConflict))
        first = await anext(stage.client.history("r1"))
        assert msgspec.json.decode(first.value) == winner

    play(settings, story)


def test_an_early_signal_does_not_make_a_start_impossible(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await stage.client.register(chain())
        with pytest.raises(UnknownRun):
            await stage.client.signal("r1", "go")
        await stage.client.start("flow", id="r1")
        await stage.client.signal("r1", "go", {"by": "ana"})
        assert await stage.stored("r1") == ["run.requested", "run.signal_received"]

    play(settings, story)


def test_a_run_that_was_just_started_is_looked_for_longer(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a cluster whose leader has died a server may answer that does not know of it yet.
    monkeypatch.setattr(requests, "STORED_LOOKS_S", (0.02,) * 500)

    async def story(stage: Stage) -> None:
        await stage.client.register(chain())
        await stage.client.start("flow", id="r1")
        s = stage.subjects
        await stage.js.purge(s.events_stream, s.events_of_run("r1"))
        looking = asyncio.create_task(stage.client.get("r1"))
        await asyncio.wait({looking}, timeout=0.2)
        assert not looking.done()
        await stage.client.start("flow", id="r1")
        assert (await looking).status == "requested"

    play(settings, story)


def test_an_unknown_workflow_is_refused_and_the_known_ones_are_named(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await stage.client.register(chain())
        with pytest.raises(UnknownWorkflow, match=r"'flo' is not registered .*'flow'"):
            await stage.client.start("flo")
        assert [*await stage.client.workflows()] == ["flow"]
        assert await stage.client.list() == ()

    play(settings, story)


def test_registering_keeps_every_version_and_the_newest_is_taken(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        old = await stage.client.register(chain())
        grown = chain()
        grown.task("more", "work")
        new = await stage.client.register(grown)
        assert old != new and await stage.client.register(grown) == new
        assert len((await stage.client.workflow("flow")).steps) == 3
        assert await stage.client.workflow("flow", old) == chain().build()
        run = await stage.client.start("flow")
        assert (await run.get()).definition == new

    play(settings, story)


def test_an_unsound_definition_is_not_registered(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        unsound = Workflow("flow")
        unsound.task("a", "work", after="b")
        with pytest.raises(InvalidDefinition, match="'b'"):
            await stage.client.register(unsound)
        assert await stage.client.workflows() == {}

    play(settings, story)


def test_bad_input_is_refused_before_anything_is_stored(settings: Settings) -> None:
    class Diff(msgspec.Struct):
        repo: str

    async def story(stage: Stage) -> None:
        typed = Workflow("typed", input=Diff)
        typed.task("only", "work")
        client = stage.client
        with pytest.raises(InvalidPayload, match=r"input of workflow 'typed'.*Diff"):
            await client.start(typed, {"repository": "x"}, id="r1")
        await client.register(chain())
        with pytest.raises(InvalidPayload, match="input"):
            await client.start("flow", object(), id="r1")
        with pytest.raises(InvalidPayload, match="metadata 'n'"):
            await client.start("flow", id="r1", metadata={"n": [1]})  # type: ignore[dict-item]
        with pytest.raises(InvalidPayload, match="metadata"):
            await client.start("flow", id="r1", metadata={"n": "x" * 10_000})
        for bad in ("a.b", "*", ">", "a b", "\0", "é", "", "x" * 65):
            with pytest.raises(InvalidId, match="run id"):
                await client.start("flow", id=bad)
            with pytest.raises(InvalidId):
                await client.signal("r1", bad)
            with pytest.raises(InvalidId):
                await client.get(bad)
        assert await client.list() == ()

    play(settings, story)


def test_a_signal_with_one_id_sent_twice_carries_that_id_twice(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        run = await stage.client.start(chain())
        assert await run.signal("go", 1, id="s1") == "s1"
        assert await run.signal("go", 1, id="s1") == "s1"
        assert await run.signal("go", 1) != await run.signal("go", 1)

    play(settings, story)


def test_every_request_for_an_unknown_run_is_refused(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        client = stage.client
        for request in (
            client.signal("nobody", "go"),
            client.cancel("nobody"),
            client.resume("nobody", add_iterations=1),
            client.get("nobody"),
            client.result("nobody"),
        ):
            with pytest.raises(UnknownRun, match="nobody"):
                await request
        for events in (client.history("nobody"), client.watch("nobody")):
            with pytest.raises(UnknownRun, match="nobody"):
                _ = [event async for event in events]

    play(settings, story)


def test_an_ended_run_takes_no_signal_and_cannot_be_cancelled(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await stage.document("r1", status="completed")
        with pytest.raises(RunConflict, match="has ended as completed"):
            await stage.client.signal("r1", "go")
        with pytest.raises(RunConflict, match="cannot be cancelled"):
            await stage.client.cancel("r1")
        await stage.document("r2", status="cancelled")
        await stage.client.cancel("r2")
        assert await stage.stored("r1") == await stage.stored("r2") == []

    play(settings, story)


def test_a_run_that_is_not_parked_cannot_be_resumed(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        await stage.document("r1", definition=version, steps={"loop": StepEntry("active")})
        with pytest.raises(RunConflict, match="no parked step"):
            await stage.client.resume("r1", add_iterations=1)
        with pytest.raises(RunConflict, match=r"'first' \(parked: none\)"):
            await stage.client.resume("r1", "first", add_iterations=1)
        with pytest.raises(UserError, match="add_iterations is -1"):
            await stage.client.resume("r1", add_iterations=-1)
        with pytest.raises(UserError, match="add_iteration cannot be raised"):
            await stage.client.resume("r1", add_iteration=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        with pytest.raises(UserError, match="add_cost_usd is nan"):
            await stage.client.resume("r1", add_cost_usd=float("nan"))

    play(settings, story)


@pytest.mark.parametrize(
    ("reason", "too_little", "enough"),
    [
        ("max_iterations", {}, {"add_iterations": 1}),
        ("max_iterations", {"max_iterations": 5}, {"max_iterations": 6}),
        ("max_duration", {"add_iterations": 9}, {"add_duration": timedelta(seconds=3)}),
        ("max_duration", {"max_duration": timedelta(seconds=9)}, {"max_duration": timedelta(9)}),
        ("max_tool_calls", {"add_iterations": 9}, {"add_tool_calls": 1}),
        ("max_tokens", {"max_total_tokens": 80}, {"max_total_tokens": 101}),
        ("max_cost", {"add_tool_calls": 9}, {"add_cost_usd": 0.01}),
    ],
)
def test_a_resume_that_would_stop_at_the_same_bound_is_refused(
    settings: Settings, reason: str, too_little: dict[str, int], enough: dict[str, int]
) -> None:
    is_count = reason == "max_iterations"
    limits = {
        "max_tool_calls": SpendingLimits(tool_calls=7),
        "max_tokens": SpendingLimits(total_tokens=100),
        "max_cost": SpendingLimits(cost_micro_usd=5),
    }

    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        entry = StepEntry("parked", 5, failure=Failure(reason))
        await stage.document("r1", definition=version, status="parked", steps={"loop": entry})
        register = parked(
            reason,
            iteration=5 if is_count else 2,
            max_iterations=5,
            started_ms=1_000,
            deadline_ms=10_000 if reason == "max_duration" else 0,
            limits=limits.get(reason, SpendingLimits()),
            spent=Spent(tool_calls=7, input_tokens=60, output_tokens=40, cost_micro_usd=5),
        )
        await stage.register("r1", "loop", "think", register)
        view = await stage.client.get("r1")
        assert view.step("loop").doing == "parked"
        assert any("treadle run resume r1" in note.command for note in view.notes)
        with pytest.raises(RunConflict, match="would stop there again"):
            await stage.client.resume("r1", **too_little)  # type: ignore[arg-type]
        await stage.client.resume("r1", **enough)  # type: ignore[arg-type]
        assert await stage.stored("r1") == ["run.resume_requested"]

    play(settings, story)


def test_a_namespace_that_was_never_set_up_says_how_to_do_it(settings: Settings) -> None:
    async def connect() -> None:
        async with Client.connect(settings=settings):
            pass

    with pytest.raises(ServerUnsuitable, match=r"`treadle engine --namespace \S+`"):
        asyncio.run(connect())
