"""What only the server's monitoring port tells: how soon a write is on the disk.

The port is asked for with ``--monitor``, or it is the dev server's own, or NATS' usual one on the
server's host. It may well be closed; then the answer is unknown.
"""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from treadle.cli import dev_file
from treadle.cli.check import Check
from treadle.sdk.settings import without_password

if TYPE_CHECKING:
    from treadle.sdk.settings import Settings

MONITORING_PORT = 8222
TIMEOUT_S = 1.0
_NS = 1_000_000_000


def check_sync(settings: Settings, monitor: str | None) -> Check:
    """Return the check of the server's sync interval."""
    address = monitor or _address(settings)
    try:
        jetstream = _read(address)
    except (OSError, ValueError, KeyError) as error:
        return Check(
            "sync",
            "warn",
            f"unknown: the monitoring address {without_password(address)} does not answer "
            f"({_short(error)})",
            "treadle doctor --monitor http://HOST:8222",
        )
    if jetstream.get("sync_always"):
        return Check("sync", "ok", "always: an acknowledged write is on the disk")
    interval_s = int(jetstream.get("sync_interval", 0)) / _NS
    return Check(
        "sync",
        "warn",
        f"every {interval_s:g} s: a kill -9 loses nothing, a power loss up to so much",
        "for production `jetstream { sync_interval: always }`",
    )


def _address(settings: Settings) -> str:
    dev = dev_file.find()
    if dev is not None and dev.url == settings.url and dev.monitor:
        return dev.monitor
    host = urlsplit(settings.urls[0] if "://" in settings.urls[0] else f"//{settings.urls[0]}")
    return f"http://{host.hostname or '127.0.0.1'}:{MONITORING_PORT}"


def _read(address: str) -> dict[str, Any]:
    if not address.startswith(("http://", "https://")):
        raise ValueError(f"{without_password(address)} is not an http address")
    with urllib.request.urlopen(f"{address.rstrip('/')}/varz", timeout=TIMEOUT_S) as answer:
        varz: dict[str, Any] = json.load(answer)
    config: dict[str, Any] = varz["jetstream"]["config"]
    return config


def _short(error: Exception) -> str:
    return str(getattr(error, "reason", error)) or type(error).__name__
