"""Settings from the environment, and the development server's file.

Method: the environment and the current directory are the test's own; no server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from treadle.sdk.errors import InvalidId, ServerUnavailable, UserError
from treadle.sdk.settings import DEFAULT_URL, DEV_FILE, Settings


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TREADLE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def dev_file(directory: Path, text: str) -> None:
    path = directory / DEV_FILE
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_without_an_environment_the_defaults_hold() -> None:
    assert Settings.from_env() == Settings()
    assert Settings().urls == [DEFAULT_URL]


def test_every_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_NATS_URL", "nats://a:1, tls://b:2")
    monkeypatch.setenv("TREADLE_NAMESPACE", "mine")
    monkeypatch.setenv("TREADLE_MESSAGE_IDS", "OFF")
    monkeypatch.setenv("TREADLE_NATS_CREDS", "/c")
    monkeypatch.setenv("TREADLE_NATS_USER", "u")
    monkeypatch.setenv("TREADLE_NATS_PASSWORD", "secret")
    monkeypatch.setenv("TREADLE_NATS_CA", "/ca.pem")
    monkeypatch.setenv("TREADLE_NATS_CERT", "/cert.pem")
    monkeypatch.setenv("TREADLE_NATS_KEY", "/key.pem")
    settings = Settings.from_env()
    assert settings.urls == ["nats://a:1", "tls://b:2"]
    assert (settings.namespace, settings.message_ids) == ("mine", False)
    assert (settings.creds, settings.user, settings.password) == ("/c", "u", "secret")
    assert (settings.ca, settings.cert, settings.key) == ("/ca.pem", "/cert.pem", "/key.pem")
    assert "secret" not in repr(settings)
    for name, value in settings.to_env().items():
        monkeypatch.setenv(name, value)
    assert Settings.from_env() == settings


@pytest.mark.parametrize("given", [{"cert": "/c.pem"}, {"key": "/k.pem"}])
def test_a_certificate_without_its_key_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(UserError, match="both or none"):
        Settings(**given)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://u:se/cr@et@h:1", "nats://h:1"),
        ("u:secret@h:1, tls://t@h2", "h:1,tls://h2"),
        ("nats://h:1", "nats://h:1"),
    ],
)
def test_no_text_about_the_settings_has_the_password_of_the_url(url: str, shown: str) -> None:
    settings = Settings(url=url)
    assert settings.shown_url == shown
    assert "secret" not in repr(settings) and "cr@et" not in repr(settings)
    with pytest.raises(UserError) as caught:
        Settings(url="http://u:secret@h:1")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["nats://", "nats://:4222", "nats://h:99999", "h:0", "tls://u:p@", "nats://h:port"]
)
def test_an_url_that_reaches_nothing_is_refused_before_it_is_tried(url: str) -> None:
    with pytest.raises(UserError, match=r"names no host|ports are 1 to 65535"):
        Settings(url=url)


@pytest.mark.parametrize("url", ["h", "nats://h/", "nats://[::1]:4222", "[::1]", "u:p@h:1"])
def test_an_url_may_leave_out_what_has_a_default(url: str) -> None:
    assert Settings(url=url).urls == [url]


def test_an_override_wins_unless_it_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_NATS_URL", "nats://a:1")
    monkeypatch.setenv("TREADLE_NAMESPACE", "mine")
    settings = Settings.from_env(url="nats://b:2", namespace=None, message_ids=False)
    assert settings == Settings(url="nats://b:2", namespace="mine", message_ids=False)


def test_the_development_server_of_a_parent_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dev_file(tmp_path, json.dumps({"url": "nats://127.0.0.1:7", "pid": os.getpid()}))
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert Settings.from_env().url == "nats://127.0.0.1:7"
    monkeypatch.setenv("TREADLE_NATS_URL", "nats://a:1")
    assert Settings.from_env().url == "nats://a:1"


def test_no_other_server_is_guessed_where_the_development_server_was_killed(
    tmp_path: Path,
) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dev_file(tmp_path, json.dumps({"url": "nats://127.0.0.1:7", "pid": ended.pid}))
    with pytest.raises(ServerUnavailable, match=r"was killed.*treadle dev.*--url"):
        Settings.from_env()
    assert Settings.from_env(url="nats://a:1").url == "nats://a:1"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"url": "nats://x"}', '{"url": 1, "pid": "x"}'])
def test_a_broken_development_file_is_ignored(tmp_path: Path, text: str) -> None:
    dev_file(tmp_path, text)
    assert Settings.from_env().url == DEFAULT_URL


@pytest.mark.parametrize("namespace", ["a.b", "a b", "", "*", "é", "a" * 65])
def test_a_namespace_that_cannot_be_part_of_a_subject_is_refused(namespace: str) -> None:
    with pytest.raises(InvalidId, match="namespace"):
        Settings(namespace=namespace)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TREADLE_MESSAGE_IDS", "maybe"),
        ("TREADLE_NATS_URL", "ws://a:1"),
        ("TREADLE_NATS_URL", " , "),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=variable):
        Settings.from_env()
