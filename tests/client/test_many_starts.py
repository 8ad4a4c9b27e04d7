"""Many starts in one call are one run each, however often the call is made and wherever it ends.

Method: a real server without an engine; the requests that are stored are counted by run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest
from tests.client.stage import Stage, open_stage

from treadle.sdk import Workflow
from treadle.sdk.client import Start, StartOutcome
from treadle.sdk.errors import UnknownWorkflow, UserError
from treadle.sdk.settings import Settings

Play = Callable[[Callable[[Stage], Awaitable[None]]], None]


@pytest.fixture
def play(settings: Settings) -> Play:
    def run(story: Callable[[Stage], Awaitable[None]]) -> None:
        async def staged() -> None:
            async with open_stage(settings) as stage:
                workflow = Workflow("count", input=int)
                workflow.task("work")
                await stage.client.register(workflow)
                await story(stage)

        asyncio.run(staged())

    return run


async def requests(stage: Stage) -> Counter[str]:
    """Return how many requests are stored, by run."""
    page = await stage.client.list_runs(limit=500)
    found: Counter[str] = Counter()
    for view in page.runs:
        kinds = [event.kind async for event in stage.client.history(view.id)]
        found[view.id] = kinds.count("run.requested")
    return found


def test_each_input_is_one_run_however_often_the_call_is_made(play: Play) -> None:
    async def story(stage: Stage) -> None:
        seen: list[StartOutcome] = []
        report = await stage.client.start_many("count", range(40), id="import", each=seen.append)
        assert (report.counts, report.is_complete) == ({"started": 40}, True)
        names = [f"import-{n}" for n in range(1, 41)]
        assert sorted(outcome.number for outcome in seen) == list(range(1, 41))
        assert {outcome.run for outcome in seen} == set(names)
        assert (await stage.client.get("import-7")).workflow == "count"
        again = await stage.client.start_many("count", range(42), id="import")
        assert again.counts == {"there": 40, "started": 2}
        assert await requests(stage) == Counter([*names, "import-41", "import-42"])

    play(story)


def test_what_is_refused_stops_none_of_the_others(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.client.start("count", 1, id="taken")
        starts = [3, "no number", Start(2, id="taken"), Start(2, id="no id"), Start(1, id="taken")]
        seen: dict[int, StartOutcome] = {}
        report = await stage.client.start_many(
            "count", starts, id="x", each=lambda outcome: seen.update({outcome.number: outcome})
        )
        assert report.counts == {"started": 1, "refused": 3, "there": 1}
        assert not report.is_complete
        assert {failure.number for failure in report.failures} == {2, 3, 4}
        assert "does not fit" in seen[2].error and seen[2].run == "x-2"
        assert "was started with another input" in seen[3].error
        assert "no id" in seen[4].error
        assert (seen[5].run, seen[5].result) == ("taken", "there")

    play(story)


def test_no_more_is_taken_than_is_under_way(play: Play) -> None:
    async def story(stage: Stage) -> None:
        taken = done = most = 0

        def inputs() -> Iterator[int]:
            nonlocal taken, most
            for n in range(60):
                taken += 1
                most = max(most, taken - done)
                yield n

        def note(_: StartOutcome) -> None:
            nonlocal done
            done += 1

        await stage.client.start_many("count", inputs(), at_once=4, each=note)
        assert (taken, done) == (60, 60) and 1 < most <= 4

    play(story)


def test_a_call_that_was_broken_off_goes_on_where_it_was(play: Play) -> None:
    async def story(stage: Stage) -> None:
        async def broken() -> AsyncIterator[int]:
            for n in range(20):
                if n == 12:
                    raise ConnectionError("the table is gone")
                yield n

        with pytest.raises(ConnectionError):
            await stage.client.start_many("count", broken(), id="rows", at_once=3)
        assert 0 < sum((await requests(stage)).values()) <= 12
        report = await stage.client.start_many("count", range(20), id="rows")
        assert report.counts["there"] > 0 and sum(report.counts.values()) == 20
        assert await requests(stage) == Counter(f"rows-{n}" for n in range(1, 21))

    play(story)


def test_starts_have_labels_and_places_of_their_own_and_of_the_call(play: Play) -> None:
    async def story(stage: Stage) -> None:
        starts = [Start(1, metadata={"row": 1}), 2]
        of_all = {"metadata": {"batch": "b"}, "lane": "slow", "priority": 3}
        await stage.client.start_many("count", starts, id="p", **of_all)  # type: ignore[arg-type]
        first, second = [await stage.client.get(f"p-{n}") for n in (1, 2)]
        assert (first.metadata, second.metadata) == ({"batch": "b", "row": 1}, {"batch": "b"})
        assert (first.lane, second.lane) == ("slow", "slow")

    play(story)


def test_what_is_wrong_with_the_call_starts_nothing(play: Play) -> None:
    async def story(stage: Stage) -> None:
        client = stage.client
        with pytest.raises(UnknownWorkflow):
            await client.start_many("no-such", [1])
        with pytest.raises(UserError, match="at_once is 0"):
            await client.start_many("count", [1], at_once=0)
        with pytest.raises(UserError):
            await client.start_many("count", [1], id="no id")
        with pytest.raises(UserError, match="priority"):
            await client.start_many("count", [1], priority=1_000)
        assert not await requests(stage)
        assert (await client.start_many("count", [])).counts == {}

    play(story)
