"""The floor: the same messages with nothing around them.

One process stores what an iteration stores, one message after the other, each waiting for its
acknowledgement: checkpoint, settle, next task, with the same sizes, subjects and fences. No
worker, no engine, no delivery, no acks. What Treadle takes beyond it is Treadle's own.
"""

from __future__ import annotations

import asyncio
import time

from treadle.engine.topology import ensure_topology
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects

_TASK = b'{"kind":"task","parent":"e1","input":"' + b"x" * 300 + b'"}'
_SETTLE = b'{"event":"step.continued","step":"loop","token":1,"pad":"' + b"x" * 150 + b'"}'


async def floor(url: str, *, loops: int, iterations: int, state_bytes: int, saves: bool) -> float:
    """Return iterations a second of the bare messages, of so many loops side by side."""
    settings = Settings(url=url, namespace="floor")
    connection = await Connection.open(settings, name="bench-floor")
    try:
        js = JetStream(connection)
        subjects = await ensure_topology(js, settings)
        nonce = str(time.monotonic_ns())
        started = time.perf_counter()
        await asyncio.gather(
            *(
                _loop(js, subjects, f"{nonce}-{i}", iterations, state_bytes, saves)
                for i in range(loops)
            )
        )
        return loops * iterations / (time.perf_counter() - started)
    finally:
        await connection.close()


async def _loop(
    js: JetStream, subjects: Subjects, run: str, iterations: int, state_bytes: int, saves: bool
) -> None:
    pad = b"x" * state_bytes
    pair = subjects.pair(run, "loop")
    register = subjects.register(run, "loop", "floor")
    head = 0
    for i in range(iterations):
        if saves:
            answer = await js.attempt(
                subjects.checkpoint(run, "loop"), pad, expected=head, filter=pair
            )
            assert isinstance(answer, int), answer
            head = answer
        settle = _SETTLE if saves else _SETTLE + pad
        await js.store(subjects.event(run), settle, message_id=f"{run}:{i}")
        task = _TASK if saves else _TASK + pad
        answer = await js.attempt(
            register, task, expected=head, filter=pair, message_id=f"{run}:t{i}"
        )
        assert isinstance(answer, int), answer
        head = answer
