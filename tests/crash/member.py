"""One process of a crash test: an engine, or a worker that hands batons on.

Settings come from TREADLE_* variables, what is the test's own from CRASH_*: the process's name,
the ack wait, the effect log, the gate that an iteration may have to wait at, and a bug to plant.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import random
import secrets
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from tests.crash.chain import TASK_TYPE, Baton, Saved, link
from tests.crash.places import a_place

from treadle.engine import Engine
from treadle.sdk.settings import Settings
from treadle.sdk.spending import Spent
from treadle.worker import LoopContext, TaskContext, Worker, serve
from treadle.worker.verdict import Complete, Continue, Wait

_HANG_S = 60.0
ITEM_TYPE = "item"
GUARDED_TYPE = "guarded"
ITEM_S = 0.3
"""Of one item of a map: a chunk of a few of them lasts longer than the time between two saves."""


class EffectLog:
    """Lines that several processes append to one file, each whole."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, kind: str, ctx: TaskContext[Any]) -> None:
        entry = {
            "kind": kind,
            "at_s": time.monotonic(),
            "pid": os.getpid(),
            "run": ctx.run,
            "step": ctx.step,
            "iteration": ctx.iteration,
            "attempt": ctx.attempt,
            "index": ctx.index,
        }
        os.write(self._file, msgspec.json.encode(entry) + b"\n")


def make_worker(name: str, effects: EffectLog, ack_wait_s: float) -> Worker:
    """Return a worker that hands batons on."""
    gate = os.environ["CRASH_GATE"]
    concurrency = int(os.environ["CRASH_CONCURRENCY"])
    worker = Worker(name, concurrency=concurrency, ack_wait_s=ack_wait_s, drain_timeout_s=5.0)

    @worker.handler(TASK_TYPE)
    async def hand_on(ctx: LoopContext[Baton]) -> Continue | Wait | Complete:
        effects.write("begin", ctx)
        given = ctx.input
        messages = await ctx.messages() if given.listens or given.pause_at >= 0 else []
        for message in messages:
            effects.write(f"heard {message.id}", ctx)
        saved = await ctx.load_checkpoint(Saved) if given.saves else None
        if given.hang_at == ctx.iteration:
            time.sleep(_HANG_S)
        while given.wait_at == ctx.iteration and not os.path.exists(gate):
            await asyncio.sleep(0.005)
        if given.work_ms:
            await asyncio.sleep(given.work_ms / 1000)
        if random.random() * 100 < given.fails_percent:
            raise RuntimeError("a failure by lot")
        baton = _saved_now(ctx, given, saved)
        if baton is None:
            effects.write("work", ctx)
            baton = _next(ctx, given, saved)
        if given.saves:
            await ctx.checkpoint(Saved(baton=baton))
        effects.write("end", ctx)
        # One for each iteration, whichever of its attempts lives to tell it.
        ctx.report_spent(Spent(tool_calls=1))
        if given.pause_at == ctx.iteration and not messages:
            until = timedelta(seconds=given.pause_s) if given.pause_s else None
            return ctx.wait("the test", until, state=baton)
        if ctx.iteration + 1 < given.iterations:
            return ctx.continue_(baton, delay=None if given.delay_ms < 0 else given.delay_ms / 1000)
        return ctx.complete(baton)

    @worker.handler(ITEM_TYPE)
    async def double(ctx: TaskContext[int]) -> int:
        effects.write("item", ctx)
        await asyncio.sleep(ITEM_S)
        if ctx.input % 5 == 3 and ctx.attempt == 1:
            raise RuntimeError("every fifth item fails once")
        return ctx.input * 2

    @worker.handler(GUARDED_TYPE)
    async def guarded(ctx: LoopContext[dict[str, Any]]) -> Continue | Complete:
        given = ctx.input
        with a_place(Path(gate).parent, given["key"], given["limit"]) as place:
            effects.write("begin" if place >= 0 else "over", ctx)
            while "waits" in given and not (Path(gate).parent / given["waits"]).exists():
                await asyncio.sleep(0.005)
            await asyncio.sleep(given["work_ms"] / 1000)
            if ctx.iteration in given.get("fails_at", ()) and ctx.attempt == 1:
                raise RuntimeError("the first attempt of this iteration fails")
        if ctx.iteration + 1 < given["iterations"]:
            return ctx.continue_(given)
        return ctx.complete(given["key"])

    @worker.handler("plan")
    async def plan(ctx: TaskContext[Any]) -> dict[str, Any]:
        # Another plan each time: a second one would be seen.
        ids = [secrets.token_hex(4) for _ in range(3)]
        return {"steps": [{"kind": "task", "id": each, "type": "planned"} for each in ids]}

    @worker.handler("planned")
    async def planned(ctx: TaskContext[Any]) -> str:
        effects.write("planned", ctx)
        return ctx.step

    return worker


def _saved_now(ctx: LoopContext[Baton], given: Baton, saved: Saved | None) -> Baton | None:
    """Return what an earlier execution of this very iteration has saved."""
    written = ctx.last_checkpoint
    if saved is None or written is None or written.iteration != ctx.iteration:
        return None
    return saved.baton if saved.baton.previous == given.state else None


def _next(ctx: LoopContext[Baton], given: Baton, saved: Saved | None) -> Baton:
    """Return one link more; a checkpoint must be what the iteration before has saved."""
    salt = secrets.token_hex(8)
    return msgspec.structs.replace(
        given,
        state=link(given.state, ctx.run, ctx.step, ctx.iteration, salt),
        previous=given.state,
        salt=salt,
        iteration=ctx.iteration,
        is_alien=saved is not None and saved.baton.state != given.state,
    )


async def _engine(settings: Settings, name: str, ack_wait_s: float) -> None:
    await Engine(settings, name=name, event_ack_wait_s=ack_wait_s).run()


def main() -> None:
    role = sys.argv[1]
    logging.basicConfig(format="%(relativeCreated)d %(levelname)s %(message)s", level=logging.INFO)
    if plant := os.environ.get("CRASH_PLANT"):
        importlib.import_module("tests.chaos.plants").PLANTS[plant]()
    settings = Settings.from_env()
    name, ack_wait_s = os.environ["CRASH_NAME"], float(os.environ["CRASH_ACK_WAIT_S"])
    if role == "engine":
        asyncio.run(_engine(settings, name, ack_wait_s))
    else:
        effects = EffectLog(os.environ["CRASH_EFFECTS"])
        serve(make_worker(name, effects, ack_wait_s), settings)


if __name__ == "__main__":
    main()
