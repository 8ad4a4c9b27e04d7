"""The workload: a loop that carries a baton whose state is a hash chain over its iterations.

    state_out = H(state_in, run, step, iteration, salt)      salt: fresh for every execution

Two executions of one iteration never agree by luck, so one that is lost, repeated, reordered or
mixed up changes the last state, and the verdict does not rest on the engine's own bookkeeping.
"""

from __future__ import annotations

import hashlib

import msgspec

TASK_TYPE = "link"


class Baton(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Input and output of every iteration."""

    state: str
    previous: str = ""
    salt: str = ""
    iteration: int = -1
    """The iteration that made ``state``; -1 is the seed."""
    is_alien: bool = False
    """True when that iteration found a checkpoint that does not belong to its own past."""
    iterations: int = 5
    work_ms: int = 0
    delay_ms: int = -1
    """Pause after each iteration; -1 is the loop's own."""
    saves: bool = True
    """Whether iterations write a checkpoint."""
    wait_at: int = -1
    """An iteration that waits until the test opens the gate; -1 is none."""
    pause_at: int = -1
    """An iteration that ends by waiting for a message; -1 is none."""
    pause_s: float = 0
    """Longest such wait; 0 has no end of its own."""
    listens: bool = False
    """Whether iterations read the messages to their step."""
    fails_percent: int = 0
    """Of the executions, drawn anew for each."""
    hang_at: int = -1
    """An iteration that blocks its thread; -1 is none."""


class Saved(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The checkpoint: the baton that this iteration is going to hand on."""

    baton: Baton


def seed(run: str) -> str:
    """Return the state a run starts from."""
    return _hash("seed", run)


def link(previous: str, run: str, step: str, iteration: int, salt: str) -> str:
    """Return the state after one iteration."""
    return _hash(previous, run, step, str(iteration), salt)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\x1f".join(parts).encode()).hexdigest()[:24]
