"""A message on a trigger's subject starts one run, whoever is up and whatever is changed.
Method: a real server, engines in this process; messages are published as any program would."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop, open_stand

from treadle.sdk import UserError, Workflow
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError
from treadle.sdk.client import Cron, Subject
from treadle.sdk.errors import UnknownTrigger
from treadle.sdk.run import RunDocument
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.sdk.triggers.trigger import Trigger


def orders(stand: Stand) -> str:
    """Return a subject no other test publishes on: the server is shared."""
    return f"{stand.settings.namespace}-orders"


async def create(stand: Stand, subject: str, name: str = "orders", **options: Any) -> None:
    on = Subject(subject, options.pop("max_in_flight", 0))
    await stand.client.triggers.create(name, options.pop("workflow", loop()), on, **options)


async def publish(stand: Stand, subject: str, *messages: bytes) -> None:
    """Publish as core NATS does, without an answer, and wait until the server has it all."""
    for message in messages:
        stand.js.connection.publish(subject, message)
    await stand.js.connection.flush()


async def runs(stand: Stand) -> list[RunDocument]:
    """Return the documents of all runs, in the order of their requests."""
    documents = stand.client._store.documents()
    found = [each async for each in documents if isinstance(each, RunDocument)]
    return sorted(found, key=lambda each: each.requested)


async def started(stand: Stand, count: int) -> list[RunDocument]:
    return await stand.until("the runs", lambda: runs(stand), lambda found: len(found) >= count)


async def inputs(stand: Stand, documents: list[RunDocument]) -> list[bytes]:
    found: list[bytes] = []
    for document in documents:
        event = (await stand.events(document.run))[0]
        found.append(event.data.partition(b'"input":')[2].partition(b',"metadata"')[0])
    return found


async def stored(stand: Stand, name: str = "orders") -> Trigger | None:
    found = await stand.client._store.trigger(name)
    return found[0] if found else None


async def captured(stand: Stand) -> int:
    """Return how many messages the trigger's own stream has had, 0 while nobody says it."""
    trigger = await stored(stand)
    assert trigger is not None and trigger.source is not None
    try:
        info = await stand.js.api(f"STREAM.INFO.{trigger.source.stream}")
    except Unknown:
        return 0
    return int(info["state"]["last_seq"])


async def consumers(stand: Stand, stream: str) -> list[str]:
    try:
        return (await stand.js.api(f"CONSUMER.NAMES.{stream}")).get("consumers") or []
    except ApiError:
        return ["no stream"]


async def stream(stand: Stand, subject: str, **config: Any) -> str:
    """Make a stream, as a user has one."""
    name = f"{stand.settings.namespace}-of-a-user"
    await stand.js.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [subject], **config})
    return name


def test_each_message_is_one_run_although_two_engines_take_them(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        await create(stand, f"{orders(stand)}.*", metadata={"team": "x"}, lane="a lane")
        sent = [b'{"n":%d}' % n for n in range(40)]
        await publish(stand, f"{orders(stand)}.new", *sent)
        found = await started(stand, len(sent))
        await stand.quiet(0.3)
        assert len(await runs(stand)) == len(sent)
        assert sorted(await inputs(stand, found)) == sorted(sent)
        metadata = found[0].metadata
        trigger = await stored(stand)
        assert trigger is not None and trigger.source is not None and trigger.source.is_captured
        assert metadata["team"] == "x" and metadata["trigger"] == "orders"
        assert metadata["subject"] == f"{orders(stand)}.new"
        assert metadata["message"].startswith(f"{trigger.source.stream}:")
        assert len({each.metadata["message"] for each in found}) == len(sent)
        assert found[0].lane == "a lane" and found[0].run.startswith("orders-")

    play(story)


def test_messages_count_from_the_creation_on_also_while_no_engine_runs(play: Play) -> None:
    async def story(stand: Stand) -> None:
        held = await stream(stand, orders(stand))
        await publish(stand, orders(stand), b'"before"')
        await create(stand, orders(stand))
        await publish(stand, orders(stand), b'"after"')
        await stand.engine()
        found = await started(stand, 1)
        await stand.quiet(0.3)
        assert await inputs(stand, await runs(stand)) == [b'"after"']
        assert found[0].metadata["message"] == f"{held}:2"

    play(story)


def test_a_stream_of_the_user_is_read_and_stays_as_it_is(play: Play) -> None:
    async def story(stand: Stand) -> None:
        held = await stream(stand, f"{orders(stand)}.>", retention="interest")
        await stand.engine()
        await create(stand, f"{orders(stand)}.new")
        await publish(stand, f"{orders(stand)}.new", b"1")
        await started(stand, 1)
        view = await stand.client.triggers.get("orders")
        assert view.stream == held
        await stand.client.triggers.delete("orders")
        await stand.until("no consumer", lambda: consumers(stand, held), lambda names: not names)
        assert (await stand.js.api(f"STREAM.INFO.{held}"))["config"]["retention"] == "interest"

    play(story)


def test_what_was_captured_goes_with_the_last_trigger_that_reads_it(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand, orders(stand))
        await create(stand, orders(stand), name="also")
        trigger = await stored(stand)
        assert trigger is not None and trigger.source is not None
        captured = trigger.source.stream
        await publish(stand, orders(stand), b"1")
        found = await started(stand, 2)
        assert sorted(each.metadata["trigger"] for each in found) == ["also", "orders"]
        await stand.client.triggers.delete("orders")
        with pytest.raises(UnknownTrigger):
            await stand.client.triggers.get("orders")
        await stand.until("it is gone", lambda: stored(stand), lambda found: found is None)
        assert len(await consumers(stand, captured)) == 1
        await stand.client.triggers.delete("also")
        await stand.until(
            "the stream is gone", lambda: consumers(stand, captured), lambda n: n == ["no stream"]
        )

    play(story)


def test_a_name_is_free_at_once_and_the_new_trigger_starts_with_new_messages(play: Play) -> None:
    """No engine has removed what the deleted one has left."""

    async def story(stand: Stand) -> None:
        await create(stand, orders(stand))
        await publish(stand, orders(stand), b'"of the first"')
        await stand.client.triggers.delete("orders")
        assert await stand.client.triggers.list() == ()
        await create(stand, f"{orders(stand)}-2")
        await publish(stand, f"{orders(stand)}-2", b'"of the second"')
        await stand.engine()
        await started(stand, 1)
        await stand.quiet(0.3)
        assert await inputs(stand, await runs(stand)) == [b'"of the second"']
        trigger = await stored(stand)
        assert trigger is not None and trigger.dropped == () and trigger.source is not None
        assert len(await consumers(stand, trigger.source.stream)) == 1

    play(story)


def test_a_trigger_that_is_written_again_unchanged_is_the_same_one(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand, orders(stand))
        await publish(stand, orders(stand), b"1")
        await started(stand, 1)
        before = await stored(stand)
        assert before is not None and before.source is not None
        await create(stand, orders(stand))
        assert await stored(stand) == before
        # And stored again by hand, which every engine hears.
        found = await stand.client._store.trigger("orders")
        assert found is not None and found[0] is not None
        assert await stand.client._store.put_trigger("orders", found[0], found[1])
        await stand.quiet(0.3)
        await publish(stand, orders(stand), b"2")
        await started(stand, 2)
        await stand.quiet(0.3)
        assert await inputs(stand, await runs(stand)) == [b"1", b"2"]
        assert await consumers(stand, before.source.stream) == [before.source.consumer]

    play(story)


def test_messages_wait_while_a_trigger_is_paused(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand, orders(stand))
        await stand.client.triggers.pause("orders")
        await publish(stand, orders(stand), b"1", b"2")
        await stand.quiet(0.5)
        assert await runs(stand) == []
        view = await stand.client.triggers.get("orders")
        assert view.waiting == 2 and "messages wait" in view.notes[0].text
        await stand.client.triggers.resume("orders")
        await started(stand, 2)

    play(story)


@pytest.mark.parametrize(
    ("sent", "told"),
    [(b"no json", "it is not JSON"), (b'"text"', "does not fit"), (b"", "there is none")],
)
def test_a_message_that_is_no_input_is_a_dead_letter_and_the_next_one_starts_its_run(
    play: Play, sent: bytes, told: str
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("numbers", input=dict[str, int])
        workflow.task("count")
        await create(stand, orders(stand), workflow=workflow)
        await publish(stand, orders(stand), sent, b'{"n":1}')
        (run,) = await started(stand, 1)
        letters = await stand.until("the letter", stand.letters, lambda found: len(found) == 1)
        letter = letters[0]
        assert (letter.reason, letter.workflow) == ("unusable_message", "numbers")
        assert letter.failure is not None and told in letter.failure.message
        assert base64.b64decode(letter.body_base64) == sent
        assert letter.run != run.run and letter.subject == orders(stand)

        async def noted() -> Trigger | None:
            return await stored(stand)

        await stand.until("it is noted", noted, lambda found: bool(found and found.failure))
        (note,) = (await stand.client.triggers.get("orders")).notes
        assert told in note.text and letter.run not in note.text
        assert note.text.endswith("The message is a dead letter: `treadle dead show 1`.")

    play(story)


def test_a_message_waits_until_its_workflow_is_registered(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand, orders(stand))
        s = stand.subjects
        await stand.js.purge(s.workflows_stream, s.workflow_latest("one-loop"))
        await publish(stand, orders(stand), b"1")

        async def noted() -> str:
            trigger = await stored(stand)
            return trigger.failure if trigger else ""

        await stand.until("it is told", noted, lambda text: "not registered" in text)
        await stand.client.register(loop())
        await started(stand, 1)

    play(story)


@pytest.mark.slow
def test_no_more_runs_are_in_flight_than_the_bound_and_all_messages_get_one(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        await create(stand, orders(stand), max_in_flight=2)
        await publish(stand, orders(stand), *(b"%d" % n for n in range(5)))
        for ended in range(5):
            await started(stand, min(ended + 2, 5))
            await stand.quiet(0.2)
            under_way = [each.run for each in await runs(stand) if not each.is_terminal]
            assert len(under_way) == min(2, 5 - ended)
            await stand.client.cancel(under_way[0])
            await stand.status(under_way[0], "cancelled")

    play(story)


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        ("", "it has 0 characters"),
        ("a b", "white space"),
        ("a..b", "empty part"),
        ("a.>.b", "> stands for all that follows"),
        ("a.b*", "stand for a whole part"),
        ("$KV.x.y", "is the server's"),
        (">", "the messages of everybody"),
    ],
)
def test_what_cannot_be_a_subject_is_refused(play: Play, subject: str, told: str) -> None:
    async def story(stand: Stand) -> None:
        with pytest.raises(UserError, match=told):
            await create(stand, subject)
        assert await stand.client.triggers.list() == ()

    play(story)


def test_a_subject_that_no_one_stream_holds_is_refused_with_what_holds_it(play: Play) -> None:
    async def story(stand: Stand) -> None:
        held = await stream(stand, f"{orders(stand)}.old")
        with pytest.raises(UserError, match=f"'{held}' holds {orders(stand)}.old"):
            await create(stand, f"{orders(stand)}.*")
        own = f"{stand.settings.namespace}.evt.>"
        with pytest.raises(UserError, match="of Treadle itself"):
            await create(stand, own)
        queue = f"{stand.settings.namespace}-queue"
        config = {"name": queue, "subjects": [queue], "retention": "workqueue"}
        await stand.js.api(f"STREAM.CREATE.{queue}", config)
        await create(stand, queue, name="first")
        with pytest.raises(UserError, match="refused a consumer"):
            await create(stand, queue, name="second")
        assert [view.name for view in await stand.client.triggers.list()] == ["first"]

    play(story)


def test_another_kind_takes_the_place_of_a_trigger_only_when_it_is_to(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand, orders(stand))
        trigger = await stored(stand)
        assert trigger is not None and trigger.source is not None
        with pytest.raises(UserError, match="messages on"):
            await stand.client.triggers.create("orders", loop(), Cron("@daily"))
        await stand.client.triggers.create("orders", loop(), Cron("@daily"), replace=True)
        captured = trigger.source.stream
        await stand.until(
            "the stream is gone", lambda: consumers(stand, captured), lambda n: n == ["no stream"]
        )

        async def is_scheduled() -> object:
            s = stand.subjects
            return await stand.js.last(s.timers_stream, s.trigger_timer("orders"))

        await stand.until("the schedule is set", is_scheduled, bool)

    play(story)


def test_a_consumer_that_was_deleted_is_made_again_and_starts_no_second_run(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand, orders(stand))
        await publish(stand, orders(stand), b"1")
        await started(stand, 1)
        trigger = await stored(stand)
        assert trigger is not None and trigger.source is not None
        source = trigger.source
        await stand.js.api(f"CONSUMER.DELETE.{source.stream}.{source.consumer}")
        await publish(stand, orders(stand), b"2")
        await started(stand, 2)
        await stand.quiet(0.3)
        assert await inputs(stand, await runs(stand)) == [b"1", b"2"]

    play(story)


def test_messages_that_came_before_the_server_was_killed_start_one_run_each(
    own_server: NatsServer, namespace: str
) -> None:
    async def story() -> None:
        async with open_stand(Settings(url=own_server.url, namespace=namespace)) as stand:
            await stand.engine()
            await stand.engine()
            await create(stand, "orders.*")
            sent = [b"%d" % n for n in range(30)]
            await publish(stand, "orders.new", *sent[:20])
            # A message without an answer is stored a moment after the server has read it.
            await stand.until("all are stored", lambda: captured(stand), lambda n: n == 20)
            own_server.kill()
            own_server.restart()
            await stand.until("it answers", lambda: captured(stand), lambda n: n == 20)
            await publish(stand, "orders.new", *sent[20:])
            found = await stand.until(
                "all runs", lambda: runs(stand), lambda runs: len(runs) >= 30, 30
            )
            await stand.quiet(0.3)
            assert len(await runs(stand)) == 30
            assert sorted(await inputs(stand, found)) == sorted(sent)

    asyncio.run(story())
