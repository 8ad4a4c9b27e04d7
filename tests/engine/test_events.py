"""Published events on a real server: whoever waits gets them, once, whenever they were published.
Method: real engines; events before, while and after the wait; one engine that is behind."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.engine.definitions import Definitions
from treadle.engine.documents import Documents
from treadle.engine.inputs import Inputs
from treadle.engine.registers import Registers
from treadle.engine.waiter_log import SKEW_MS, WaiterLog
from treadle.engine.waiters import Waiters
from treadle.sdk import RunFailed, UserError, Workflow
from treadle.sdk.bus.acks import time_us
from treadle.sdk.matching import value_key
from treadle.sdk.messages import EventMatched
from treadle.sdk.waiters import Waiter

MATCH = 'event["id"] == input["order"]'
NAME = "order.paid"


def order(match: str = MATCH, **fields: Any) -> Workflow:
    """Return a workflow of one wait."""
    workflow = Workflow("order", input=dict)
    workflow.wait_for_event("paid", NAME, match=match, **fields)
    return workflow


async def waiters(stand: Stand) -> list[str]:
    """Return the keys of steps that wait."""
    s = stand.subjects
    found = stand.js.read(s.waiters_stream, s.all_waiters)
    return [e.subject async for e in found if e.data and not s.is_indexed_path(e.subject)]


async def waits(stand: Stand, count: int = 1) -> None:
    """Wait until so many steps are found by events."""
    await stand.until("the steps wait", lambda: waiters(stand), lambda keys: len(keys) == count)


async def matches(stand: Stand, run: str) -> int:
    """Return how often a run was told of an event."""
    return sum(b'"run.event_matched"' in event.data for event in await stand.events(run))


def test_one_event_completes_every_run_that_waits_for_it_and_no_other(play_both: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        runs = [await stand.client.start(order(), {"order": n % 3}, id=f"r{n}") for n in range(9)]
        await waits(stand, 9)
        await stand.client.publish_event(NAME, {"id": 1, "cents": 5})
        mine = [run for n, run in enumerate(runs) if n % 3 == 1]
        for run in mine:
            assert await run.result(timeout_s=10) == {"id": 1, "cents": 5}
        await waits(stand, 6)
        for run in runs:
            assert (await run.get()).status == ("completed" if run in mine else "running")
            assert await matches(stand, run.id) == (run in mine)
        view = await runs[0].get()
        assert view.step("paid").doing == "awaiting_event"
        assert f"waits for the event 'order.paid' with {MATCH}" in view.notes[0].text
        assert view.notes[0].command == "treadle event publish order.paid --payload JSON"
        timeline = await stand.client.timeline(mine[0].id)
        assert [(s.kind, s.outcome, s.detail) for s in timeline.spans] == [
            ("event", "completed", NAME)
        ]

    play_both(story)


@pytest.mark.parametrize("match", ["", 'event["id"] > 3', 'event["id"] == 4 and event["id"] > 3'])
def test_an_event_of_any_match_is_found(play: Play, match: str) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(order(match), {"order": 7})
        await waits(stand)
        if match:
            await stand.client.publish_event(NAME, {"id": 3})
            await stand.client.publish_event(NAME, "something else")
        await stand.client.publish_event("order.late", {"id": 4})
        await stand.client.publish_event("order", {"id": 4})
        await stand.client.publish_event(NAME, {"id": 4})
        assert await run.result(timeout_s=10) == {"id": 4}
        await waits(stand, 0)

    play(story)


def test_an_event_between_the_request_and_the_wait_is_not_missed(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("late")
        first = workflow.wait_for_signal("go")
        workflow.wait_for_event("paid", NAME, match='event["id"] == steps["go"]', after=first)
        run = await stand.client.start(workflow)
        for n in range(150):  # More than are looked at one by one.
            await stand.client.publish_event(NAME, {"id": n})
        await stand.quiet(0.3)
        await run.signal("go", 149)
        assert await run.result(timeout_s=10) == {"id": 149}
        await waits(stand, 0)

    play(story)


def test_an_event_from_before_the_request_is_none_of_the_runs_own(play: Play) -> None:
    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        await stand.client.publish_event(NAME, {"id": 7, "n": "old"})
        await stand.stop(engine)
        info = await stand.js.last(stand.subjects.external_stream, stand.subjects.all_external)
        assert info is not None

        old_ms = info.time_ms + SKEW_MS + 1
        await stand.until("the skew is over", lambda: server_ms(stand), lambda ms: ms > old_ms)
        run = await stand.client.start(order(), {"order": 7})
        await stand.engine()
        await waits(stand)
        await stand.client.publish_event(NAME, {"id": 7, "n": "new"})
        assert await run.result(timeout_s=10) == {"id": 7, "n": "new"}

    play(story)


async def server_ms(stand: Stand) -> int:
    """Return the server's time."""
    info = await stand.js.api(f"STREAM.INFO.{stand.subjects.external_stream}")
    return time_us(info["ts"]) // 1_000


def test_two_waits_in_a_row_need_two_events_and_two_beside_each_other_one(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("twice")
        first = workflow.wait_for_event("first", NAME)
        workflow.wait_for_event("beside", NAME)
        workflow.wait_for_event("second", NAME, after=first)
        run = await stand.client.start(workflow)
        await waits(stand, 2)
        await stand.client.publish_event(NAME, 1)
        await waits(stand, 1)
        await stand.quiet(0.3)
        document = await stand.status(run.id, "running")
        assert {s: e.status for s, e in document.steps.items()} == {
            "first": "completed",
            "beside": "completed",
            "second": "active",
        }
        await stand.client.publish_event(NAME, 2)
        assert await run.result(timeout_s=10) == {"beside": 1, "second": 2}

    play(story)


def test_publishing_one_id_twice_is_one_event(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        first = await stand.client.publish_event(NAME, {"id": 7}, id="e1")
        again = await stand.client.publish_event(NAME, {"id": 7}, id="e1")
        assert (again.sequence, again.is_repeated) == (first.sequence, True)
        with pytest.raises(UserError, match="was published with another payload"):
            await stand.client.publish_event(NAME, {"id": 8}, id="e1")
        late = await stand.client.publish_event("order.late", {"id": 7}, id="e1")
        assert late.sequence != first.sequence and not late.is_repeated
        with pytest.raises(UserError, match="Choose a name such as"):
            await stand.client.publish_event("order.*", 1)
        with pytest.raises(UserError, match="event id"):
            await stand.client.publish_event(NAME, 1, id="no id")

    play(story)


@pytest.mark.parametrize(("on_timeout", "result"), [("complete", None), ("fail", "timeout")])
def test_an_event_that_does_not_come_in_time_is_an_outcome(
    play: Play, on_timeout: Any, result: str | None
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = order(timeout=0.3, on_timeout=on_timeout)
        run = await stand.client.start(workflow, {"order": 7})
        if result is None:
            assert await run.result(timeout_s=10) is None
        else:
            with pytest.raises(RunFailed, match="did not come within"):
                await run.result(timeout_s=10)
        await waits(stand, 0)

    play(story)


def test_a_cancelled_run_waits_no_more(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(order(), {"order": 7})
        await waits(stand)
        await run.cancel()
        await stand.ended(run.id)
        await waits(stand, 0)
        await stand.client.publish_event(NAME, {"id": 7})
        await stand.quiet(0.3)
        assert await matches(stand, run.id) == 0

    play(story)


def test_a_match_that_asks_the_run_for_what_is_not_there_fails_it_at_once(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(order(), {})
        with pytest.raises(RunFailed, match=r"condition.*the input has no 'order'"):
            await run.result(timeout_s=10)

    play(story)


def test_a_match_may_ask_for_more_than_is_kept_with_the_waiter(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        big = "x" * 50_000
        run = await stand.client.start(order('event["id"] == len(input["order"])'), {"order": big})
        await waits(stand)
        (key,) = await waiters(stand)
        stored = await stand.js.last(stand.subjects.waiters_stream, key)
        assert stored is not None
        assert len(stored.data) < 1_000
        await stand.client.publish_event(NAME, {"id": 50_000})
        assert await run.result(timeout_s=10) == {"id": 50_000}

    play(story)


def test_an_event_meets_those_who_wait_for_its_value_and_reads_no_others(play: Play) -> None:
    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        runs = [await stand.client.start(order(), {"order": n}, id=f"r{n}") for n in range(40)]
        await waits(stand, 40)
        await stand.stop(engine)
        log = WaiterLog(stand.js, stand.subjects)
        (path,) = await log.paths(NAME)
        found = [each.waiter.run async for each in log.by_value(NAME, path, value_key(7))]
        assert (path, found) == (("id",), ["r7"])
        assert [each async for each in log.of_any(NAME)] == []
        await stand.client.publish_event(NAME, {"id": 7})
        await stand.engine()
        assert await runs[7].result(timeout_s=10) == {"id": 7}

    play(story)


def test_a_waiter_that_was_left_behind_is_swept_and_one_that_waits_is_not(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(order(), {"order": 7}, id="r1")
        await waits(stand)
        (key,) = await waiters(stand)
        stored = await stand.js.last(stand.subjects.waiters_stream, key)
        assert stored is not None
        waiter = msgspec.json.decode(stored.data, type=Waiter)
        log = WaiterLog(stand.js, stand.subjects)
        for left in ({"run": "gone"}, {"request": 10**6, "step": "other"}, {"step": "unknown"}):
            await log.put(msgspec.structs.replace(waiter, **left), (), "")
        js, s = stand.js, stand.subjects
        sweeper = Waiters(
            log, Documents(js, s), Definitions(js, s), Inputs(js, s, Registers(js, s))
        )
        assert await sweeper.sweep() == 3
        assert await waiters(stand) == [key]
        assert await sweeper.sweep() == 0

    play(story)


def test_a_told_event_of_another_request_changes_nothing(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(order(), {"order": 7}, id="run")
        await waits(stand)
        await stand.publish(EventMatched(step="paid", request=10**6, published=1))
        await stand.publish(EventMatched(step="paid", request=10**6, published=1))
        await stand.quiet(0.3)
        assert (await run.get()).status == "running"
        await stand.client.publish_event(NAME, {"id": 7})
        assert await run.result(timeout_s=10) == {"id": 7}

    play(story)


def test_what_is_published_and_is_not_json_fits_nobody_and_holds_up_nobody(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(order(""), {})
        await waits(stand)
        await stand.js.store(stand.subjects.external(NAME, "bad"), b"\xff")
        await stand.client.publish_event(NAME, "good")
        assert await run.result(timeout_s=10) == "good"
        later = await stand.client.start(order('event == "again"'), {})
        await waits(stand, 1)
        await stand.client.publish_event(NAME, "again")
        assert await later.result(timeout_s=10) == "again"

    play(story)


def test_events_and_waits_in_any_order_on_two_engines_all_meet(play_both: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        await stand.client.register(order())
        count = 30

        async def start(n: int) -> Any:
            run = await stand.client.start("order", {"order": n}, id=f"r{n}")
            return await run.result(timeout_s=20)

        async def publish(n: int) -> None:
            # After the request, and anywhere about the moment in which the step begins to wait.
            await stand.until("requested", lambda: stand.events(f"r{n}"), bool)
            await asyncio.sleep((n % 7) * 0.002)
            await stand.client.publish_event(NAME, {"id": n}, id=f"e{n}")

        results = await asyncio.gather(
            *(start(n) for n in range(count)), *(publish(n) for n in range(count))
        )
        assert results[:count] == [{"id": n} for n in range(count)]
        await waits(stand, 0)

    play_both(story)
