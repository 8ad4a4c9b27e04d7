"""Signs of life: who is there, and what it holds."""

from __future__ import annotations

from typing import Literal

import msgspec


class WorkerPresence(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A worker or engine process, refreshed in the workers bucket while it lives."""

    incarnation: str
    role: Literal["worker", "engine"] = "worker"
    name: str = ""
    host: str = ""
    """Identifies the machine boot and pid namespace: two processes with one value can see
    each other's pids."""
    pid: int = 0
    types: tuple[str, ...] = ()
    concurrency: int = 0
    domain: str = "main"
    started_ms: int = 0
    version: str = ""
    projects: bool = False
    """An engine that can write the traces of runs; the oldest one does."""
    measures: bool = False
    """An engine that can count what happens in the namespace; the oldest one does."""
    indexes: bool = False
    """An engine that can keep the index of the runs; the oldest one does."""
    blocked_ms: int = 0
    """For how long its event loop has stood still; 0 while it goes round."""
    blocked_at: str = ""
    """The line that holds the loop, as ``file:line``."""
    blocked_type: str = ""
    """Task type of the handler on that line; empty when it is not known which."""
    blocked_run: str = ""
    """The run whose task that handler executes."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A task that a worker holds."""

    run: str
    step: str
    type: str
    token: int
    executing_ms: int = -1
    """For how long its handler has been running; 0 while the task waits for a slot of its worker,
    -1 is not told."""


class Beat(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A worker's sign of life, on core NATS, several times a second."""

    presence: WorkerPresence
    held: tuple[Held, ...] = ()
    """Every task it holds."""
    leaving: bool = False
    """The process has drained and ends; what it still holds is lost."""


class CancelNotice(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Engine to workers on core NATS: stop executing this run's (or step's) tasks."""

    run: str
    step: str = ""
    reason: str = ""
