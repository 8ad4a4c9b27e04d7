"""What is kept is bounded: ended runs go after a time, and an engine's memory has its limits.
Method: sweeps by hand over runs played to their end; what stands is counted on the server."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from tests.crash.chain import TASK_TYPE
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.engine import documents, engine, registers
from treadle.engine.documents import Documents
from treadle.engine.inputs import Outputs
from treadle.engine.registers import Registers
from treadle.engine.retention import Retention
from treadle.engine.topology import ensure_topology, stream_configs
from treadle.sdk import UnknownRun
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.messages import Ended, Failure, StepCompleted, StepFailed, Task, TimerFired
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import RegisterAddress, Subjects

ROUND = 8


async def _finish(stand: Stand, run: str, *, fails: bool = False) -> None:
    """Play a run to its end by hand."""
    await stand.client.start(loop(max_duration=600, run_timeout=600), "x" * 1000, id=run)
    token = (await stand.holds(Task, run)).token
    if fails:
        failure = Failure("ValueError", "for good", retryable=False)
        await stand.publish(
            StepFailed(step="loop", type=TASK_TYPE, token=token, head=token, failure=failure), run
        )
    else:
        await stand.publish(
            StepCompleted(step="loop", type=TASK_TYPE, token=token, head=token), run
        )
    await stand.ended(run)


async def _sizes(stand: Stand) -> dict[str, tuple[int, int]]:
    """Return messages and bytes of every stream that runs write to."""
    s = stand.subjects
    states = {
        name: await stand.state(name)
        for name in (s.events_stream, s.steps_stream, s.runs_stream, s.timers_stream)
    }
    return {name: (int(at["messages"]), int(at["bytes"])) for name, at in states.items()}


async def _sweep(stand: Stand, *, keep_s: float = 0.001) -> int:
    await stand.quiet(0.2)
    retention = Retention(stand.js, stand.subjects, keep_s=keep_s)
    return await retention.sweep(round(time.time() * 1000) + 50)


@pytest.mark.slow
def test_round_after_round_of_runs_leaves_nothing_behind_and_a_live_run_whole(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), "alive", id="alive")
        token = (await stand.holds(Task, "alive")).token
        await stand.quiet(0.2)
        before = await _sizes(stand)
        for number in range(3):
            names = [f"run{number}x{each}" for each in range(ROUND)]
            await asyncio.gather(*(_finish(stand, name) for name in names))
            assert await _sweep(stand) == ROUND
            assert await _sizes(stand) == before
        with pytest.raises(UnknownRun):
            await stand.client.get("run0x0")
        await stand.publish(
            StepCompleted(
                step="loop", type=TASK_TYPE, token=token, head=token, output=msgspec.Raw(b'"it"')
            ),
            "alive",
        )
        assert await stand.client.result("alive", timeout_s=10) == "it"

    play(story)


def test_checkpoints_journals_and_messages_go_with_their_run(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.quiet(0.2)
        before = await _sizes(stand)
        await stand.client.start(loop(), "x", id="run")
        token = (await stand.holds(Task, "run")).token
        await stand.client.send("run", "loop", "go on")
        head = await stand.saves(token, expected=token)
        assert isinstance(head, int)
        subject = stand.subjects.record("run", "loop", 0)
        pair = stand.subjects.pair("run", "loop")
        head = await stand.js.attempt(subject, b'{"a":1}', expected=head, filter=pair)
        assert isinstance(head, int)
        await stand.completes(token, head=head)
        await stand.ended("run")
        assert await _sweep(stand) == 1
        assert await _sizes(stand) == before

    play(story)


def test_a_run_that_ended_a_moment_ago_is_kept(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await _finish(stand, "run")
        assert await _sweep(stand, keep_s=60) == 0
        assert (await stand.client.get("run")).status == "completed"

    play(story)


def test_a_failed_run_goes_and_its_dead_letter_stays(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await _finish(stand, "run", fails=True)
        assert await _sweep(stand) == 1
        assert await stand.document() is None
        assert [letter.run for letter in await stand.letters()] == ["run"]

    play(story)


def test_a_timer_that_fired_after_the_end_goes_with_its_run(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await _finish(stand, "run")
        await stand.quiet(0.2)
        late = TimerFired(kind="step_deadline", step="loop", type=TASK_TYPE, due_ms=1)
        fired = stand.subjects.fired("run", "d-loop")
        await stand.js.store(fired, msgspec.json.encode(late))
        assert await _sweep(stand) == 1
        assert (await stand.state(stand.subjects.timers_stream))["messages"] == 0

    play(story)


def test_what_a_run_has_said_goes_with_it_and_a_missing_output_stream_keeps_no_run(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        s = stand.subjects
        for name in ("run", "other"):
            await _finish(stand, name)
            await stand.js.store(s.output(name, "loop"), b'{"kind":"text","text":"Hello."}')
        await stand.client.start(loop(), id="alive")
        await stand.js.store(s.output("alive", "loop"), b'{"kind":"text","text":"Hello."}')
        assert await _sweep(stand) == 2
        assert (await stand.state(s.output_stream))["messages"] == 1
        await _finish(stand, "later")
        await stand.js.api(f"STREAM.DELETE.{s.output_stream}")
        assert await _sweep(stand) == 1
        assert await stand.document("later") is None

    play(story)


def test_the_output_stream_keeps_what_was_set_for_it(settings: Settings) -> None:
    async def story() -> None:
        async with await Connection.open(settings, name="test") as connection:
            js = JetStream(connection)
            subjects = await ensure_topology(js, settings)

            async def config() -> dict[str, Any]:
                info: dict[str, Any] = await js.api(f"STREAM.INFO.{subjects.output_stream}")
                return dict(info["config"])

            made = await config()
            assert made["max_age"] == 7 * 24 * 3600 * 10**9
            assert (made["discard"], made["max_bytes"]) == ("old", -1)
            assert made["max_msgs"] > made["max_msgs_per_subject"] > 0
            await ensure_topology(js, settings, output_max_age_s=3600)
            assert await config() == {**made, "max_age": 3600 * 10**9}
            # An operator's hand, and an engine that was not told anything about it.
            await js.edit_stream(subjects.output_stream, {"max_bytes": 10_000_000})
            await ensure_topology(js, settings)
            changed = await config()
            assert (changed["max_age"], changed["max_bytes"]) == (3600 * 10**9, 10_000_000)

    asyncio.run(story())


def test_the_id_of_a_run_that_has_gone_may_be_used_again(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await _finish(stand, "run")
        assert await _sweep(stand) == 1
        await stand.client.start(loop(), "again", id="run")
        token = (await stand.holds(Task)).token
        await stand.completes(token, "second life")
        assert await stand.client.result("run", timeout_s=10) == "second life"
        assert await stand.letters() == []

    play(story)


def test_what_is_not_swept_has_an_age() -> None:
    """Dead letters, presence and published events are of no run that could take them along."""
    subjects = Subjects("t", 1)
    ages = {config["name"]: config.get("max_age") for config in stream_configs(subjects, 1)}
    assert {name for name, age in ages.items() if age} == {
        subjects.dead_stream,
        subjects.workers_stream,
        subjects.external_stream,
    }


# ---------------------------------------------------------------- an engine's memory


def test_an_engine_remembers_no_register_of_a_run_that_ended(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Registers] = []

    def noted(js: JetStream, subjects: Subjects) -> Registers:
        made.append(Registers(js, subjects))
        return made[-1]

    monkeypatch.setattr(engine, "Registers", noted)

    async def story(stand: Stand) -> None:
        await stand.engine()
        names = [f"run{each}" for each in range(ROUND)]
        await asyncio.gather(*(_finish(stand, name, fails=name == "run3") for name in names))
        await stand.client.start(loop(), id="cancelled")
        await stand.holds(Task, "cancelled")
        await stand.client.cancel("cancelled")
        await stand.holds(Ended, "cancelled")
        await stand.quiet(0.2)
        (memory,) = made
        addresses = [RegisterAddress("main", n, "loop", TASK_TYPE) for n in (*names, "cancelled")]
        assert [memory.known(address) for address in addresses] == [None] * (ROUND + 1)

    play(story)


def test_an_engine_keeps_so_many_documents_and_registers_and_reads_the_others(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "DOCUMENTS_MAX", 3)
    monkeypatch.setattr(registers, "HEADS_MAX", 3)

    async def story(stand: Stand) -> None:
        running = await stand.engine()
        names = [f"run{each}" for each in range(5)]
        for name in names:
            await stand.client.start(loop(), id=name)
            await stand.holds(Task, name)
        kept, heads = Documents(stand.js, stand.subjects), Registers(stand.js, stand.subjects)
        addresses = [RegisterAddress("main", name, "loop", TASK_TYPE) for name in names]
        for name, address in zip(names, addresses, strict=True):
            assert await kept.read(name) is not None
            assert await heads.read(address) is not None
        assert [kept.known(name) is not None for name in names] == [False] * 2 + [True] * 3
        assert [heads.known(each) is not None for each in addresses] == [False] * 2 + [True] * 3
        assert await kept.get("run0") is not None
        # The engine, whose memory is as small, serves them all.
        for name in names:
            token = (await stand.holds(Task, name)).token
            done = StepCompleted(step="loop", type=TASK_TYPE, token=token, head=token)
            await stand.publish(done, name)
            assert (await stand.ended(name)).status == "completed"
        await stand.stop(running)

    play(story)


def test_recent_outputs_are_bounded_by_their_size() -> None:
    outputs = Outputs(bytes_max=100)
    for number in range(50):
        outputs.put(f"k{number}", bytes(30))
    kept = [number for number in range(50) if outputs.get(f"k{number}") is not None]
    assert kept == [47, 48, 49]
    outputs.put("k49", bytes(90))  # A replaced one counts once.
    assert [number for number in range(50) if outputs.get(f"k{number}") is not None] == [49]
    outputs.put("huge", bytes(101))
    assert outputs.get("huge") is None
