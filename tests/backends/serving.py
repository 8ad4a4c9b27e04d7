"""A tracing backend as a child process: in a directory of its own, on this machine alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START_S = 240
"""The first start makes a database, on a machine that may have other work."""
STOP_S = 30
_POLL_S = 0.2


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def is_alone() -> bool:
    """True when this machine's network, as it is seen from here, is the loopback interface."""
    return [name for _, name in socket.if_nameindex()] == ["lo"]


class Serving:
    """A backend that has been started; ended by its process id, with all it has started."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], directory: Path, port: int
    ) -> None:
        directory.mkdir()
        self.url = f"http://127.0.0.1:{port}"
        self._log = directory / "server.log"
        # Its home is its directory: what it keeps for its user goes with it.
        whole = {"PATH": os.environ["PATH"], "HOME": str(directory), "LANG": "C.UTF-8", **env}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=whole,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self, path: str) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + START_S
        while not self._answers(path):
            said = self._log.read_text(errors="replace")[-2_000:]
            assert self._process.poll() is None, f"it ended: {said}"
            assert time.monotonic() < deadline, f"no answer within {START_S} s: {said}"
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """End its process group."""
        for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            try:
                os.killpg(self._process.pid, number)
            except ProcessLookupError:
                pass
            try:
                self._process.wait(patience_s)
            except subprocess.TimeoutExpired:
                continue

    def ask(self, path: str, body: Any = None) -> Any:
        """Return its JSON answer; None for a 404."""
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as exc:
            if exc.code == 404:
                return None
            raise AssertionError(f"{path}: {exc.code} {exc.read()[:500]!r}") from exc

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(self.url + path, timeout=5):
                return True
        except OSError:
            return False
