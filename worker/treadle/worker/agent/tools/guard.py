"""A guard: a process that ends a process group when this process is gone.

It waits at a pipe. While somebody holds the other end it does nothing; when the pipe breaks, with
``kill -9`` too, it kills the group it was told.
"""

from __future__ import annotations

import asyncio

_DONE = "done\n"
_SCRIPT = (
    'read -r group || exit 0; [ "$group" = done ] && exit 0; '
    'read -r done || kill -s KILL -- "-$group"'
)


class Guard:
    """Watches over one process group."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> Guard:
        """Start the guard; it watches over nothing yet."""
        process = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            _SCRIPT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        return cls(process)

    def watch(self, group: int) -> None:
        """From now on, kill that group when this process dies."""
        self._tell(f"{group}\n")

    async def release(self) -> None:
        """End the guard: the group has ended, or may go on."""
        self._tell(_DONE)
        await self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            if line == _DONE:
                self._process.stdin.close()
        except (BrokenPipeError, ConnectionResetError, RuntimeError):
            pass  # Somebody has killed it: the group loses only its end with this process.
