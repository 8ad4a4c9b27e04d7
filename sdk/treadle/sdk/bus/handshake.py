"""The first connection: how nats-py is asked to connect, and which servers will do."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import random
import re
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.sdk.bus.nats_link import NatsLink
from treadle.sdk.bus.wire import Unknown
from treadle.sdk.errors import ServerUnavailable, ServerUnsuitable, UserError, clause
from treadle.sdk.settings import Settings

if TYPE_CHECKING:
    from treadle.sdk.bus.connection import Connection

_log = logging.getLogger("treadle.bus")

SERVER_VERSION_MIN = (2, 14, 3)
"""The first with atomic publishes, schedules and consumer fixes this package was tested with."""
CONNECT_TIMEOUT_S = 2
"""Of one attempt."""
OPEN_TIMEOUT_S = 8.0
"""Of all attempts: long enough for a server that is started together with this process."""
JETSTREAM_TIMEOUT_S = 15.0
"""A cluster that starts, or has just lost its leader, elects one in 4 to 9 s."""
PING_INTERVAL_S = 5
PINGS_OUTSTANDING_MAX = 2
RECONNECT_WAIT_S = (0.1, 0.25)
_REFUSED = ("authorization violation", "authentication", "permissions violation")
_UNTRUSTED = ("certificate", "offers no tls", "unknown ca", "alert handshake failure")
"""The server's own alerts among them: of an unknown authority it says no more than that."""
_NO_JETSTREAM = (10039, 10076)


async def connect(
    link: NatsLink,
    settings: Settings,
    *,
    name: str,
    on_reconnected: Callable[[], Awaitable[None]],
) -> None:
    """Connect within a budget; afterwards the link reconnects for ever."""
    _check_credentials(settings)
    tls = _tls(settings)
    link.requires_tls = tls is not None
    refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    last_error = "no answer"

    async def on_error(error: Exception) -> None:
        nonlocal last_error
        previous, last_error = last_error, _text(error)
        # Of an outage only its beginning and its end are news, and the connection logs them.
        # While this connects, what is refused is said by the error that is raised.
        news = attempt.done() and "violation" in last_error.lower() and last_error != previous
        level = logging.WARNING if news else logging.DEBUG
        _log.log(level, "bus.nats-error error=%s", last_error)
        is_final = _is_any(last_error, _REFUSED)
        # Of several servers another one may have a certificate that is not over.
        is_final |= _is_any(last_error, _UNTRUSTED) and len(settings.urls) == 1
        if is_final and not refused.done():
            refused.set_result(None)

    attempt = asyncio.ensure_future(
        link.connect(
            settings.urls,
            error_cb=on_error,
            reconnected_cb=on_reconnected,
            name=name,
            connect_timeout=CONNECT_TIMEOUT_S,
            max_reconnect_attempts=-1,
            # One number a connection: together they spread like jitter.
            reconnect_time_wait=random.uniform(*RECONNECT_WAIT_S),  # type: ignore[arg-type]
            ping_interval=PING_INTERVAL_S,
            max_outstanding_pings=PINGS_OUTSTANDING_MAX,
            user=settings.user or None,
            password=settings.password or None,
            user_credentials=settings.creds or None,
            tls=tls,
        )
    )
    try:
        await asyncio.wait(
            {attempt, refused}, timeout=OPEN_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        if not attempt.done():
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
            await link.close()
    if attempt.cancelled():
        raise _unreachable(settings, last_error, refused.done())
    if (failure := attempt.exception()) is not None:
        raise _unreachable(settings, _text(failure), refused.done()) from failure


def _is_any(error: str, texts: tuple[str, ...]) -> bool:
    return any(text in error.lower() for text in texts)


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "something listens there, and does not speak as a NATS server does"
    return str(error) or type(error).__name__


def _check_credentials(settings: Settings) -> None:
    if not settings.creds:
        return
    if not Path(settings.creds).is_file():
        raise UserError(
            f"the NATS credentials file {settings.creds!r} does not exist. "
            f"Set TREADLE_NATS_CREDS to its path, or unset it."
        )
    if importlib.util.find_spec("nkeys") is None:
        raise UserError(
            f"the NATS credentials file {settings.creds!r} needs the package nkeys, which is not "
            f"installed. Install it with `pip install 'nats-py[nkeys]'`."
        )


def _tls(settings: Settings) -> ssl.SSLContext | None:
    """Return how servers are checked and told who this is; None is as the system does."""
    if not settings.ca and not settings.cert:
        return None
    paths = (settings.ca, settings.cert, settings.key)
    variables = ("TREADLE_NATS_CA", "TREADLE_NATS_CERT", "TREADLE_NATS_KEY")
    for variable, path in zip(variables, paths, strict=True):
        if path and not Path(path).is_file():
            raise UserError(
                f"{variable} is {path!r}, and {_no_file(Path(path))}. Set it to the path of a file "
                "as PEM, or unset it."
            )
    try:
        context = ssl.create_default_context(cafile=settings.ca or None)
        if settings.cert:
            context.load_cert_chain(settings.cert, settings.key, _no_passphrase)
    except _Encrypted as exc:
        raise UserError(
            f"the key in {settings.key!r} is encrypted, and there is nobody to ask for its "
            f"passphrase. Set TREADLE_NATS_KEY to a key without one, for example of `openssl pkey "
            f"-in {settings.key} -out plain.key`, that only this process may read."
        ) from exc
    except (ssl.SSLError, OSError) as exc:
        named = ", ".join(repr(path) for path in paths if path)
        raise UserError(
            f"the certificates in {named} cannot be used: {clause(exc)}. TREADLE_NATS_CA, "
            "TREADLE_NATS_CERT and TREADLE_NATS_KEY are files as PEM, and the key is that of the "
            "certificate, without a passphrase."
        ) from exc
    return context


class _Encrypted(Exception):
    """A key needs a passphrase."""


def _no_passphrase() -> str:
    # Without this, OpenSSL asks at the terminal, and waits there for ever.
    raise _Encrypted


def _no_file(path: Path) -> str:
    return "that is a directory" if path.is_dir() else "there is no such file"


def _unreachable(settings: Settings, why: str, refused: bool) -> ServerUnavailable:
    url = settings.shown_url
    if _is_any(why, _UNTRUSTED):
        return ServerUnavailable(
            f"NATS at {url} cannot be spoken to safely ({why}). Check TREADLE_NATS_CA, "
            "TREADLE_NATS_CERT and TREADLE_NATS_KEY, and the server's own certificate."
        )
    if refused:
        return ServerUnavailable(
            f"NATS at {url} refused this client ({why}). Check TREADLE_NATS_CREDS, or "
            f"TREADLE_NATS_USER and TREADLE_NATS_PASSWORD."
        )
    return ServerUnavailable(
        f"NATS at {url} could not be reached within {OPEN_TIMEOUT_S:.0f} s ({why}). Start a server "
        f"(`treadle dev APP` brings its own), or set TREADLE_NATS_URL."
    )


class _ApiFault(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _AccountInfo(msgspec.Struct):
    error: _ApiFault | None = None


async def check_server(connection: Connection, info: dict[str, Any]) -> None:
    """Raise ``ServerUnsuitable`` if the server is too old or has no JetStream."""
    version = connection.server_version
    if _numbers(version) < SERVER_VERSION_MIN:
        least = ".".join(map(str, SERVER_VERSION_MIN))
        raise ServerUnsuitable(
            f"the NATS server is version {version or 'unknown'}, and Treadle needs {least} or "
            f"newer for the JetStream features it stands on. Upgrade nats-server."
        )
    deadline = asyncio.get_running_loop().time() + JETSTREAM_TIMEOUT_S
    while True:
        try:
            answer = await connection.request("$JS.API.INFO", b"")
            fault = msgspec.json.decode(answer.data, type=_AccountInfo).error
            if fault is None:
                return
            why = fault.description
            if fault.err_code in _NO_JETSTREAM:
                raise _no_jetstream(why)
        except Unknown as exc:
            why = str(exc)
            if not info.get("jetstream") and "nobody answers" in why:
                raise _no_jetstream(why) from exc
        if asyncio.get_running_loop().time() > deadline:
            raise ServerUnavailable(
                f"JetStream did not become ready within {JETSTREAM_TIMEOUT_S:.0f} s ({why}). "
                f"Check that a majority of the cluster's servers runs, then try again."
            )
        await asyncio.sleep(0.2)


def _no_jetstream(why: str) -> ServerUnsuitable:
    return ServerUnsuitable(
        f"the NATS server has no JetStream for this account ({why}), and Treadle stores everything "
        f"in it. Start nats-server with `-js -sd DIRECTORY`, or enable it in its configuration."
    )


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return tuple(map(int, match.groups())) if match else (0,)
