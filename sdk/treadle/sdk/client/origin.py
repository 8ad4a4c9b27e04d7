"""What a retry or a fork was made of, for readers. Pure."""

from __future__ import annotations

import msgspec

from treadle.sdk.messages import Fork


class ForkedFrom(msgspec.Struct, frozen=True):
    """What a run was made of."""

    run: str
    step: str = ""
    """The step that it starts again from; empty is a retry, or the whole run."""
    iteration: int = -1
    """The iteration of that step; -1 is its beginning."""
    kept: int = 0
    """Steps that it has taken over."""
    is_retry: bool = False
    has_input: bool = False
    """The step, or without a step the run, was given another input."""


def origin_of(fork: Fork | None) -> ForkedFrom | None:
    """Return what a run was made of; None if it was not forked."""
    if fork is None:
        return None
    return ForkedFrom(
        fork.run, fork.step, fork.iteration, len(fork.kept), fork.is_retry, fork.has_input
    )
