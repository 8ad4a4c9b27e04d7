"""Collected starts become runs: the last one, or the list of them, once each.
Method: a real server, engines in this process; windows are short, or fall due by what is stored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.engine.collect_log import CollectLog
from treadle.engine.collecting import Collecting
from treadle.engine.collector import Collector
from treadle.engine.definitions import Definitions
from treadle.engine.requesting import Requests
from treadle.sdk import UserError, Workflow
from treadle.sdk.client import Subject
from treadle.sdk.client.store import Store
from treadle.sdk.collected import key_of
from treadle.sdk.collecting import Batch, Collect, Debounce
from treadle.sdk.errors import InvalidPayload
from treadle.sdk.messages import RunRequested
from treadle.sdk.payload import PAYLOAD_BYTES_MAX
from treadle.sdk.subjects_of_starts import StartsOf


def collecting(collect: Collect, **options: Any) -> Workflow[Any]:
    """Return a workflow whose runs wait for a worker that nobody starts."""
    workflow = Workflow("collecting", collect=collect, **options)
    workflow.task("work")
    return workflow


async def requests(stand: Stand) -> list[RunRequested]:
    """Return the requests of all runs, in their order; one that was stored twice once."""
    s = stand.subjects
    found: dict[str, RunRequested] = {}
    async for event in stand.js.read(s.events_stream, s.all_events):
        if b'"run.requested"' in event.data:
            request = msgspec.json.decode(event.data, type=RunRequested)
            found.setdefault(s.parse_event(event.subject).run, request)
    return list(found.values())


async def started(stand: Stand, count: int) -> list[Any]:
    """Wait until so many runs were requested; return their inputs."""
    found = await stand.until("runs", lambda: requests(stand), lambda it: len(it) >= count)
    assert len(found) == count
    return [msgspec.json.decode(each.input) for each in found]


async def left(stand: Stand) -> list[str]:
    s = stand.subjects
    return [each.subject async for each in stand.js.read(s.collect_stream, s.all_collected)]


def collector(stand: Stand) -> Collector:
    """Return what an engine has, for a sweep by hand."""
    log = CollectLog(stand.js, stand.subjects, Definitions(stand.js, stand.subjects))
    store = Store(stand.js, stand.subjects)
    return Collector(
        stand.subjects, log, Collecting(log, Requests(stand.js, stand.subjects, store))
    )


@pytest.mark.slow
def test_the_starts_of_a_key_become_one_run_with_the_last_input(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        workflow = collecting(Debounce(0.3, 60, 'input["customer"]'))
        receipts = [
            await stand.client.collect(workflow, {"customer": who, "n": n})
            for n in range(4)
            for who in ("ana", "bo")
        ]
        assert receipts[0].key == "ana"
        found = sorted(await started(stand, 2), key=lambda each: each["customer"])
        assert found == [{"customer": "ana", "n": 3}, {"customer": "bo", "n": 3}]
        await stand.quiet(0.3)
        of_ana = next(
            each for each in await requests(stand) if each.metadata["window_key"] == "ana"
        )
        assert of_ana.metadata == {
            "window_key": "ana",
            "window_first": receipts[0].sequence,
            "window_last": receipts[6].sequence,
            "window_count": 4,
        }
        await stand.until("starts without an id are gone", lambda: left(stand), lambda it: not it)
        assert not await stand.js.last(stand.subjects.timers_stream, ">")

    play(story)


@pytest.mark.slow
def test_a_debounce_begins_at_the_latest_so_long_after_the_first_start(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = collecting(Debounce(0.5, 0.6))
        await stand.client.collect(workflow, 0)
        number = 0
        while not await requests(stand):
            number += 1
            await stand.client.collect(workflow, number)
        (request,) = await requests(stand)
        assert request.metadata["window_count"] == msgspec.json.decode(request.input) + 1

    play(story)


@pytest.mark.slow
def test_a_batch_begins_when_it_is_full_and_with_what_there_is_when_its_time_is_over(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        workflow = collecting(Batch(3, 0.5), input=int)
        for number in range(8):
            await stand.client.collect(workflow, number, id=f"start-{number}")
        again = await stand.client.collect(workflow, 7, id="start-7")
        assert again.sequence == 8
        assert await started(stand, 3) == [[0, 1, 2], [3, 4, 5], [6, 7]]
        await stand.quiet(0.3)
        assert (await stand.client.collect(workflow, 1, id="start-1")).sequence == 2
        assert len(await started(stand, 3)) == 3

    play(story)


@pytest.mark.slow
def test_a_batch_has_no_more_than_a_payload_holds(play: Play) -> None:
    async def story(stand: Stand) -> None:
        workflow = collecting(Batch(100, 0.3))
        large = "x" * (PAYLOAD_BYTES_MAX // 2)
        for _ in range(2):
            await stand.client.collect(workflow, large)
        await stand.engine()
        assert await started(stand, 2) == [[large], [large]]
        with pytest.raises(InvalidPayload, match="bytes"):
            await stand.client.collect(workflow, "x" * (PAYLOAD_BYTES_MAX - 3))

    play(story)


@pytest.mark.slow
def test_starts_of_two_versions_do_not_meet(play: Play) -> None:
    async def story(stand: Stand) -> None:
        for max_wait_s in (0.3, 0.4):
            for number in range(2):
                await stand.client.collect(collecting(Batch(9, max_wait_s)), number)
        await stand.engine()
        assert await started(stand, 2) == [[0, 1], [0, 1]]
        assert len({each.definition for each in await requests(stand)}) == 2

    play(story)


@pytest.mark.slow
def test_open_windows_are_listed_until_their_runs_are_requested(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = collecting(Batch(3, 60, 'input["c"]'))
        for number in range(5):
            who = "ana" if number % 2 else "bo"
            await stand.client.collect(workflow, {"c": who}, id=f"s{number}")
        await started(stand, 1)
        s = stand.subjects

        async def timer() -> list[str]:
            found = stand.js.read(s.timers_stream, s.all_collect_timers)
            return [each.subject async for each in found]

        await stand.until("an engine has looked at them", timer, lambda it: len(it) > 0)
        await stand.quiet(0.3)
        (window,) = await stand.client.collected()
        assert (window.workflow, window.key, window.count) == ("collecting", "ana", 2)
        assert (window.first, window.last, window.is_closed) == (2, 4, False)
        assert await stand.client.collected("other") == []
        await stand.client.collect(workflow, {"c": "ana"})
        await started(stand, 2)
        await stand.until("it is a run", stand.client.collected, lambda it: not it)

    play(story)


def test_a_start_that_no_run_could_take_is_refused(play: Play) -> None:
    async def story(stand: Stand) -> None:
        client = stand.client
        workflow = collecting(Batch(2, 60, 'input["c"]'), input=dict[str, int])
        with pytest.raises(InvalidPayload, match="does not fit"):
            await client.collect(workflow, {"c": "text"})
        with pytest.raises(InvalidPayload, match="no key by which its starts are collected"):
            await client.collect(workflow, {"d": 1})
        with pytest.raises(InvalidPayload, match="object"):
            await client.collect("collecting", [{"c": 1}])
        await client.collect(workflow, {"c": 1}, id="one")
        with pytest.raises(UserError, match="with id 'one' was collected with another input"):
            await client.collect(workflow, {"c": 2}, id="one")
        plain = Workflow("plain")
        plain.task("work")
        with pytest.raises(UserError, match="does not collect its starts"):
            await client.collect(plain, 1)
        own = collecting(Batch(2, 60), singleton="queue", singleton_key='input["c"]')
        with pytest.raises(InvalidPayload, match="no key of the singleton"):
            await client.collect(own, {"d": 1})
        assert len(await left(stand)) == 1

    play(story)


def test_a_run_of_a_batch_is_started_by_hand_with_a_list(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = collecting(
            Batch(9, 60), input=dict[str, int], singleton="queue", singleton_key='input["c"]'
        )
        run = await stand.client.start(workflow, [{"c": 1}, {"c": 2}], id="by-hand")
        assert (await stand.status("by-hand", "running")).lane == "collecting:1"
        for wrong in ({"c": 1}, [{"c": "x"}], []):
            with pytest.raises(InvalidPayload):
                await stand.client.start(workflow, wrong)
            with pytest.raises(InvalidPayload):
                await stand.client.start("collecting", wrong)
        request = (await requests(stand))[0]
        unfit = msgspec.structs.replace(request, input=msgspec.Raw(b'[{"c":"x"}]'), lane="")
        await stand.publish(unfit, "unfit")
        failure = (await stand.ended("unfit")).failure
        assert failure is not None and failure.type == "invalid_input"
        assert "[0]" in failure.message
        await run.cancel()

    play(story)


def test_what_is_no_start_is_left_out_and_the_others_go_on(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stand: Stand) -> None:
        workflow = collecting(Batch(2, 60), input=int)
        definition = workflow.build()
        await stand.client.register(workflow)
        starts = StartsOf("collecting", key_of(definition, b"1").digest)
        await stand.js.store(stand.subjects.collected(starts, "", "by-hand"), b"{}")
        await stand.client.collect(workflow, 1)
        await stand.engine()
        await stand.client.collect(workflow, 2)
        assert await started(stand, 1) == [[1, 2]]

    play(story)
    assert "engine.collected-unusable" in caplog.text


@pytest.mark.slow
def test_each_message_of_a_subject_is_collected_once(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        workflow = collecting(Batch(10, 60))
        subject = f"{stand.settings.namespace}-orders"
        on = Subject(subject, max_in_flight=1)
        with pytest.raises(UserError, match="collects its starts"):
            await stand.client.triggers.create("orders", workflow, on, lane="a lane")
        await stand.client.triggers.create("orders", workflow, on)
        for number in range(20):
            stand.js.connection.publish(subject, b"%d" % number)
        await stand.js.connection.flush()
        found = await started(stand, 2)
        assert sorted(found[0] + found[1]) == list(range(20))
        request = (await requests(stand))[0]
        assert request.metadata["trigger"] == "orders"
        assert request.metadata["window_count"] == 10

    play(story)


@pytest.mark.slow
def test_a_sweep_finds_what_nobody_is_told_of_and_deletes_what_is_old(play: Play) -> None:
    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        workflow = collecting(Debounce(0.2, 60))
        await stand.client.collect(workflow, 1, id="one")
        s = stand.subjects

        async def acked() -> bool:
            info = await stand.js.api(f"CONSUMER.INFO.{s.collect_stream}.{s.collect_consumer()}")
            return int(info["ack_floor"]["stream_seq"]) == 1

        await stand.until("the start is acked", acked, bool)
        await stand.stop(engine)
        await stand.js.purge(s.timers_stream, s.all_timers)
        await stand.js.purge(s.timers_stream, s.all_fired)
        assert await requests(stand) == []
        swept = collector(stand)

        async def again() -> list[RunRequested]:
            await swept.sweep()
            await swept.wait_idle(5)
            return await requests(stand)

        await stand.until("the run", again, lambda found: len(found) == 1)
        assert len(await left(stand)) == 1
        await swept.sweep(remembered_s=0.001)
        assert await left(stand) == []

    play(story)
