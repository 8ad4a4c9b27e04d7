"""Events that cannot be processed are set aside with their reason, and the other runs go on."""

from __future__ import annotations

import base64
import re

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.engine import intake
from treadle.sdk.messages import RunRequested, SignalReceived, Task


async def _goes_on(stand: Stand) -> None:
    """Show that another run is not affected."""
    await stand.client.start(loop(), {}, id="run")
    token = (await stand.holds(Task)).token
    await stand.completes(token, "fine")
    assert await stand.client.result("run", timeout_s=10) == "fine"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00\xff\xfe",
        b'{"event":"step.contin',
        b'{"event":"no.such_event"}',
        b'{"event":"step.continued","step":"loop"}',
        b'{"event":"step.continued","step":"loop","type":"link","token":"x","head":1}',
        b"[" * 100_000,
    ],
    ids=["empty", "binary", "cut-off", "unknown-event", "fields-missing", "wrong-type", "deep"],
)
def test_a_corrupt_event_is_set_aside_byte_for_byte(play: Play, body: bytes) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.publish(body, "broken")
        letter = await stand.letter("broken")
        assert letter.reason == "corrupt_event"
        assert letter.failure is not None
        assert letter.failure.message
        assert base64.b64decode(letter.body_base64) == body
        await _goes_on(stand)
        assert len(await stand.letters()) == 1

    play(story)


def test_what_the_engine_logs_of_it_is_a_line_of_names_and_values(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.publish(b"no event", "broken")
        await stand.letter("broken")

    play(story)
    (line,) = [each for each in caplog.messages if "engine.event-unreadable" in each]
    assert re.match(r'engine\.event-unreadable event=\S+ subject=\S+ error="[^{}]+"\Z', line), line


def test_an_unknown_field_of_a_client_is_named_in_the_dead_letter(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.publish(b'{"event":"run.signal_received","name":"go","paylaod":1}', "typo")
        letter = await stand.letter("typo")
        assert letter.failure is not None
        assert "paylaod" in letter.failure.message
        await _goes_on(stand)

    play(story)


def test_an_unknown_field_between_engine_and_worker_is_ignored(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), {}, id="run")
        token = (await stand.holds(Task)).token
        event = {"event": "step.completed", "step": "loop", "type": "link", "from_tomorrow": 1}
        event |= {"token": token, "head": token, "output": "fine"}
        await stand.publish(msgspec.json.encode(event))
        assert await stand.client.result("run", timeout_s=10) == "fine"

    play(story)


def test_an_event_whose_handling_always_raises_is_set_aside(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "POISON_DELIVERIES", 3)
    monkeypatch.setattr(intake, "FAILED_LATER_MS", 20)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.js.store(stand.subjects.workflow_version("rotten", "0"), b"not a definition")
        await stand.publish(RunRequested(workflow="rotten", definition="0"), "poisoned")
        letter = await stand.letter("poisoned")
        assert letter.reason == "poison_event"
        assert letter.failure is not None
        assert letter.failure.type == "StoredUnreadable"
        await _goes_on(stand)

    play(story)


def test_a_run_of_an_unknown_workflow_fails_and_says_so(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.publish(RunRequested(workflow="nowhere", definition="0"))
        ended = await stand.ended()
        assert ended.failure is not None
        assert "'nowhere' version '0' is not registered" in ended.failure.message
        letter = await stand.letter("run")
        assert (letter.reason, letter.workflow) == ("run_failed", "nowhere")
        await stand.publish(SignalReceived(name="late"))
        await stand.quiet(0.3)
        assert await stand.document() == ended

    play(story)
