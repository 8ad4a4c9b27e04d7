"""A child that a handler forks never acts as the worker, and has no say on its connection.
Method: a real worker in this process, handlers that fork, and the children's exit codes."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import pytest
from tests.worker.stage import open_stage, task, until

from treadle.sdk.bus.connection import Connection, Unknown
from treadle.sdk.messages import StepCompleted
from treadle.sdk.settings import Settings
from treadle.worker import SyncTaskContext, TaskContext, Worker
from treadle.worker.forking import EXIT_CODE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")


async def _exit_code(pid: int) -> int:
    async def look() -> tuple[int, int]:
        return os.waitpid(pid, os.WNOHANG)

    _, status = await until(look, lambda found: found[0] == pid)
    return os.waitstatus_to_exitcode(status)


@pytest.mark.parametrize(
    ("type_", "way", "code"),
    [
        *(("work", way, EXIT_CODE) for way in ("returns", "raises", "sleeps", "awaits")),
        *(("sync", way, EXIT_CODE) for way in ("returns", "raises")),
        *((type_, "exits", 3) for type_ in ("work", "sync")),
        ("work", "ends", 4),
    ],
)
def test_a_forked_child_ends_and_the_worker_goes_on(
    settings: Settings, type_: str, way: str, code: int
) -> None:
    def leave() -> None:
        match way:
            case "raises":
                raise ValueError("in the child")
            case "exits":
                sys.exit(3)
            case "ends":
                os._exit(4)
            case _:
                pass

    async def story() -> None:
        worker, never = Worker(), asyncio.Event()

        @worker.handler("work")
        async def work(ctx: TaskContext[Any]) -> int:
            if not (pid := os.fork()):
                if way == "sleeps":
                    await asyncio.sleep(60)
                if way == "awaits":
                    await never.wait()
                leave()
            return pid

        @worker.handler("sync")
        def sync(ctx: SyncTaskContext[Any]) -> int:
            if not (pid := os.fork()):
                leave()
            return pid

        async with open_stage(settings) as stage, stage.running(worker):
            for run in ("r1", "r2"):
                await stage.put(task(), type_=type_, run=run)
                pid = int(bytes((await stage.event(StepCompleted, run)).output))
                assert await _exit_code(pid) == code
            assert [len(await stage.events(run)) for run in ("r1", "r2")] == [1, 1]

    asyncio.run(story())


def test_a_child_cannot_speak_on_its_parents_connection_nor_keep_it_open(
    settings: Settings,
) -> None:
    async def story() -> None:
        async with await Connection.open(settings, name="parent") as connection:
            heard: list[bytes] = []
            await connection.subscribe("forked", lambda message: heard.append(message.data))
            if not (pid := os.fork()):
                try:
                    connection.publish("forked", b"child")
                except Unknown as exc:
                    os._exit(5 if "forked" in str(exc) else 6)
                os._exit(7)
            assert await _exit_code(pid) == 5
            connection.publish("forked", b"parent")
            await connection.flush()
            assert heard == [b"parent"]

    asyncio.run(story())
