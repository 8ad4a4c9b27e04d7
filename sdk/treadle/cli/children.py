"""A child process that is kept alive: restarted when it crashes or is asked to, ended for sure.

    run:  spawn ──ended──> stopping? ──────────────> return
            ^                restart asked? ──┐
            │                bad input? wait for the next change
            └── after a pause that grows ─────┘

Each child leads a process group of its own, so that Ctrl-C reaches only the parent, which ends
the children in order, and so that whatever a child has started goes with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from treadle.cli import exits

PAUSE_S_FIRST = 0.5
PAUSE_S_MAX = 10.0
"""Between two starts of a child that keeps crashing."""
STEADY_S = 10.0
"""A child that lived so long did start; its next crash is a new one."""
GRACE_S = 3.0
"""From SIGTERM to SIGKILL. In development nobody waits for a drain: what a worker held when it
was killed is taken over by the next one."""
LINE_BYTES_MAX = 64 * 1024


class Child:
    """One kept process."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        tell: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self.pid = 0
        self._arguments = [sys.executable, *arguments]
        self._environment = dict(environment)
        self._tell = tell
        self._process: asyncio.subprocess.Process | None = None
        self._changed = asyncio.Event()
        self._stopping = False
        self._restarting = False

    async def run(self) -> None:
        """Keep the process alive until ``stop``."""
        pause_s = PAUSE_S_FIRST
        while not self._stopping:
            self._changed.clear()
            started = time.monotonic()
            code = await self._run_once()
            if self._stopping:
                return
            if self._restarting:
                self._restarting = False
                pause_s = PAUSE_S_FIRST
            elif code == exits.USAGE:
                self._tell(self.name, "waiting for the next change")
                await self._changed.wait()
            else:
                if time.monotonic() - started > STEADY_S:
                    pause_s = PAUSE_S_FIRST
                how = f"signal {-code}" if code < 0 else f"status {code}"
                self._tell(self.name, f"ended with {how}; starting again in {pause_s:g} s")
                await self._pause(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def restart(self) -> None:
        """Replace the process by a new one, now."""
        self._changed.set()
        if self._process is not None and self._process.returncode is None:
            self._restarting = True
            await self._end()

    async def stop(self) -> None:
        """End the process; ``run`` then returns."""
        self._stopping = True
        self._changed.set()
        await self._end()

    def kill(self) -> None:
        """End the process and its group at once."""
        self._stopping = True
        self._changed.set()
        if self._process is not None and self._process.returncode is None:
            self._signal_group(signal.SIGKILL)

    # ---------------------------------------------------------------- leaves

    async def _run_once(self) -> int:
        # A pipe of our own: asyncio's would keep `wait` waiting for whatever the child has
        # started and that still holds the other end.
        read_end, write_end = os.pipe()
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._arguments,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
            )
        except OSError:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        self.pid = process.pid
        if self._stopping:  # Asked while it was being started.
            self._signal_group(signal.SIGKILL)
        pump = asyncio.create_task(self._pump(read_end))
        code = await process.wait()
        # What it started must not outlive it.
        self._signal_group(signal.SIGKILL)
        await pump
        return code

    async def _pump(self, read_end: int) -> None:
        """Hand on what the child writes, line by line."""
        lines = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(read_end, "rb")
        )
        try:
            while True:
                try:
                    line = await lines.readline()
                except ValueError:
                    continue  # Longer than any line for a person: its beginning was dropped.
                if not line:
                    return
                self._tell(self.name, line.decode(errors="replace").rstrip())
        finally:
            transport.close()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(GRACE_S):
                await process.wait()
        except TimeoutError:
            self._signal_group(signal.SIGKILL)
            await process.wait()

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            pass  # All of it has ended.
