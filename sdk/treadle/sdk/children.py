"""Parent and child runs: the link between them, and the id of a child.

A child's id is a function of what its parent has stored, so whoever starts it again, after any
crash, names the same run.
"""

from __future__ import annotations

import hashlib

import msgspec

CHILD_DEPTH_MAX = 8
"""Levels of runs below the one that a client or a trigger has started. A workflow may start itself,
and one that does so without an end would fill the store; hand-made nesting stays below four."""

CHILD_FAILED = "child_failed"
CHILD_CANCELLED = "child_cancelled"
"""Failure types of a step whose child failed, or was cancelled by somebody else."""

_PARENT_CHARS = 24
_STEP_CHARS = 20
_HASH_CHARS = 16
"""With two hyphens 62 characters: an id has 64 at most."""


class ParentRun(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who started a run: a step of another run."""

    run: str
    step: str
    attempt: int = 1
    """Which start of that step it is, counted from 1."""
    root: str
    """The run at the top, which no run has started."""
    depth: int = 1
    """How many runs are above this one."""
    detached: bool = False
    """The parent neither waits for the run nor ends it."""
    bounded: bool = False
    """The run shares the budget of its parent, or of a run above that."""
    timeout_ms: int = 0
    """Longest life of the run, from its request; 0 is none."""


def child_id(run: str, requested: int, step: str, attempt: int) -> str:
    """Return the id of the run that a step starts with its n-th attempt.

    ``requested`` is the sequence of the parent's request: an id may be used again after its run
    has gone, and its children are others.
    """
    text = f"{run}\x1f{requested}\x1f{step}\x1f{attempt}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]
    return f"{run[:_PARENT_CHARS]}-{step[:_STEP_CHARS]}-{digest}"
