"""One damaged value spoils no listing, is told by its key, and is found by the doctor.
Method: garbage written to a real server as an operator's mistake would, and the commands."""

from __future__ import annotations

import pytest
from tests.cli.conftest import Run
from tests.client.stage import Stage, chain, done, play

from treadle.cli import exits
from treadle.cli.doctor_checks import examine
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.settings import Settings

GARBAGE = [b"\xff", b"{}", b"null", b"[" * 2_000]


async def _spoiled(stage: Stage, body: bytes) -> None:
    s = stage.subjects
    await stage.client.start(chain(), id="fine")
    await stage.document("fine", steps={"first": done()})
    await stage.js.store(s.run_document("ghost"), body)
    await stage.js.store(s.run_document("a.b"), body)
    await stage.js.store(s.event("torn"), body)
    await stage.js.store(s.worker("ghost"), body)


@pytest.mark.parametrize("body", GARBAGE)
def test_listings_mark_what_cannot_be_read_and_show_the_rest(
    settings: Settings, treadle: Run, body: bytes
) -> None:
    async def story(stage: Stage) -> None:
        await _spoiled(stage, body)
        views = {view.id: view for view in await stage.client.list()}
        assert set(views) == {"fine", "ghost", "a.b"}
        assert views["ghost"].status == "unreadable"
        assert views["fine"].status == "running"
        assert "key 'ghost', revision" in str(views["ghost"].failure)
        assert await stage.client.approvals() == ()
        assert [view.id for view in await stage.client.list(status="running")] == ["fine"]

    play(settings, story)
    listed = treadle("run", "list").out
    assert "unreadable" in listed and "fine" in listed
    assert [line["id"] for line in treadle("run", "list", "--json").lines]


@pytest.mark.slow
def test_commands_on_a_damaged_run_name_its_key_and_the_way_out(
    settings: Settings, treadle: Run
) -> None:
    async def story(stage: Stage) -> None:
        await _spoiled(stage, b"\xff")

    play(settings, story)
    bucket = f"{settings.namespace}_runs"
    for command in ("show", "watch", "tail", "result"):
        told = treadle("run", command, "ghost", code=exits.SERVER).err
        assert f"error: bucket '{bucket}', key 'ghost', revision " in told
        assert f"`nats kv del {bucket} ghost`" in told and "Traceback" not in told
    as_json = treadle("run", "show", "ghost", "--json", code=exits.SERVER)
    assert as_json.json["error"]["type"] == "StoredUnreadable"
    treadle("run", "start", "flow", "--id", "ghost", code=exits.SERVER)
    assert "key 'ghost'" in treadle("run", "history", "ghost").err
    treadle("run", "cancel", "ghost")
    # Not an event of anything, so there is no such run.
    for command in ("show", "history"):
        treadle("run", command, "torn", code=exits.UNKNOWN)


def test_a_deleted_key_is_a_removed_entry_unless_its_run_is_there(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await _spoiled(stage, b"\xff")
        for key in ("ghost", "fine"):
            await stage.js.store(stage.subjects.run_document(key), b"")
        assert {view.id for view in await stage.client.list()} == {"a.b", "fine"}
        with pytest.raises(StoredUnreadable, match="the value is gone"):
            await stage.client.get("fine")

    play(settings, story)


def test_the_doctor_names_what_is_damaged_and_counts_the_dead_letters(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await stage.client.register(chain())
        await _spoiled(stage, b"\xff")
        s = stage.subjects
        await stage.js.store(s.workflow_latest("broken"), b"\xff")
        await stage.js.store(s.dead("_", "torn", "e1"), b'{"reason":"corrupt_event","run":"torn"}')
        checks = await examine(settings, None)
        stored = [check.text for check in checks if check.name == "stored"]
        assert [text.split(", revision")[0] for text in stored] == [
            f"bucket '{s.runs_bucket}', key 'ghost'",
            f"bucket '{s.runs_bucket}', key 'a.b'",
            f"bucket '{s.workflows_bucket}', key 'broken.latest'",
        ]
        (letters,) = [check for check in checks if check.name == "letters"]
        assert letters.status == "warn"
        assert letters.text.startswith("open dead letters: 1 corrupt_event, 0 of failed runs")
        # What somebody has dealt with is no news.
        (letter,) = (await stage.client.dead_letters.list()).letters
        await stage.client.dead_letters.discard(letter.number)
        (letters,) = [c for c in await examine(settings, None) if c.name == "letters"]
        assert (letters.status, letters.text) == ("ok", "open dead letters: 0 of failed runs")

    play(settings, story)
