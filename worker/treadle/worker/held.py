"""The tasks this process holds: received, not yet handed back.

Two threads look at them. The event loop owns a held task; the heartbeat thread reads it, keeps
its delivery alive, and may take the right to settle it (``claim``) when the loop cannot.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from treadle.sdk.messages import Held, Task
from treadle.sdk.subjects import RegisterAddress
from treadle.sdk.tracing.place import Place

if TYPE_CHECKING:
    from treadle.sdk.bus.puller import Delivery
    from treadle.worker.execution import Call
    from treadle.worker.intake import Intake
    from treadle.worker.output import Voice


class HeldTask:
    """One delivery of a task, until it is settled, dropped or abandoned."""

    __slots__ = (
        "_claimed",
        "address",
        "call",
        "delivery",
        "entry",
        "grace",
        "head",
        "intake",
        "is_released",
        "item",
        "occupies_slot",
        "progress_s",
        "saving",
        "started_s",
        "taken_us",
        "task",
        "timed_s",
        "timer",
        "token",
        "touched_s",
        "voice",
        "work",
    )

    def __init__(
        self,
        delivery: Delivery,
        address: RegisterAddress,
        task: Task,
        intake: Intake,
        now_s: float,
    ) -> None:
        self.delivery = delivery
        self.address = address
        self.task = task
        self.intake = intake
        self.token = delivery.sequence
        self.head = delivery.sequence
        """Newest sequence of the register and checkpoint pair this execution knows."""
        self.entry = Held(address.run, address.step, address.type, delivery.sequence)
        self.touched_s = now_s
        """When the server was last told that it is in progress."""
        self.started_s = 0.0
        """When the handler was called; 0 while the task waits for a slot."""
        self.taken_us = 0
        """The same by the wall clock, in microseconds since the epoch."""
        self.progress_s = now_s
        """When the handler last said that it is getting on."""
        self.call: Call | None = None
        self.work: asyncio.Task[Any] | None = None
        self.item: asyncio.Task[Any] | None = None
        """What executes an item of a map at this moment."""
        self.timed_s = 0.0
        """Since when the ``timeout`` counts; 0 while nothing is executed that has one."""
        self.timer: asyncio.TimerHandle | None = None
        """Fires when the attempt's ``timeout`` is over."""
        self.grace: asyncio.TimerHandle | None = None
        """Fires when a stopped handler had its time to end."""
        self.saving: asyncio.Lock | None = None
        """Held while a checkpoint is written: made on first use."""
        self.voice: Voice | None = None
        """What it says to the output stream: made when it first says something."""
        self.occupies_slot = False
        self.is_released = False
        self._claimed = threading.Lock()

    def claim(self) -> bool:
        """Take the right to settle. True for one caller only, whichever thread it is on."""
        return self._claimed.acquire(blocking=False)

    def __str__(self) -> str:
        """Which execution it is, for log lines."""
        return (
            f"run={self.address.run} step={self.address.step} type={self.address.type} "
            f"iteration={self.task.iteration} attempt={self.task.attempt} token={self.token}"
        )

    @property
    def place(self) -> Place:
        """The same for log lines that a program reads."""
        address, task = self.address, self.task
        iteration = task.iteration if task.loop else -1
        worker = self.intake.worker
        return Place(
            address.run, task.workflow, address.step, iteration, task.attempt, worker, task.trace
        )

    @property
    def queued_us(self) -> int:
        """Since when it could have been executed but for its limits, a worker and a slot of it."""
        return self.delivery.time_us - self.task.queued_ms * 1_000

    @property
    def is_claimed(self) -> bool:
        """True when someone settles this task, or has."""
        return self._claimed.locked()


class HeldTable:
    """All held tasks, by token: a sequence names one delivery of one register value."""

    def __init__(self) -> None:
        self._tasks: dict[int, HeldTask] = {}

    def add(self, held: HeldTask) -> None:
        self._tasks[held.token] = held

    def get(self, token: int) -> HeldTask | None:
        return self._tasks.get(token)

    def remove(self, held: HeldTask) -> None:
        self._tasks.pop(held.token, None)

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[HeldTask]:
        """Iterate over a copy, from any thread."""
        # Copying a dict is one step of the interpreter; iterating over it is not.
        return iter(self._tasks.copy().values())
