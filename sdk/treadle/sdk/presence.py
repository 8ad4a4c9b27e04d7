"""Who is alive: a host's identity, and whether a process of this host still runs.

Two processes that read the same ``host_id`` share a boot and a pid namespace, so each can see
at once, without waiting for missed beats, that the other has died.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

BEAT_S = 0.5
"""Seconds between two beats of a process."""
BEATS_LOST_S = 3.0
"""A process without a beat for this long is taken for dead. A wrong guess is harmless: fencing
lets only one execution count."""
PRESENCE_S = 10.0
"""Seconds between two refreshes of the stored presence record."""


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
