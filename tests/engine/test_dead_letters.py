"""Dead letters are read, and replayed byte for byte, once. Method: a real server and engine; events
and messages of any bytes, with headers; a replay that dies half-way is written by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.engine import runs
from treadle.sdk import Workflow
from treadle.sdk.bus.resending import REPLAY_OF, whole
from treadle.sdk.client import Subject
from treadle.sdk.client.letters import DeadLetterView
from treadle.sdk.errors import RunConflict, RunFailed, UnknownDeadLetter, UserError
from treadle.sdk.messages import LetterMark, SignalReceived
from treadle.worker import TaskContext, Worker

BYTES = b"\x00\xff\xfe not UTF-8 \r\n\x80"
HEADERS = {"traceparent": "00-1", "X-Kind": "torn: a b", "Nats-Msg-Id": "once"}


async def letters(stand: Stand, count: int, **wanted: Any) -> list[DeadLetterView]:
    """Wait for so many letters, newest first."""

    async def read() -> list[DeadLetterView]:
        return list((await stand.client.dead_letters.list(**wanted)).letters)

    return await stand.until(f"{count} letters", read, lambda found: len(found) == count)


async def torn(stand: Stand) -> tuple[int, DeadLetterView]:
    """Store an event that is none, with headers; return its sequence and its letter."""
    subject = stand.subjects.event("torn")
    sequence = await stand.js.store(subject, BYTES, headers=HEADERS)
    (letter,) = await letters(stand, 1)
    return sequence, letter


async def mark_of(stand: Stand, number: int) -> tuple[str, LetterMark | None]:
    """Return where the mark of a letter is, and the mark."""
    s = stand.subjects
    stored = await stand.js.get(s.dead_stream, number)
    assert stored is not None
    subject = s.letter_mark(stored.subject)
    found = await stand.js.last(s.dead_stream, subject)
    return subject, msgspec.json.decode(found.data, type=LetterMark) if found else None


def test_a_letter_says_what_why_since_when_and_of_which_run(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        sequence, listed = await torn(stand)
        assert (listed.reason, listed.run, listed.state) == ("corrupt_event", "torn", "open")
        assert listed.body == b"" and listed.body_bytes == len(BYTES)
        letter = await stand.client.dead_letters.get(listed.number)
        assert letter.body == BYTES and letter.is_whole
        assert letter.failure is not None and "invalid" in letter.failure.message.lower()
        assert (letter.subject, letter.sequence) == (stand.subjects.event("torn"), sequence)
        assert letter.headers == HEADERS
        assert 0 < letter.happened_ms <= letter.stored_ms
        for number in (0, listed.number + 1):
            with pytest.raises(UnknownDeadLetter):
                await stand.client.dead_letters.get(number)

    play(story)


def test_a_replay_is_the_same_subject_payload_and_headers_but_the_id_and_it_is_made_once(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        _, letter = await torn(stand)
        dead = stand.client.dead_letters
        made = await dead.replay(letter.number)
        copy = await whole(stand.js, made.stream, made.sequence)
        assert copy is not None
        assert (copy.subject, copy.data) == (letter.subject, BYTES)
        for line in (b"traceparent: 00-1", b"X-Kind: torn: a b"):
            assert line in copy.headers
        assert b"Nats-Msg-Id" not in copy.headers and REPLAY_OF.encode() in copy.headers
        # It is as torn as before, so it is set aside again, as a letter of its own.
        (again,) = await letters(stand, 1)
        assert (again.number > letter.number, again.sequence) == (True, made.sequence)
        with pytest.raises(RunConflict, match=f"was replayed at .*, as message {made.sequence}"):
            await dead.replay(letter.number)
        done = await dead.get(letter.number)
        assert (done.state, done.replays) == ("replayed", 1)
        assert done.done == f"message {made.sequence} of stream {stand.subjects.events_stream}"
        twice = await dead.replay(letter.number, again=True)
        assert twice.sequence > made.sequence
        assert (await dead.get(letter.number)).replays == 2
        assert len(await stand.events("torn")) == 3
        assert len(await letters(stand, 4 - 1, all=True)) == 3

    play(story)


def test_clients_that_replay_at_once_while_others_write_make_one_copy(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        _, letter = await torn(stand)
        writing = [stand.publish(b"noise", "torn") for _ in range(20)]
        replays = [stand.client.dead_letters.replay(letter.number) for _ in range(4)]
        done = await asyncio.gather(*replays, *writing, return_exceptions=True)
        made = [each for each in done[:4] if not isinstance(each, RunConflict)]
        assert made and not any(isinstance(each, BaseException) for each in made)
        assert len({each.sequence for each in made}) == 1
        bodies = [stored.data for stored in await stand.events("torn")]
        assert bodies.count(BYTES) == 2 and len(bodies) == 22

    play(story)


@pytest.mark.slow
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_replay_whose_client_died_half_way_is_finished_and_not_made_twice(
    play: Play, is_stored: bool
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        sequence, letter = await torn(stand)
        s = stand.subjects
        subject, none = await mark_of(stand, letter.number)
        assert none is None
        mark = LetterMark(state="replaying", nonce="dead", after=sequence)
        await stand.js.store(subject, msgspec.json.encode(mark))
        if is_stored:
            name = f"{s.events_stream}:{sequence}:dead"
            headers = {REPLAY_OF: name}
            copy = await stand.js.store(s.event("torn"), BYTES, headers=headers)
        # A message of somebody else's is behind it.
        await stand.publish(b"noise", "torn")
        made = await stand.client.dead_letters.replay(letter.number)
        assert not is_stored or made.sequence == copy
        bodies = [stored.data for stored in await stand.events("torn")]
        assert bodies.count(BYTES) == 2 and len(bodies) == 3
        _, done = await mark_of(stand, letter.number)
        assert done is not None and (done.state, done.stored) == ("replayed", made.sequence)

    play(story)


def test_a_failed_run_is_tried_again_by_its_letter_once(play: Play) -> None:
    async def story(stand: Stand) -> None:
        is_open = False
        worker = Worker()

        @worker.handler("ship")
        async def ship(ctx: TaskContext[Any]) -> str:
            if not is_open:
                raise ValueError("closed")
            return "shipped"

        workflow = Workflow("order")
        workflow.task("ship")
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, id="order")
        with pytest.raises(RunFailed):
            await run.result(timeout_s=10)
        (letter,) = await letters(stand, 1, workflow="order", reason="run_failed")
        assert (letter.run, letter.step) == ("order", "ship")
        assert letter.failure is not None and letter.failure.message == "closed"
        assert (await run.explain()).reasons[-1].command == f"treadle dead show {letter.number}"
        is_open = True
        made = await stand.client.dead_letters.replay(letter.number)
        assert made.run == "order-r1"
        assert await stand.client.result(made.run, timeout_s=10) == "shipped"
        with pytest.raises(RunConflict, match=r"was tried again at .*, as run order-r1"):
            await stand.client.dead_letters.replay(letter.number)
        assert "dead_letter" not in {each.kind for each in (await run.explain()).reasons}

    play(story)


@pytest.mark.slow
def test_a_message_of_a_trigger_starts_its_run_when_it_is_replayed(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        strict = Workflow("numbers", input=dict[str, int])
        strict.task("count")
        await stand.client.register(strict)
        subject = f"orders.{stand.subjects.namespace}"
        await stand.client.triggers.create("orders", "numbers", Subject(subject))
        await stand.js.store(subject, b'{"n":"many"}', headers={"X-Shop": "north"})
        (letter,) = await letters(stand, 1, reason="unusable_message")
        lax = Workflow("numbers", input=dict[str, str])
        lax.task("count")
        await stand.client.register(lax)
        made = await stand.client.dead_letters.replay(letter.number)
        copy = await whole(stand.js, made.stream, made.sequence)
        assert (
            copy is not None and copy.data == b'{"n":"many"}' and b"X-Shop: north" in copy.headers
        )

        async def started() -> int:
            return len(await stand.client.list(workflow="numbers"))

        await stand.until("its run", started, lambda count: count == 1)

    play(story)


def test_an_event_that_came_before_its_run_completes_it_when_it_is_replayed(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "UNKNOWN_RUN_DELIVERIES", 1)

    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("wait")
        workflow.wait_for_signal("go")
        await stand.client.register(workflow)
        signal = SignalReceived(name="go", payload=msgspec.Raw(b'{"n":"\\u00e9"}'))
        await stand.publish(signal, "late", message_id="once")
        (letter,) = await letters(stand, 1, reason="unknown_run")
        run = await stand.client.start("wait", id="late")
        made = await stand.client.dead_letters.replay(letter.number)
        assert await run.result(timeout_s=10) == {"n": "é"}
        copy = await whole(stand.js, made.stream, made.sequence)
        assert copy is not None and copy.data == msgspec.json.encode(signal)

    play(story)


@pytest.mark.slow
def test_what_is_discarded_leaves_the_list_and_stays_to_be_read(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        _, letter = await torn(stand)
        dead = stand.client.dead_letters
        await dead.discard(letter.number, "somebody's test")
        await dead.discard(letter.number, "once more")
        assert (await dead.list()).letters == ()
        (kept,) = (await dead.list(all=True)).letters
        assert (kept.state, kept.done) == ("discarded", "somebody's test")
        assert (await dead.get(letter.number)).body == BYTES
        with pytest.raises(RunConflict, match=r"was discarded at .*: somebody's test"):
            await dead.replay(letter.number)

    play(story)


@pytest.mark.slow
def test_pages_are_newest_first_and_lose_no_letter(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        for number in range(7):
            await stand.publish(b"{", f"run-{number}")
        everything = await letters(stand, 7)
        dead = stand.client.dead_letters
        await dead.discard(everything[2].number)
        found: list[str] = []
        cursor: int | None = None
        while True:
            page = await dead.list(limit=2, cursor=cursor)
            found += [each.run for each in page.letters]
            if (cursor := page.cursor) is None:
                break
        expected = [each.run for each in everything]
        del expected[2]
        assert found == expected
        assert [each.run for each in (await dead.list(run="run-3")).letters] == ["run-3"]

    play(story)


@pytest.mark.slow
def test_a_message_too_large_for_a_letter_is_replayed_from_where_it_is(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        body = b"\xff" * (stand.js.connection.max_payload_bytes - 4_096)
        sequence = await stand.publish(body, "torn")
        (listed,) = await letters(stand, 1)
        assert (listed.is_whole, listed.body_bytes) == (False, len(body))
        made = await stand.client.dead_letters.replay(listed.number)
        copy = await whole(stand.js, made.stream, made.sequence)
        assert copy is not None and copy.data == body
        newest = (await letters(stand, 1))[0]
        s = stand.subjects
        await stand.js.purge(s.events_stream, s.event("torn"))
        assert newest.sequence > sequence
        with pytest.raises(UserError, match="the whole is gone: its retention has passed"):
            await stand.client.dead_letters.replay(newest.number)

    play(story)


def test_a_poison_task_fails_alone_and_the_others_go_on(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        done: list[str] = []
        worker = Worker()

        @worker.handler("link")
        async def link(ctx: TaskContext[Any]) -> Any:
            if ctx.run == "poison":
                raise SystemExit(3)
            done.append(ctx.run)
            return ctx.complete("fine")  # type: ignore[attr-defined]

        stand.worker(worker)
        names = ["poison", *(f"run-{n}" for n in range(5))]
        for name in names:
            await stand.client.start(loop(), {}, id=name)
        for name in names[1:]:
            assert await stand.client.result(name, timeout_s=10) == "fine"
        with pytest.raises(RunFailed):
            await stand.client.result("poison", timeout_s=10)
        (letter,) = await letters(stand, 1)
        assert (letter.run, letter.reason) == ("poison", "run_failed")
        assert letter.failure is not None and letter.failure.type == "SystemExit"
        assert sorted(done) == names[1:]

    play(story)
