"""Which servers will do, and what is said of those that will not.

Method: real servers, configured wrong on purpose; the text must hold the fault and the remedy.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from treadle.sdk.bus import handshake
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import ServerUnavailable, ServerUnsuitable, TreadleError, UserError
from treadle.sdk.server import NatsServer, find_nats_server
from treadle.sdk.settings import Settings

StartWith = Callable[[str], NatsServer]


class ConfiguredServer(NatsServer):
    """A server with a configuration of the test's own, placed after the listen address."""

    extra = ""

    def _config(self) -> str:
        head = super()._config()
        return head.partition("jetstream {")[0] + self.extra + "\n"


@pytest.fixture
def start_with(tmp_path: Path) -> Iterator[StartWith]:
    started: list[NatsServer] = []

    def start(extra: str) -> NatsServer:
        kind = type("Configured", (ConfiguredServer,), {"extra": extra})
        server = kind.start(tmp_path / f"nats{len(started)}")
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


def jetstream_in(directory: Path) -> str:
    return f'jetstream {{ store_dir: "{directory}" }}\n'


def refusal(settings: Settings) -> TreadleError:
    async def main() -> TreadleError:
        try:
            connection = await Connection.open(settings, name="test")
        except TreadleError as exc:
            return exc
        await connection.close()
        pytest.fail("it was accepted")

    return asyncio.run(main())


def test_a_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "OPEN_TIMEOUT_S", 0.4)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    error = refusal(Settings(url=f"nats://127.0.0.1:{port}"))
    assert isinstance(error, ServerUnavailable)
    assert f"127.0.0.1:{port}" in str(error)
    assert "TREADLE_NATS_URL" in str(error)


def test_a_server_that_comes_a_little_later_is_waited_for(own_server: NatsServer) -> None:
    async def main() -> None:
        own_server.kill()
        opening = asyncio.create_task(Connection.open(Settings(url=own_server.url), name="test"))
        await asyncio.wait({opening}, timeout=0.1)
        assert not opening.done()
        own_server.restart()
        await (await opening).close()

    asyncio.run(main())


def test_an_old_server_is_unsuitable(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "SERVER_VERSION_MIN", (99, 1, 2))
    error = refusal(Settings(url=server.url))
    assert isinstance(error, ServerUnsuitable)
    assert "99.1.2" in str(error)
    assert "Upgrade" in str(error)


def test_a_server_without_jetstream_is_unsuitable(start_with: StartWith) -> None:
    error = refusal(Settings(url=start_with("").url))
    assert isinstance(error, ServerUnsuitable)
    assert "-js" in str(error)


def test_an_account_without_jetstream_is_unsuitable(start_with: StartWith, tmp_path: Path) -> None:
    server = start_with(
        jetstream_in(tmp_path)
        + "accounts { A { users: [{user: a, password: secret}], jetstream: enabled }\n"
        + " B { users: [{user: b, password: secret}] } }"
    )
    error = refusal(Settings(url=server.url, user="b", password="secret"))
    assert isinstance(error, ServerUnsuitable)
    assert "JetStream" in str(error)


def test_a_wrong_password_is_said_at_once_and_not_repeated(
    start_with: StartWith, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_with(jetstream_in(tmp_path) + "authorization { user: a, password: secret }")
    error = refusal(Settings(url=server.url, user="a", password="wrong"))
    assert isinstance(error, ServerUnavailable)
    assert "TREADLE_NATS_PASSWORD" in str(error)
    with_password = f"nats://a:other@127.0.0.1:{server.port}"
    assert "other" not in str(refusal(Settings(url=with_password)))
    assert not caplog.records  # the error has said it


def test_the_right_password_is_accepted(start_with: StartWith, tmp_path: Path) -> None:
    server = start_with(jetstream_in(tmp_path) + "authorization { user: a, password: secret }")

    async def main() -> None:
        settings = Settings(url=server.url, user="a", password="secret")
        async with await Connection.open(settings, name="test") as connection:
            await JetStream(connection).ensure_stream({"name": "A", "subjects": ["a"]})

    asyncio.run(main())


def test_a_forbidden_subject_does_not_cost_the_connection(
    start_with: StartWith, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = 'permissions: {publish: {deny: "forbidden"}}'
    server = start_with(
        jetstream_in(tmp_path)
        + f"authorization {{ users: [{{user: a, password: secret, {rules}}}] }}"
    )

    async def main() -> None:
        settings = Settings(url=server.url, user="a", password="secret")
        async with await Connection.open(settings, name="test") as connection:
            connection.publish("forbidden")
            await connection.flush()
            connection.publish("allowed")
            await connection.flush()

    asyncio.run(main())
    (said,) = caplog.messages
    assert said.startswith("bus.nats-error") and "forbidden" in said


def test_a_credentials_file_that_is_missing_is_named(server: NatsServer, tmp_path: Path) -> None:
    error = refusal(Settings(url=server.url, creds=str(tmp_path / "no.creds")))
    assert isinstance(error, UserError)
    assert "no.creds" in str(error)
    assert "TREADLE_NATS_CREDS" in str(error)


def test_a_nats_server_is_found_or_its_absence_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = tmp_path / "mine"
    monkeypatch.setenv("TREADLE_NATS_SERVER", str(named))
    with pytest.raises(ServerUnsuitable, match="TREADLE_NATS_SERVER"):
        find_nats_server()
    named.write_text("#!/bin/sh\n")
    named.chmod(0o755)
    assert find_nats_server() == str(named)
    monkeypatch.delenv("TREADLE_NATS_SERVER")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(ServerUnsuitable, match="pip install"):
        find_nats_server()
