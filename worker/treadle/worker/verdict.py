"""What an execution of a handler comes to. Exactly one of these, always.

Outputs are encoded already: what is stored later are these bytes, untouched.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.asks import Ask
from treadle.sdk.messages import ChunkDone, Failure

StopReason = Literal["cancelled", "timeout", "fenced", "lost"]
"""Why an execution was told to stop.

``cancelled``  the run or step was cancelled
``timeout``    the attempt ran longer than its ``timeout``
``fenced``     the step has moved on, or another execution of it has saved first
``lost``       this process cannot finish it (it drains, or NATS is away): dispatch it again
"""


class Continue(msgspec.Struct, frozen=True):
    """The loop goes on: ``output`` is the next iteration's input."""

    output: bytes
    delay_ms: int = -1
    """Pause before the next iteration; -1 is the loop's own."""


class Wait(msgspec.Struct, frozen=True):
    """The iteration is done, and the next one begins when a message comes or the time has."""

    output: bytes
    reason: str
    due_ms: int = 0
    """When it goes on in any case; 0 is never."""
    asks: tuple[Ask, ...] = ()
    """What people are asked meanwhile."""
    counts: bool = True
    """Whether it is one of the iterations that the loop may take."""
    line: str = ""
    """Key of the provider's budget in whose line it waits; empty is none."""


class Complete(msgspec.Struct, frozen=True):
    """The step is done."""

    output: bytes
    chunk: ChunkDone | None = None
    """Of the task of a chunk of a map."""


class Fail(msgspec.Struct, frozen=True):
    """The attempt failed; the retry policy decides what follows."""

    failure: Failure


class Stopped(msgspec.Struct, frozen=True):
    """The execution was told to stop: whatever the handler returned does not count."""

    reason: StopReason


HandlerVerdict = Continue | Wait | Complete | Fail
Verdict = HandlerVerdict | Stopped
