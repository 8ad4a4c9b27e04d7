"""TLS to the server: who is believed, who is let in, and that nothing goes in plain text.

Method: real servers with certificates that openssl makes for the test.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.bus.test_open import ConfiguredServer, refusal

from treadle.sdk.bus import handshake
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import ServerUnavailable, UserError
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes them")


class Files(NamedTuple):
    """Paths: an authority, a certificate of 127.0.0.1 that it has signed, and its key."""

    ca: str
    cert: str
    key: str


SELF_SIGNED = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
StartWith = Callable[[str], NatsServer]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    at = tmp_path_factory.mktemp("tls")
    new = SELF_SIGNED
    of_ca = f"-keyout {at}/ca.key -out {at}/ca.pem -subj /CN=authority"
    signed = f"-CA {at}/ca.pem -CAkey {at}/ca.key -keyout {at}/key.pem -out {at}/cert.pem"
    named = "-subj /CN=treadle -addext subjectAltName=IP:127.0.0.1"
    for command in (f"{new} {of_ca}", f"{new} {signed} {named}"):
        subprocess.run(command.split(), check=True, capture_output=True)
    return Files(f"{at}/ca.pem", f"{at}/cert.pem", f"{at}/key.pem")


@pytest.fixture
def start_with(tmp_path: Path) -> Iterator[StartWith]:
    started: list[NatsServer] = []

    def start(extra: str) -> NatsServer:
        extra = f"jetstream {{ store_dir: {json.dumps(str(tmp_path))} }}\n{extra}"
        kind = type("Configured", (ConfiguredServer,), {"extra": extra})
        started.append(kind.start(tmp_path / "nats"))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def block(files: Files, more: str = "") -> str:
    return f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}" {more} }}'


def store_a_large_value(settings: Settings) -> None:
    async def main() -> None:
        async with await Connection.open(settings, name="test") as connection:
            js = JetStream(connection)
            await js.ensure_stream({"name": "A", "subjects": ["a"]})
            body = bytes(900_000)
            await js.store("a", body)
            stored = await js.last("A", "a")
            assert stored is not None
            assert stored.data == body

    asyncio.run(main())


def test_everything_works_with_an_authority_that_the_system_is_told_of(
    start_with: StartWith, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_with(block(files))
    monkeypatch.setenv("SSL_CERT_FILE", files.ca)
    store_a_large_value(Settings(url=f"tls://127.0.0.1:{server.port}"))


def test_everything_works_with_an_authority_of_ones_own(
    start_with: StartWith, files: Files
) -> None:
    server = start_with(block(files))
    store_a_large_value(Settings(url=f"tls://127.0.0.1:{server.port}", ca=files.ca))


def test_a_server_of_another_authority_is_not_believed(start_with: StartWith, files: Files) -> None:
    server = start_with(block(files))
    error = refusal(Settings(url=f"tls://127.0.0.1:{server.port}"))
    assert isinstance(error, ServerUnavailable)
    assert "certificate" in str(error) and "TREADLE_NATS_CA" in str(error)


def test_a_server_that_verifies_clients_lets_in_who_has_a_certificate(
    start_with: StartWith, files: Files
) -> None:
    server = start_with(block(files, f', ca_file: "{files.ca}", verify: true'))
    url = f"tls://127.0.0.1:{server.port}"
    store_a_large_value(Settings(url=url, ca=files.ca, cert=files.cert, key=files.key))
    error = refusal(Settings(url=url, ca=files.ca))
    assert isinstance(error, ServerUnavailable)
    assert "TREADLE_NATS_CERT" in str(error)


def test_a_client_of_an_authority_that_the_server_does_not_know_is_told_so_at_once(
    start_with: StartWith, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = str(tmp_path / "other.pem"), str(tmp_path / "other.key")
    made = f"{SELF_SIGNED} -keyout {key} -out {cert} -subj /CN=other"
    subprocess.run(made.split(), check=True, capture_output=True)
    server = start_with(block(files, f', ca_file: "{files.ca}", verify: true'))
    monkeypatch.setattr(handshake, "OPEN_TIMEOUT_S", 600.0)  # Nobody waits for its end.
    url = f"tls://127.0.0.1:{server.port}"
    error = refusal(Settings(url=url, ca=files.ca, cert=cert, key=key))
    assert isinstance(error, ServerUnavailable)
    assert "unknown ca" in str(error) and "Check TREADLE_NATS_CA, TREADLE_NATS_CERT" in str(error)


@pytest.mark.parametrize("scheme", ["tls", "nats"])
def test_no_password_is_told_to_a_server_without_tls_if_tls_is_demanded(
    start_with: StartWith, files: Files, scheme: str
) -> None:
    server = start_with("authorization { user: a, password: secret }")
    url = f"{scheme}://127.0.0.1:{server.port}"
    given = {"user": "a", "password": "secret", "ca": files.ca if scheme == "nats" else ""}
    error = refusal(Settings(url=url, **given))
    assert isinstance(error, ServerUnavailable)
    assert "offers no TLS" in str(error)


def test_a_file_that_is_missing_or_is_no_certificate_is_named(files: Files, tmp_path: Path) -> None:
    error = refusal(Settings(ca=str(tmp_path / "no.pem")))
    assert isinstance(error, UserError)
    assert "no.pem" in str(error) and "TREADLE_NATS_CA" in str(error)
    error = refusal(Settings(cert=files.key, key=files.cert))
    assert isinstance(error, UserError)
    assert files.key in str(error) and "TREADLE_NATS_KEY" in str(error)
    error = refusal(Settings(ca=str(tmp_path)))
    assert isinstance(error, UserError)
    assert "TREADLE_NATS_CA is" in str(error) and "that is a directory" in str(error)


def test_nobody_is_asked_for_the_passphrase_of_a_key(files: Files, tmp_path: Path) -> None:
    encrypted = tmp_path / "encrypted.key"
    command = f"openssl pkey -in {files.key} -aes128 -passout pass:secret -out {encrypted}"
    subprocess.run(command.split(), check=True, capture_output=True)
    error = refusal(Settings(cert=files.cert, key=str(encrypted)))
    assert isinstance(error, UserError)
    assert str(encrypted) in str(error) and "is encrypted" in str(error)
    assert "TREADLE_NATS_KEY" in str(error)
