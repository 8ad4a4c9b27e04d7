"""Bugs planted on purpose: a trial that cannot find them would prove nothing.

Each takes one rule of the protocol away from the processes that run with it:

    python -m tests.chaos --plant token       a verdict counts whatever token it holds
    python -m tests.chaos --plant signals     a signal counts each time its event comes
    python -m tests.chaos --plant checkpoint  a checkpoint is stored whatever stands
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import msgspec

from treadle.engine import core, registers, steps
from treadle.engine.core import signals
from treadle.sdk.bus.jetstream import CasResult, Stored
from treadle.sdk.messages import Checkpoint
from treadle.worker import checkpoints
from treadle.worker.held import HeldTask


def token() -> None:
    """Let a verdict count whatever token it holds."""
    advance, move = core.advance, registers.Registers.move

    def believing(step: Any, at: Any, event: Any, moment: Any) -> Any:
        if hasattr(event, "token"):
            event = msgspec.structs.replace(event, token=at.sequence)
        return advance(step, at, event, moment)

    async def following(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await move(self, *args, **{**kwargs, "head": kwargs["token"], "follow": True})

    cast("Any", steps).advance = believing
    cast("Any", registers.Registers).move = following


def signals_again() -> None:
    """Forget which signals were counted."""
    receive = signals.receive

    def forgetful(run: Any, event: Any, moment: Any) -> Any:
        forgotten = msgspec.structs.replace(run, applied=(), applied_below=0, signal_ids=())
        return receive(forgotten, event, moment)

    # Its package has a function of the same name.
    cast("Any", sys.modules["treadle.engine.core.apply"]).receive = forgetful


def checkpoint() -> None:
    """Store checkpoints without a fence."""

    async def unfenced(self: Any, held: HeldTask, written: Checkpoint) -> CasResult:
        address = held.address
        subject = self._subjects.checkpoint(address.run, address.step, address.domain)
        data = self._encode(written)
        sequence = await self._js.store(subject, data)
        return CasResult(Stored(sequence, data, 0, subject), None)

    cast("Any", checkpoints.CheckpointStore)._write = unfenced


PLANTS: dict[str, Callable[[], None]] = {
    "token": token,
    "signals": signals_again,
    "checkpoint": checkpoint,
}
