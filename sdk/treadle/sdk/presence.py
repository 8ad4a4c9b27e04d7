"""Who is alive: a host's identity, whether a process of this host still runs, and how it fares.

Two processes that read the same ``host_id`` share a boot and a pid namespace, so each can see
at once, without waiting for missed beats, that the other has died.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from treadle.sdk.messages import WorkerPresence

BEAT_S = 0.5
"""Seconds between two beats of a process."""
BEATS_LOST_S = 3.0
"""A process without a beat for this long is taken for dead. A wrong guess is harmless: fencing
lets only one execution count."""
PRESENCE_S = 10.0
"""Seconds between two refreshes of the stored presence record."""
BLOCKED_PRESENCE_S = 2.0
"""The same while the worker's event loop is blocked, since for how long is read by people."""

BLOCKED_REMEDY = (
    "make that handler a plain function (def), which runs in a thread, or await instead of blocking"
)
"""What to do about a blocked event loop."""


@functools.cache
def host_id() -> str:
    """Return an id of this boot and pid namespace; '' where the system does not tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
    return f"{boot}:{namespace}"


def is_process_alive(pid: int) -> bool:
    """True while the process runs; a killed one that nobody has reaped yet does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def describe_blocked(worker: WorkerPresence) -> str:
    """Say, of a worker whose event loop is blocked, for how long, where and by what."""
    culprit = ""
    if worker.blocked_type:
        culprit = f" by a handler of type {worker.blocked_type!r} (run {worker.blocked_run!r})"
    return (
        f"the event loop of worker {worker.name or worker.incarnation!r} has been blocked for "
        f"{worker.blocked_ms / 1000:.0f} s at {worker.blocked_at}{culprit}"
    )
