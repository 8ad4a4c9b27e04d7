"""Which fault strikes what, and when: a function of the seed."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

ENGINES = 2
WORKERS = 3

Kind = Literal["kill", "pause", "delete_consumer"]

_WEIGHTS: dict[tuple[Kind, str], float] = {
    ("kill", "process"): 3,
    ("kill", "server"): 1,
    ("pause", "process"): 3,
    ("delete_consumer", "worker"): 0.5,
    ("delete_consumer", "engine"): 0.5,
}
_EVERY_S = 0.45

WINDOWS = {
    "engine": (
        "engine.events-taken",
        "engine.document-stored",
        "engine.register-created",
        "engine.register-stored",
        "engine.effects-driven",
        "engine.before-ack",
    ),
    "worker": (
        "worker.received",
        "worker.checkpoint-before",
        "worker.checkpoint-stored",
        "worker.settle-before",
        "worker.settle-stored",
        "worker.acked",
    ),
}
"""Where a process may be told, when it starts, to die by itself."""


class Fault(NamedTuple):
    """One fault."""

    at_s: float
    kind: Kind
    target: str
    """Slot of the process, ``server``, or whose consumer it is."""
    hold_s: float
    """How long a paused process stands still."""


def slots() -> list[str]:
    """Return the processes of a trial."""
    engines = [f"engine{number}" for number in range(ENGINES)]
    return engines + [f"worker{number}" for number in range(WORKERS)]


def schedule(seed: int, seconds: float, ack_wait_s: float) -> list[Fault]:
    """Return the faults of a trial, in order."""
    rng = random.Random(seed)
    kinds, weights = list(_WEIGHTS), list(_WEIGHTS.values())
    faults: list[Fault] = []
    at_s = _EVERY_S
    while at_s < seconds:
        kind, target = rng.choices(kinds, weights)[0]
        if target == "process":
            target = rng.choice(slots())
        # From well within an ack wait to long past it.
        hold_s = rng.uniform(0.6, 2.0) * ack_wait_s if kind == "pause" else 0.0
        faults.append(Fault(at_s, kind, target, hold_s))
        at_s += rng.expovariate(1 / _EVERY_S)
    return faults


def window(rng: random.Random, role: str) -> str:
    """Return a failpoint for a process that starts; half of them get none."""
    if rng.random() < 0.5:
        return ""
    return f"{rng.choice(WINDOWS[role])}=kill@{rng.randrange(5, 150)}"
