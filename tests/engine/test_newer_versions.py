"""A loop that follows its workflow takes a version that was registered, on a real server.
Method: engines in the test's own loop, and iterations that are settled by hand, one by one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from tests.crash.chain import TASK_TYPE
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.engine import versions
from treadle.sdk import Retry, RunConflict, Workflow, WorkflowDefinition
from treadle.sdk.definition import VersionPolicy, content_hash
from treadle.sdk.messages import Failure, Parked, Task


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "STALE_S", 0.0)


def version(
    most: int, policy: VersionPolicy = "latest", name: str = "loop", **options: Any
) -> WorkflowDefinition:
    workflow = Workflow("one-loop", version_policy=policy)
    workflow.agent_loop(name, TASK_TYPE, max_iterations=most, **options)
    return workflow.build()


async def task(stand: Stand, since: int = 0) -> tuple[int, Task]:
    placed = await stand.holds(Task, since=since)
    assert isinstance(placed.register, Task)
    return placed.token, placed.register


async def register(stand: Stand, definition: WorkflowDefinition) -> str:
    await stand.client.register(definition)
    return content_hash(definition)


def test_the_next_iteration_is_under_the_newest_version_and_a_retry_is_not(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        old = version(5, retry=Retry(max_attempts=3, delay_s=0))
        run = await stand.client.start(old, id="run")
        token, now = await task(stand)
        assert (now.definition, now.max_iterations) == (content_hash(old), 5)
        new = await register(stand, version(9))
        await stand.fails(token, Failure("ValueError", "not yet", retryable=True))
        token, now = await task(stand, token)
        assert (now.definition, now.attempt) == (content_hash(old), 2), "the same iteration"
        await stand.continues(token, "next")
        token, now = await task(stand, token)
        assert (now.definition, now.iteration, now.max_iterations) == (new, 1, 9)
        assert (await run.get()).step("loop").version == new
        document = await stand.document()
        assert document is not None
        assert document.definition == content_hash(old), "its steps are those it began with"
        await stand.completes(token, "done", iteration=1)
        assert await run.result(timeout_s=10) == "done"

    play(story)


@pytest.mark.parametrize("how", ["workflow", "start"])
def test_a_run_that_is_pinned_keeps_its_version(play: Play, how: str) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        policy: VersionPolicy = "pin" if how == "workflow" else "latest"
        old = version(5, policy)
        options: dict[str, Any] = {"version_policy": "pin"} if how == "start" else {}
        await stand.client.start(old, id="run", **options)
        token, _ = await task(stand)
        await register(stand, version(9, policy))
        await stand.continues(token)
        _, now = await task(stand, token)
        assert (now.definition, now.max_iterations) == (content_hash(old), 5)

    play(story)


def test_a_loop_keeps_its_version_while_the_newest_has_none_of_it_and_explain_says_so(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        old = version(5)
        await stand.client.start(old, id="run")
        token, _ = await task(stand)
        await register(stand, version(9, name="another"))
        await stand.continues(token)
        token, now = await task(stand, token)
        assert now.definition == content_hash(old)
        explained = await stand.client.explain("run")
        (kept,) = [each for each in explained.reasons if each.kind == "version_kept"]
        assert "has no step 'loop'" in kept.text
        new = await register(stand, version(7))
        await stand.continues(token, iteration=1)
        _, now = await task(stand, token)
        assert (now.definition, now.max_iterations) == (new, 7)
        explained = await stand.client.explain("run")
        assert not [each for each in explained.reasons if each.kind == "version_kept"]

    play(story)


def test_a_parked_loop_goes_on_under_the_newest_version_with_what_was_added_to_its_bound(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(version(1, on_limit="park"), id="run")
        token, _ = await task(stand)
        await stand.continues(token)
        token = (await stand.holds(Parked)).token
        new = await register(stand, version(3, on_limit="park"))
        await run.resume(add_iterations=2)
        _, now = await task(stand, token)
        assert (now.definition, now.iteration, now.max_iterations) == (new, 1, 5)

    play(story)


@pytest.mark.slow
def test_a_parked_loop_is_told_with_the_bounds_of_the_version_it_would_go_on_under(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(version(3, on_limit="park"), id="run")
        token, now = await task(stand)
        for iteration in range(3):
            await stand.continues(token, iteration=iteration)
            if iteration < 2:
                token, now = await task(stand, token)
        token = (await stand.holds(Parked)).token
        parked = "step 'loop' is parked at max_iterations after 3 iterations"
        lower = await register(stand, version(2, on_limit="park"))
        told = await run.explain()
        at = f"under version {lower}, the newest of its workflow"
        stops = "max_iterations (3 iterations of at most 2)"
        assert f"{parked}; {at}, it would stop again at {stops} (since " in told.main.text
        assert told.main.command == "treadle run resume run --max-iterations +11"
        for too_little in ({}, {"add_iterations": 1}, {"max_iterations": 3}):
            with pytest.raises(RunConflict, match=f"would stop there again {at} at max_it") as no:
                await run.resume(**too_little)
        assert "(3 iterations of at most 3). Raise it past that: `treadle run resume run" in str(no)
        higher = await register(stand, version(4, on_limit="park"))
        told = await run.explain()
        at = f"under version {higher}, the newest of its workflow"
        assert f"{parked}; a resume lets it go on {at} (since " in told.main.text
        assert told.main.command == "treadle run resume run"
        await register(stand, version(2, on_limit="park"))
        await run.resume(add_iterations=2)
        _, now = await task(stand, token)
        assert (now.definition, now.iteration, now.max_iterations) == (lower, 3, 4)

    play(story)


def test_a_timer_of_a_newer_version_goes_with_its_run(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(version(5), id="run")
        token, _ = await task(stand)
        await register(stand, version(5, max_duration=3600))
        await stand.continues(token)
        token, _ = await task(stand, token)
        s = stand.subjects
        count = partial(stand.js.count, s.timers_stream, s.all_timers)
        await stand.until("its deadline is set", count, lambda n: n == 1)
        await stand.completes(token, iteration=1)
        await stand.ended()
        await stand.until("no timer is left", count, lambda n: n == 0)

    play(story)
