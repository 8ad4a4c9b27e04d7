"""One run of a singleton at a time, and a start that finds another one does what its policy says.
Method: a real server, two engines in this process; steps are settled by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.crash.chain import TASK_TYPE
from tests.engine.conftest import Play
from tests.engine.stand import Stand
from tests.pages import block_of, served

from treadle.sdk import RunCancelled, UserError, Workflow, WorkflowDefinition
from treadle.sdk.client import Subject
from treadle.sdk.definition import Singleton
from treadle.sdk.messages import StepCompleted, Task
from treadle.sdk.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "singletons.md"


def one(policy: Singleton, **options: Any) -> WorkflowDefinition:
    workflow = Workflow("one", singleton=policy, **options)
    workflow.agent_loop("loop", TASK_TYPE, max_iterations=3)
    return workflow.build()


def undone() -> WorkflowDefinition:
    workflow = Workflow("one", singleton="cancel_older")
    workflow.agent_loop("loop", TASK_TYPE, max_iterations=3, compensate="undo")
    workflow.wait_for_signal("go", after="loop")
    workflow.task("undo")
    return workflow.build()


async def settle(stand: Stand, run: str, step: str = "loop", type: str = TASK_TYPE) -> None:
    token = (await stand.holds(Task, run, step, type)).token
    await stand.publish(StepCompleted(step=step, type=type, token=token, head=token), run)


def test_a_start_that_is_skipped_is_a_run_that_says_why(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        await stand.client.start(one("skip"), id="r1")
        await stand.holds(Task, "r1")
        skipped = await stand.client.start("one", id="r2")
        with pytest.raises(RunCancelled, match="run 'r1' of 'one' was not over"):
            await skipped.result()
        view = await stand.client.get("r2")
        assert (view.status, view.failure.type if view.failure else "") == (
            "cancelled",
            "singleton",
        )
        assert (await stand.client.start("one", id="r2")).id == "r2"
        await settle(stand, "r1")
        await stand.ended("r1")
        await stand.client.start("one", id="r3")
        await stand.status("r3", "running")
        assert (await stand.status("r2", "cancelled")).steps == {}

    play(story)


@pytest.mark.parametrize("policy", ["skip", "queue", "cancel_older"])
def test_of_many_starts_at_once_one_runs_and_each_can_be_asked_for(
    play: Play, policy: Singleton
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        await stand.client.register(one(policy))
        names = [f"r{n}" for n in range(12)]
        await asyncio.gather(*(stand.client.start("one", id=name) for name in names))
        await stand.quiet(0.4)
        found = [await stand.document(name) for name in names]
        in_order = sorted((each for each in found if each), key=lambda each: each.requested)
        assert len(in_order) == 12
        statuses = [each.status for each in in_order]
        expected = {
            "skip": ["running"] + ["cancelled"] * 11,
            "queue": ["running"] + ["queued"] * 11,
            "cancel_older": ["cancelled"] * 11 + ["running"],
        }[policy]
        assert statuses == expected
        reasons = {each.failure.type for each in in_order if each.failure}
        assert reasons == (set() if policy == "queue" else {"singleton"})

    play(story)


def test_the_older_run_undoes_what_it_has_done_before_the_newer_one_starts(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        await stand.client.start(undone(), id="older")
        await settle(stand, "older")
        await stand.client.start("one", id="newer")
        await stand.holds(Task, "older", "undo", "undo")
        await stand.quiet(0.3)
        newer = await stand.document("newer")
        assert newer is not None and newer.status == "queued"
        await settle(stand, "older", "undo", "undo")
        older = await stand.status("older", "cancelled")
        assert older.failure is not None and "'newer'" in older.failure.message
        assert older.steps["undo"].status == "completed"
        await stand.status("newer", "running")

    play(story)


def test_runs_of_other_keys_do_not_meet_and_a_trigger_keeps_to_it(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        definition = one("skip", singleton_key='input["id"]')
        await stand.client.start(definition, {"id": 1}, id="r1")
        await stand.client.start("one", {"id": 2}, id="r2")
        await stand.status("r1", "running")
        await stand.status("r2", "running")
        subject = f"{stand.settings.namespace}-sync"
        await stand.client.triggers.create("sync", "one", Subject(subject))
        for body in (b'{"id":1}', b'{"id":3}', b"{}"):
            stand.js.connection.publish(subject, body)
        (letter,) = await stand.until("a letter", stand.letters, lambda found: len(found) == 1)
        assert letter.failure is not None and "no key of the singleton" in letter.failure.message
        views = await stand.until("the runs", stand.client.list, lambda found: len(found) == 4)
        await stand.quiet(0.2)
        started = {view.id: view for view in await stand.client.list()}
        assert len(views) == len(started) == 4
        assert sorted(view.status for view in started.values()) == [
            "cancelled",
            "running",
            "running",
            "running",
        ]
        with pytest.raises(UserError, match="without a lane"):
            await stand.client.triggers.create("other", "one", Subject(f"{subject}-2"), lane="l")

    play(story)


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    names = block_of("singletons.md")
    *results, skipped = served(names, settings, monkeypatch)
    assert results == ["copied", "copied"]
    assert "of 'sync:a-1' was not over" in skipped
