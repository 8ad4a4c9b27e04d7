"""Worker to engine: how an execution of a task ended."""

from __future__ import annotations

import msgspec

from treadle.sdk.asks import Ask
from treadle.sdk.messages.common import NO_RAW, Failure
from treadle.sdk.messages.maps import ChunkDone
from treadle.sdk.spending import NOTHING, Spent
from treadle.sdk.tracing.span import SpanPart


class _Settle(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    step: str
    type: str
    token: int
    """Sequence of the register message the execution holds: the fencing token."""
    iteration: int = 0
    attempt: int = 1
    worker: str = ""
    queued_us: int = 0
    """When the task was stored, by the server's clock; microseconds, like ``taken_us``. Both are 0
    in a run without a trace."""
    taken_us: int = 0
    """When its execution began, by the worker's clock; 0 if it is not known."""


class _Verdict(_Settle, frozen=True, kw_only=True):
    head: int
    """Newest sequence of the register and checkpoint pair the execution knows."""
    spent: Spent = NOTHING
    """What this iteration has used so far, all its attempts together: a count that is repeated
    counts once."""
    seen: int = 0
    """Sequence of the newest message to the step that the execution took note of; 0 is none."""
    takes_messages: bool = False
    """The handler asks for messages: the step does not end while there is one it has not seen."""
    parts: tuple[SpanPart, ...] = ()
    """What the iteration did, for its trace: see ``tracing.span``."""
    content: dict[int, dict[str, str]] = {}
    """By part: attributes with content that nothing else that is stored holds. Only if the worker
    is asked for content, bounded, and left out before the verdict is too large."""


class StepContinued(_Verdict, frozen=True, tag="step.continued", tag_field="event", kw_only=True):
    output: msgspec.Raw = NO_RAW
    """The next iteration's input."""
    delay_ms: int = -1
    """Pause before the next iteration; -1 is the loop's own ``loop_delay_s``."""


class StepWaiting(_Verdict, frozen=True, tag="step.waiting", tag_field="event", kw_only=True):
    """The iteration is done, and the next one begins when a message comes or the time has."""

    reason: str = ""
    """What it waits for, in words."""
    due_ms: int = 0
    """When it goes on in any case; 0 is never."""
    output: msgspec.Raw = NO_RAW
    """The next iteration's input."""
    asks: tuple[Ask, ...] = ()
    """What people are asked."""
    uncounted: bool = False
    """It is none of the iterations that the loop may take."""
    line: str = ""
    """Key of the provider's budget in whose line it waits for its turn; empty is none."""


class StepCompleted(_Verdict, frozen=True, tag="step.completed", tag_field="event", kw_only=True):
    output: msgspec.Raw = NO_RAW
    chunk: ChunkDone | None = None
    """What the end of a chunk of a map adds up to."""


class StepFailed(_Verdict, frozen=True, tag="step.failed", tag_field="event", kw_only=True):
    failure: Failure


class TaskLost(_Settle, frozen=True, tag="task.lost", tag_field="event", kw_only=True):
    """The execution that held ``token`` will not settle; dispatch the task again."""

    reason: str = ""


class TaskDue(_Settle, frozen=True, tag="task.due", tag_field="event", kw_only=True):
    """The delay of the register at ``token`` is over."""
