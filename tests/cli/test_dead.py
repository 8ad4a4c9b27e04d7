"""``treadle dead``: what people see of dead letters, and what the commands do.

The entry point on a real server; no engine runs, letters are written as one would.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys

import pytest
from tests.cli.conftest import Run, environment
from tests.client.stage import open_stage, raw

from treadle.cli import exits
from treadle.cli.letters import SHOWN_BYTES_MAX, shown
from treadle.sdk import Workflow
from treadle.sdk.children import ParentRun, child_id
from treadle.sdk.messages import DeadLetter, Failure
from treadle.sdk.run import StepEntry
from treadle.sdk.settings import Settings

TORN = b'{"n": \xff\x00}'


@pytest.fixture(autouse=True)
def letters(settings: Settings) -> None:
    """A torn event of run r1, one of r2 that is text, and a letter that is damaged itself."""

    async def story() -> None:
        async with open_stage(settings) as stage:
            s = stage.subjects
            for run, body in (("r1", TORN), ("r2", b'{"kind": "no event"}')):
                sequence = await stage.js.store(s.event(run), body)
                letter = DeadLetter(
                    reason="corrupt_event",
                    run=run,
                    failure=Failure("DecodeError", "it is torn", retryable=False),
                    subject=s.event(run),
                    event=f"e{sequence}",
                    stream=s.events_stream,
                    sequence=sequence,
                    headers_base64=base64.b64encode(b"NATS/1.0\r\nX-Kind: a\r\n\r\n").decode(),
                    body_base64=base64.b64encode(body).decode(),
                    at_ms=1_000,
                )
                await stage.js.store(s.dead("_", run, letter.event), bytes(raw(letter)))
            await stage.js.store(s.dead("_", "r3", "e9"), b"{")

    asyncio.run(story())


async def stored(settings: Settings, run: str) -> list[bytes]:
    """Return what is stored of a run."""
    async with open_stage(settings) as stage:
        s = stage.subjects
        found = stage.js.read(s.events_stream, s.events_of_run(run))
        return [each.data async for each in found]


@pytest.mark.slow
def test_letters_are_listed_and_shown_with_what_they_hold(treadle: Run) -> None:
    table = treadle("dead", "list").out
    assert table.index("r3") < table.index("r2") < table.index("r1")
    assert "corrupt_event" in table and "DecodeError: it is torn" in table
    assert [line["run"] for line in treadle("dead", "list", "--run", "r1", "--json").lines] == [
        "r1"
    ]
    first = treadle("dead", "list", "--limit", "2", "--json").lines
    assert first[-1] == {"cursor": 2}
    assert treadle("dead", "list", "--limit", "2", "--cursor", "2", "--json").json["number"] == 1

    text = treadle("dead", "show", "2").out
    assert "2  corrupt_event  open" in text and "run r2" in text and "X-Kind: a" in text
    assert '{"kind": "no event"}' in text and "20 bytes, message 2 of stream" in text
    dump = treadle("dead", "show", "1").out
    assert "7b 22 6e 22 3a 20 ff 00 7d" in dump and '{"n": ..}' in dump
    assert base64.b64decode(treadle("dead", "show", "1", "--json").json["body"]) == TORN
    assert "unreadable" in treadle("dead", "show", "3").out
    treadle("dead", "show", "9", code=exits.UNKNOWN)


@pytest.mark.slow
def test_the_bytes_of_a_message_are_printed_as_they_are(settings: Settings) -> None:
    command = [sys.executable, "-m", "treadle.cli", "dead", "show", "1", "--body"]
    done = subprocess.run(
        command, env=environment(settings), capture_output=True, timeout=40, check=True
    )
    assert done.stdout == TORN


@pytest.mark.slow
def test_several_are_replayed_and_discarded_past_those_that_cannot_be(
    treadle: Run, settings: Settings
) -> None:
    done = treadle("dead", "replay", "1", "3", "2", code=exits.PARTIAL)
    assert done.out.splitlines()[0].startswith("1  message 3 of stream ")
    assert len(done.out.splitlines()) == 2 and "cannot be read" in done.err
    assert asyncio.run(stored(settings, "r1")) == [TORN, TORN]
    again = treadle("dead", "replay", "1", "--json", code=exits.CONFLICT).json["error"]
    assert "was replayed at" in again["message"] and "--again" in again["message"]
    assert treadle("dead", "replay", "1", "--again", "--json").json["sequence"] == 5
    assert [line["number"] for line in treadle("dead", "list", "--json").lines] == [3]
    assert "replayed" in treadle("dead", "list", "--all").out
    treadle("dead", "discard", "2", "--reason", "x", code=exits.CONFLICT)


def test_the_letter_of_a_child_names_its_parent_and_whose_retry_does_its_work(
    treadle: Run, settings: Settings
) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage:
            order = Workflow("order")
            order.sub_workflow("bill", "invoice")
            version = await stage.client.register(order)
            await stage.document(
                "o1",
                workflow="order",
                definition=version,
                requested=7,
                status="failed",
                failed_step="bill",
                steps={"bill": StepEntry("failed", attempt=1)},
            )
            link = ParentRun(run="o1", step="bill", root="o1")
            child = child_id("o1", 7, "bill", 1)
            letter = DeadLetter(reason="run_failed", run=child, workflow="invoice", parent=link)
            await stage.js.store(stage.subjects.dead("invoice", child, "r8"), bytes(raw(letter)))

    asyncio.run(story())
    assert "left to o1" in treadle("dead", "list").out
    (listed,) = treadle("dead", "list", "--workflow", "invoice", "--json").lines
    assert (listed["parent"]["run"], listed["left_to"]) == ("o1", "o1")
    shown = treadle("dead", "show", "4")
    assert "started by step bill of run o1" in shown.out
    assert "run o1 above it has failed too" in shown.err and "treadle run retry o1" in shown.err
    refused = treadle("dead", "replay", "4", code=exits.CONFLICT).err
    assert "both would do it twice" in refused and "treadle run retry o1" in refused
    # Who names the run is told, and not held up.
    child = listed["run"]
    warned = treadle("run", "retry", child, code=exits.UNKNOWN).err
    assert f"run {child} was started below run o1, which has failed too" in warned


def test_a_message_that_is_no_text_is_shown_by_its_first_bytes() -> None:
    lines = shown(b"\xff" * (SHOWN_BYTES_MAX + 5))
    assert lines[-1] == "… 5 more bytes"
    assert len(lines) == SHOWN_BYTES_MAX // 16 + 1
    assert shown("é\nb".encode()) == ["é", "b"]
