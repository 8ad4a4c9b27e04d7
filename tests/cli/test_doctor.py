"""What the doctor sees: a sound namespace, and what is wrong with others.

The checks in this process on real servers; the command for its output and exit code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.client.stage import Stage, chain, play

from treadle.cli import exits, monitoring
from treadle.cli.dev_file import DevFile
from treadle.cli.dev_file import find as find_dev
from treadle.cli.dev_file import write as write_dev
from treadle.cli.doctor_checks import Check, examine
from treadle.sdk.client.explain import hearing
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings


@pytest.fixture
def synced_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that writes at once, with its monitoring port open."""
    running = NatsServer.start(tmp_path / "nats", sync="always", http=True)
    yield running
    running.stop()


def _of(checks: list[Check], name: str) -> list[Check]:
    return [check for check in checks if check.name == name]


def test_a_sound_namespace_has_nothing_to_mend(synced_server: NatsServer, namespace: str) -> None:
    settings = Settings(url=synced_server.url, namespace=namespace)

    async def story(stage: Stage) -> None:
        await stage.client.register(chain())
        await stage.present("engine")
        await stage.present("worker", "work", "think")
        for _ in range(2):  # The probe leaves nothing behind that a second look would meet.
            checks = await examine(settings, synced_server.http_url)
            assert {c.name for c in checks if c.status != "ok"} == {"replicas"}
        (sync,) = _of(checks, "sync")
        assert sync.text.startswith("always")
        assert [*await stage.client.workflows()] == ["flow"]

    play(settings, story)


def test_what_is_missing_is_told_with_its_remedy(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await stage.client.register(chain())
        await stage.present("worker", "work")
        checks = await examine(settings, "http://127.0.0.1:9")
        (engines,) = _of(checks, "engines")
        assert (engines.status, engines.remedy) == ("fail", "treadle engine")
        (sync,) = _of(checks, "sync")
        assert sync.status == "warn" and sync.text.startswith("unknown")
        unserved = _of(checks, "workers")[1:]
        assert [check.text for check in unserved] == [
            "no worker serves task type 'think' of workflow 'flow'"
        ]
        await stage.present("worker", "thinks")
        near, far = _of(await examine(settings, "http://127.0.0.1:9"), "workers")[1:]
        assert "did you mean" not in far.text
        assert near.text.endswith("of workflow 'flow'; did you mean 'thinks', which is served?")
        assert near.remedy.startswith("treadle worker FILE.py, of a file that has")

    play(settings, story)


def test_a_process_that_is_recorded_and_gives_no_sign_of_life_is_not_alive(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing, "SILENT_S", 0.2)

    async def story(stage: Stage) -> None:
        await stage.present("engine", beats=False)
        await stage.present("worker", "work")
        none, silent = _of(await examine(settings, "http://127.0.0.1:9"), "engines")
        assert (none.status, none.remedy) == ("fail", "treadle engine")
        assert "engine 'engine1' (process 0) gives no sign of life" in silent.text

    play(settings, story)


def test_a_stream_that_drops_or_rolls_up_is_found(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        name = stage.subjects.events_stream
        config = (await stage.js.api(f"STREAM.INFO.{name}"))["config"]
        config |= {"discard": "old", "allow_rollup_hdrs": True}
        await stage.js.api(f"STREAM.UPDATE.{name}", config)
        wrong = [check for check in await examine(settings, None) if check.status == "fail"]
        texts = [check.text for check in wrong if check.name == "streams"]
        assert any("discard is 'old', and must be 'new'" in text for text in texts)
        assert any("allow_rollup_hdrs" in text for text in texts)

    play(settings, story)


def test_the_exit_code_tells_a_dead_server_from_a_namespace_to_mend(
    treadle: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.sdk.bus.handshake.OPEN_TIMEOUT_S", 0.2)
    dead = treadle("doctor", "--url", "nats://127.0.0.1:9", "--json", code=exits.SERVER).json
    assert dead["ok"] is False and [c["name"] for c in dead["checks"]] == ["server"]
    empty = treadle("doctor", code=exits.CHECK_FAILED).out
    assert "fail  namespace" in empty and "→ treadle engine" in empty


def test_no_password_of_an_url_is_printed(treadle: Run, settings: Settings) -> None:
    secret = settings.url.replace("//", "//someone:se-cret@")
    for as_json in ([], ["--json"]):
        told = treadle("doctor", "--url", secret, *as_json, code=exits.CHECK_FAILED)
        assert "se-cret" not in told.out + told.err
        assert settings.url in told.out
    dead = treadle("doctor", "--monitor", "ftp://someone:se-cret@h", code=exits.CHECK_FAILED)
    assert "se-cret" not in dead.out


def test_the_dev_servers_own_monitoring_port_is_found(
    synced_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_dev() is None
    write_dev(tmp_path, DevFile(synced_server.url, os.getpid(), synced_server.http_url))
    found = find_dev()
    assert found is not None and found.url == synced_server.url
    assert monitoring.check_sync(Settings(url=synced_server.url), None).status == "ok"
    write_dev(tmp_path, DevFile(synced_server.url, 2**22 + 1, synced_server.http_url))
    assert find_dev() is None
