"""A place for MCP servers of a test: they run as processes, and leave their traces in a folder."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.worker.agent import McpServer

PROGRAM = Path(__file__).with_name("server.py")
INIT_S = 40.0
"""Python and the library take seconds to start on a busy machine."""


class Place:
    """Where the servers of one test leave their traces."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def command(self) -> list[str]:
        return [sys.executable, str(PROGRAM), "stdio", str(self.directory)]

    def server(self, **options: Any) -> McpServer:
        """Return the shop's server, over its standard streams."""
        given = {"command": self.command(), "init_timeout": INIT_S} | options
        return McpServer("shop", **given)

    def start_http(self, port: int) -> subprocess.Popen[bytes]:
        """Start the shop over HTTP."""
        env = {**os.environ, "MCP_PORT": str(port)}
        command = [sys.executable, str(PROGRAM), "http", str(self.directory)]
        with (self.directory / "http.log").open("ab") as log:
            return subprocess.Popen(command, env=env, stdout=log, stderr=log)

    @property
    def pids(self) -> list[int]:
        """All processes that have been started, in order."""
        return [int(line) for line in self._lines("pids")]

    @property
    def alive(self) -> list[int]:
        """Those that still run."""
        return [pid for pid in self.pids if is_alive(pid)]

    @property
    def log(self) -> list[str]:
        """What the servers have done."""
        return self._lines("log")

    def add_tool(self) -> None:
        """Let servers that start from now on have one tool more."""
        (self.directory / "extra").touch()

    def _lines(self, name: str) -> list[str]:
        path = self.directory / name
        return path.read_text().splitlines() if path.exists() else []


def is_alive(pid: int) -> bool:
    """True if the process runs; a zombie has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


async def listens(port: int, within_s: float = INIT_S) -> None:
    """Wait until something listens there."""
    async with asyncio.timeout(within_s):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            await writer.wait_closed()
            return


async def until(condition: Callable[[], object], within_s: float = 15.0) -> None:
    """Wait for a condition, with a bound."""
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)
