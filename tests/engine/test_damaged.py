"""A damaged or deleted value ends the run that needs it, by name, and a cancel ends it at once.
Method: a real server, and values written past the engine or deleted as an operator would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.crash.namespace import Standing
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.engine import intake, steps
from treadle.engine.overdue import Overdue
from treadle.sdk import UnknownRun
from treadle.sdk.messages import Ended, RunRequested, Task
from treadle.sdk.run import RunDocument
from treadle.worker import LoopContext, Worker
from treadle.worker.verdict import Complete

Damage = Callable[[Stand, str, str], Awaitable[object]]


async def _garbage(stand: Stand, stream: str, subject: str) -> object:
    return await stand.js.store(subject, b"\xff\xfe")


async def _another_value(stand: Stand, stream: str, subject: str) -> object:
    return await stand.js.store(subject, b"{}")


async def _deleted(stand: Stand, stream: str, subject: str) -> object:
    return await stand.js.store(subject, b"", headers={"KV-Operation": "DEL"})


async def _purged(stand: Stand, stream: str, subject: str) -> object:
    return await stand.js.purge(stream, subject)


DAMAGES: list[Damage] = [_garbage, _another_value, _deleted]


def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "POISON_DELIVERIES", 3)
    monkeypatch.setattr(intake, "FAILED_LATER_MS", 10)
    monkeypatch.setattr(steps, "GHOST_DELIVERIES", 2)


async def _damage(stand: Stand, what: str, damage: Damage) -> str:
    """Damage what a run needs; return its key."""
    s = stand.subjects
    if what == "register":
        await damage(stand, s.steps_stream, s.register("run", "loop", "link"))
        return "main.run.loop.t.link"
    await damage(stand, s.runs_stream, s.run_document("run"))
    return "run"


@pytest.mark.parametrize("damage", [*DAMAGES, _purged])
def test_a_run_without_its_register_fails_and_names_the_key(
    play: Play, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    _impatient(monkeypatch)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), {}, id="run")
        await stand.client.start(loop(), {}, id="other")
        token = (await stand.holds(Task)).token
        key = await _damage(stand, "register", damage)
        await stand.completes(token, "lost")
        ended = await stand.ended()
        assert ended.status == "failed"
        assert ended.failure is not None
        assert ended.failure.type == "StoredUnreadable"
        assert f"bucket '{stand.subjects.steps_bucket}', key '{key}'" in ended.failure.message
        await _register_ended(stand)
        await _goes_on(stand)

    play(story)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_without_its_document_fails_by_its_request(
    play: Play, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    _impatient(monkeypatch)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), {}, id="run")
        await stand.client.start(loop(), {}, id="other")
        token = (await stand.holds(Task)).token
        await _damage(stand, "document", damage)
        await stand.completes(token, "lost")
        ended = await _ended(stand)
        assert (ended.status, ended.workflow) == ("failed", "one-loop")
        assert f"bucket '{stand.subjects.runs_bucket}', key 'run'" in str(ended.failure)
        await _goes_on(stand)

    play(story)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("what", ["register", "document"])
def test_a_cancel_ends_a_run_at_once_whatever_of_it_is_damaged(
    play: Play, what: str, damage: Damage
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), {}, id="run")
        await stand.holds(Task)
        await _damage(stand, what, damage)
        await stand.client.cancel("run", "damaged")
        ended = await _ended(stand)
        assert ended.status == "cancelled"
        assert str(ended.failure) == "cancelled: damaged"
        await _register_ended(stand)
        assert await stand.letters() == []

    play(story)


def test_the_worker_of_a_deleted_register_has_its_run_ended(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    _impatient(monkeypatch)

    async def story(stand: Stand) -> None:
        worker, deleted = Worker(), asyncio.Event()

        @worker.handler("link")
        async def hold(ctx: LoopContext[Any]) -> Complete:
            await deleted.wait()
            await ctx.checkpoint("fenced by the delete: says nothing")
            return ctx.complete()

        await stand.engine()
        stand.worker(worker)
        await stand.client.start(loop(), {}, id="run")
        await stand.holds(Task)
        await _damage(stand, "register", _deleted)
        deleted.set()
        ended = await stand.ended()
        assert ended.failure is not None
        assert ended.failure.type == "StoredUnreadable"

    play(story)


def test_what_a_person_sees_of_a_damaged_register_is_its_key_and_a_way_out(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), {}, id="run")
        await stand.holds(Task)
        key = await _damage(stand, "register", _garbage)
        note = (await stand.client.get("run")).notes[0]
        assert f"key '{key}'" in note.text
        assert note.command == "treadle run cancel run"

    play(story)


def test_a_run_may_start_where_a_key_was_deleted_with_nothing_else_left(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await _damage(stand, "document", _deleted)
        with pytest.raises(UnknownRun):
            await stand.client.get("run")
        await stand.client.start(loop(), {}, id="run")
        token = (await stand.holds(Task)).token
        await stand.completes(token, "fine")
        assert await stand.client.result("run", timeout_s=10) == "fine"

    play(story)


def test_an_event_that_needs_what_is_damaged_holds_up_no_other_of_its_batch(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stand: Stand) -> None:
        await stand.client.start(loop(), {}, id="run")
        first = await stand.engine()
        token = (await stand.holds(Task)).token
        await stand.stop(first)
        await _damage(stand, "register", _garbage)
        await stand.completes(token, "lost")
        await stand.client.cancel("run")
        await stand.engine()
        assert (await stand.ended()).status == "cancelled"

    play(story)


def test_a_damaged_timer_stops_no_sweep(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        for body in (b"\xff", b"[" * 2_000):
            await stand.js.store(stand.subjects.timer("ghost", str(len(body))), body)
        assert await Overdue(stand.js, stand.subjects).sweep(2**42) == 0

    play(story)


def test_a_damaged_definition_fails_its_run_and_keeps_the_request(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    _impatient(monkeypatch)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.js.store(stand.subjects.workflow_version("rotten", "0"), b"not a definition")
        await stand.publish(RunRequested(workflow="rotten", definition="0"))
        ended = await stand.ended()
        assert "key 'rotten.v.0'" in str(ended.failure)
        reasons = sorted(letter.reason for letter in await stand.letters())
        assert reasons == ["poison_event", "run_failed"]

    play(story)


async def _goes_on(stand: Stand) -> None:
    token = (await stand.holds(Task, "other")).token
    event = f'{{"event":"step.completed","step":"loop","type":"link","token":{token},'
    await stand.publish(f'{event}"head":{token},"output":"fine"}}'.encode(), "other")
    assert await stand.client.result("other", timeout_s=10) == "fine"


async def _ended(stand: Stand) -> RunDocument:
    """Wait until the document can be read and has ended."""

    async def read() -> RunDocument | None:
        with contextlib.suppress(ValueError):
            return await stand.document()
        return None

    found = await stand.until("its end", read, lambda it: it is not None and it.is_terminal)
    assert found is not None
    return found


async def _register_ended(stand: Stand) -> None:
    """Wait until the register can be read and has ended: it does after the document."""

    async def read() -> Standing | None:
        with contextlib.suppress(ValueError):
            return await stand.register()
        return None

    await stand.until("Ended", read, lambda it: it is not None and isinstance(it.register, Ended))
