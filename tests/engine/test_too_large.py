"""What is larger than the server takes fails its step or is cut, and stops no engine.
Method: a real server with a small ``max_payload``, and messages that just fit."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.engine.stand import Stand, loop, open_stand

from treadle.cli.doctor_checks import examine
from treadle.sdk.messages import Inline, StepContinued, Task
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

MAX_PAYLOAD = 65_536
EMPTY = msgspec.Raw(b'""')


class _Narrow(NatsServer):
    """A server that takes small messages only."""

    def _config(self) -> str:
        return f"max_payload: {MAX_PAYLOAD}\n{super()._config()}"


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    running = _Narrow.start(tmp_path_factory.mktemp("narrow"))
    yield running
    running.stop()


Play = Callable[[Callable[[Stand], Awaitable[None]]], None]


@pytest.fixture
def play(narrow: NatsServer, namespace: str) -> Play:
    def play(story: Callable[[Stand], Awaitable[None]]) -> None:
        async def on_stand() -> None:
            async with open_stand(Settings(url=narrow.url, namespace=namespace)) as stand:
                await stand.engine()
                await story(stand)

        asyncio.run(on_stand())

    return play


async def _goes_on(stand: Stand, run: str) -> None:
    """Show that the engine handles this run."""
    found = await stand.holds(Task, run)
    event: dict[str, Any] = {"event": "step.completed", "step": "loop", "type": "link"}
    event |= {"token": found.token, "head": found.token, "output": "fine"}
    await stand.publish(msgspec.json.encode(event), run)
    assert await stand.client.result(run, timeout_s=10) == "fine"


def test_a_verdict_that_fits_as_an_event_and_not_as_a_register_fails_its_step(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.client.start(loop(), None, id="run")
        await stand.client.start(loop(), None, id="other")
        token = (await stand.holds(Task)).token
        event = StepContinued(step="loop", type="link", token=token, head=token, output=EMPTY)
        room = MAX_PAYLOAD - len(msgspec.json.encode(event))
        await stand.continues(token, "x" * room)
        ended = await stand.ended()
        assert ended.failed_step == "loop"
        assert ended.failure is not None
        assert ended.failure.type == "InvalidPayload"
        assert "65536 bytes that the server takes (max_payload)" in ended.failure.message
        await _goes_on(stand, "other")

    play(story)


def test_an_input_that_would_fill_the_task_is_referred_to(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.client.start(loop(), "x" * 65_000, id="run")
        found = await stand.holds(Task)
        assert isinstance(found.register, Task)
        assert not isinstance(found.register.input, Inline)
        await _goes_on(stand, "run")

    play(story)


def test_a_dead_letter_holds_what_fits_and_says_where_the_rest_is(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.client.start(loop(), None, id="run")
        body = b"\xff" * 60_000
        sequence = await stand.publish(body, "run")
        letter = await stand.letter("run")
        kept = base64.b64decode(letter.body_base64)
        assert 40_000 < len(kept) < len(body)
        assert body.startswith(kept)
        assert letter.body_bytes == len(body)
        assert (
            letter.whole_body_at == f"message {sequence} of stream {stand.subjects.events_stream}"
        )
        await _goes_on(stand, "run")
        assert len(await stand.letters()) == 1

    play(story)


def test_a_server_that_takes_too_little_is_told_of_by_engine_and_doctor(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stand: Stand) -> None:
        checks = await examine(stand.settings, None)
        (told,) = [each for each in checks if "max_payload" in each.text]
        assert told.status == "warn"
        assert "65536" in told.text

    with caplog.at_level(logging.WARNING, "treadle.engine"):
        play(story)
    assert any(record.message.startswith("engine.server-small") for record in caplog.records)
