"""A shell command in a process group of its own, which ends whatever happens.

    worker ──runs──> bash -c COMMAND       leader of the group; input closed, output to one pipe
       └───runs──> guard                   waits at a pipe; when it breaks, the worker is dead,
                                           and the guard kills the group

What leaves the group by itself (``setsid``) escapes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from treadle.worker.agent.tools.guard import Guard

READ_BYTES = 64 * 1024
OUTPUT_BYTES_STOP = 64 * 1024 * 1024
"""A command that writes more has run away; it would keep a core busy until its timeout."""
TERM_GRACE_S = 2.0
"""From TERM to KILL."""
PIPE_GRACE_S = 0.5
"""After the group is dead, for what a process outside of it may still hold of the pipe."""
_AT_THE_WORD = 'read -r word && exec -a bash "$BASH" -c "$1" </dev/null'
"""Runs the command once the guard knows the group; if the worker dies before, there is no word."""

Status = Literal["ended", "timeout", "output_limit"]


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """A command that has ended."""

    status: Status
    exit_code: int | None
    """Negative: the signal that ended it. ``None`` if it was killed by its bounds."""
    head: bytes
    tail: bytes
    total_bytes: int
    """All that was written; more than head and tail hold if the middle was dropped."""


class Output:
    """The beginning and the end of what is written, within a bound."""

    def __init__(self, bytes_max: int) -> None:
        self._head_max = bytes_max // 2
        self._tail_max = bytes_max - self._head_max
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Take what was read."""
        self.total_bytes += len(data)
        room = self._head_max - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_bytes += len(data)
        while self._tail_bytes - len(self._tail[0]) >= self._tail_max:
            self._tail_bytes -= len(self._tail.popleft())

    @property
    def head(self) -> bytes:
        """The beginning."""
        return bytes(self._head)

    @property
    def tail(self) -> bytes:
        """What follows the beginning, or the end of it."""
        return b"".join(self._tail)[-self._tail_max :]


class _Pipe:
    """Reads a pipe into an output as the event loop finds time."""

    def __init__(self, fd: int, output: Output, on_flood: Callable[[], None]) -> None:
        self._fd = fd
        self._output = output
        self._on_flood = on_flood
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._fd)
            self.ended.set()
            return
        self._output.add(data)
        if self._output.total_bytes > OUTPUT_BYTES_STOP:
            self._on_flood()

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


async def run_command(
    command: str,
    *,
    cwd: str | None,
    env: Mapping[str, str],
    timeout_s: float,
    output_bytes_max: int,
) -> Ran:
    """Run the command in a shell until it ends or a bound is reached.

    It reads no profile: that takes its time at each command, and what a profile starts and a
    killed shell leaves half done (a lock, say) would hold up the commands after it.

    However this returns, also cancelled: no process of the group is left.
    """
    output = Output(output_bytes_max)
    flooded = asyncio.Event()
    reading, writing = os.pipe()
    pipe = _Pipe(reading, output, flooded.set)
    guard: Guard | None = None
    shell: asyncio.subprocess.Process | None = None
    is_over = False
    try:
        try:
            guard = await Guard.start()
            shell = await asyncio.create_subprocess_exec(
                "bash",
                "-c",
                _AT_THE_WORD,
                "bash",
                command,
                stdin=asyncio.subprocess.PIPE,
                stdout=writing,
                stderr=writing,
                cwd=cwd,
                env=dict(env),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        guard.watch(shell.pid)
        _give_the_word(shell)
        status = await _ended(shell, flooded, timeout_s)
        await _end_group(shell, gently=status != "ended")
        is_over = True
        await _wait_for(pipe.ended, PIPE_GRACE_S)
        return Ran(
            status=status,
            exit_code=shell.returncode if status == "ended" else None,
            head=output.head,
            tail=output.tail,
            total_bytes=output.total_bytes,
        )
    finally:
        try:
            if shell is not None and not is_over:
                await _end_group(shell, gently=True)
        finally:
            pipe.close()
            if guard is not None:
                await guard.release()


def _give_the_word(shell: asyncio.subprocess.Process) -> None:
    assert shell.stdin is not None
    try:
        shell.stdin.write(b"go\n")
        shell.stdin.close()
    except (BrokenPipeError, ConnectionResetError, RuntimeError):
        pass  # It has been killed already; that is seen at its end.


async def _ended(
    shell: asyncio.subprocess.Process, flooded: asyncio.Event, timeout_s: float
) -> Status:
    exit_ = asyncio.ensure_future(shell.wait())
    flood = asyncio.ensure_future(flooded.wait())
    try:
        await asyncio.wait({exit_, flood}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if exit_.done():
            return "ended"
        return "output_limit" if flood.done() else "timeout"
    finally:
        exit_.cancel()
        flood.cancel()


async def _end_group(shell: asyncio.subprocess.Process, *, gently: bool) -> None:
    """End the group: TERM and some time first while its leader lives, KILL in any case."""
    try:
        if gently and shell.returncode is None:
            _signal(shell.pid, signal.SIGTERM)
            waiting = asyncio.ensure_future(shell.wait())
            try:
                await asyncio.wait({waiting}, timeout=TERM_GRACE_S)
            finally:
                waiting.cancel()
    finally:
        _signal(shell.pid, signal.SIGKILL)
    await shell.wait()


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass  # All of it has ended. macOS says the second of a group of zombies.


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait({waiting}, timeout=timeout_s)
    waiting.cancel()
