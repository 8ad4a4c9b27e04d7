"""How to reach NATS and which namespace to use; read from the environment once, at the edge.

    TREADLE_NATS_URL        nats://host:port, several separated by commas; tls:// for TLS
    TREADLE_NATS_CREDS      path of a NATS credentials file
    TREADLE_NATS_USER       user and password, when there is no credentials file
    TREADLE_NATS_PASSWORD
    TREADLE_NATS_CA         path of the authorities that sign servers, instead of the system's
    TREADLE_NATS_CERT       paths of this client's certificate and of its key, for servers that
    TREADLE_NATS_KEY        verify clients; any of these three means: with TLS or not at all
    TREADLE_NAMESPACE       prefix of every stream, bucket and subject; ``treadle`` by default
    TREADLE_MESSAGE_IDS     ``on`` or ``off``: whether writes carry Nats-Msg-Id, ``on`` by default

Without an URL the development server of this directory, or of a parent, is used if it runs
(``.treadle/dev.json``, written by ``treadle dev``), else the NATS default on this machine. One
that was killed leaves its file behind: then nothing is guessed, for the default may be the server
of another project.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from treadle.sdk.errors import ServerUnavailable, UserError
from treadle.sdk.ids import check_id
from treadle.sdk.subjects import DEFAULT_NAMESPACE

DEFAULT_URL = "nats://127.0.0.1:4222"
DEV_FILE = Path(".treadle") / "dev.json"
"""Where the development server says how to reach it, below the project's directory."""

_SWITCH = {"on": True, "off": False}
_SCHEMES = ("nats", "tls")


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach NATS and which namespace to use."""

    url: str = field(default=DEFAULT_URL, repr=False)
    """One URL, or several of one cluster separated by commas."""
    namespace: str = DEFAULT_NAMESPACE
    message_ids: bool = True
    """Whether writes carry Nats-Msg-Id. Nothing is built on it: both settings are correct."""
    creds: str = ""
    """Path of a NATS credentials file."""
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    """Path of certificates, as PEM, that a server's has to be signed by; '' is the system's."""
    cert: str = ""
    """Path of this client's certificate, as PEM, and of its key: both or none."""
    key: str = ""

    def __post_init__(self) -> None:
        check_id("namespace", self.namespace)
        if bool(self.cert) != bool(self.key):
            raise UserError(
                f"the client's certificate is {self.cert!r} and its key {self.key!r}: a server "
                "takes both or none. Set TREADLE_NATS_CERT and TREADLE_NATS_KEY, or neither."
            )
        for url in self.urls:
            scheme, separator, _ = url.partition("://")
            if separator and scheme not in _SCHEMES:
                raise UserError(
                    f"the NATS URL {without_password(url)!r} has the scheme {scheme!r}: only "
                    "nats:// and tls:// are supported. Set TREADLE_NATS_URL to such an URL."
                )
            if fault := _fault_of(url if separator else f"nats://{url}"):
                raise UserError(
                    f"the NATS URL {without_password(url)!r} {fault}. Set TREADLE_NATS_URL, for "
                    f"example to {DEFAULT_URL}."
                )
        if not self.urls:
            raise UserError(
                "the NATS URL is empty, so there is no server to connect to. Set TREADLE_NATS_URL, "
                f"for example to {DEFAULT_URL}."
            )

    @property
    def urls(self) -> list[str]:
        """The servers of ``url``, one by one."""
        return [part.strip() for part in self.url.split(",") if part.strip()]

    @property
    def shown_url(self) -> str:
        """``url`` as a person or a log may see it: without user and password."""
        return ",".join(map(without_password, self.urls))

    @classmethod
    def from_env(cls, **overrides: Any) -> Settings:
        """Read the environment; an override that is not None wins over its variable.

        Raises ``ServerUnavailable`` if this directory's development server was killed.
        """
        env = os.environ.get
        settings = cls(
            url=overrides.get("url") or env("TREADLE_NATS_URL") or _dev_server_url() or DEFAULT_URL,
            namespace=env("TREADLE_NAMESPACE") or DEFAULT_NAMESPACE,
            message_ids=_switch("TREADLE_MESSAGE_IDS", env("TREADLE_MESSAGE_IDS") or "on"),
            creds=env("TREADLE_NATS_CREDS") or "",
            user=env("TREADLE_NATS_USER") or "",
            password=env("TREADLE_NATS_PASSWORD") or "",
            ca=env("TREADLE_NATS_CA") or "",
            cert=env("TREADLE_NATS_CERT") or "",
            key=env("TREADLE_NATS_KEY") or "",
        )
        given = {name: value for name, value in overrides.items() if value is not None}
        return replace(settings, **given)

    def to_env(self) -> dict[str, str]:
        """Return the variables from which ``from_env`` reads these settings, in another process."""
        return {
            "TREADLE_NATS_URL": self.url,
            "TREADLE_NAMESPACE": self.namespace,
            "TREADLE_MESSAGE_IDS": "on" if self.message_ids else "off",
            "TREADLE_NATS_CREDS": self.creds,
            "TREADLE_NATS_USER": self.user,
            "TREADLE_NATS_PASSWORD": self.password,
            "TREADLE_NATS_CA": self.ca,
            "TREADLE_NATS_CERT": self.cert,
            "TREADLE_NATS_KEY": self.key,
        }


def _fault_of(url: str) -> str:
    """Return what is wrong with host or port of an URL, or ''."""
    host, bracket, rest = url.rpartition("://")[2].rpartition("@")[2].rpartition("]")
    name, colon, port = rest.partition("/")[0].partition(":")
    if not (host if bracket else name):
        return "names no host"
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
        return f"has the port {port[:20]!r}, and ports are 1 to 65535"
    return ""


def without_password(url: str) -> str:
    """Return an URL without the user and the password that it may hold."""
    scheme, separator, rest = url.rpartition("://")
    host = rest.rpartition("@")[2]
    return f"{scheme}{separator}{host}"


def _switch(variable: str, text: str) -> bool:
    try:
        return _SWITCH[text.lower()]
    except KeyError as exc:
        raise UserError(
            f"{variable} is {text!r}, which is neither on nor off. Set it to one of the two."
        ) from exc


def _dev_server_url() -> str:
    """The development server of the current directory or the nearest parent, if it lives."""
    here = Path.cwd()
    for directory in (here, *here.parents):
        try:
            entry = json.loads((directory / DEV_FILE).read_text())
            url, pid = str(entry["url"]), int(entry["pid"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if _lives(pid):
            return url
        raise ServerUnavailable(
            f"the development server of {directory} (pid {pid}) was killed, and no other server is "
            "guessed for its directory. Start it again with `treadle dev`, or name a server with "
            "--url or TREADLE_NATS_URL."
        )
    return ""


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
