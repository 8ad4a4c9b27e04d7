"""Workers: write a handler, register it by task type, run it.

Start with ``worker.py`` (the worker), ``context.py`` (what a handler sees) and ``execution.py``
(what becomes of what it does).
"""

from treadle.sdk.asks import Ask, Reply
from treadle.sdk.failed_step import FailedStep
from treadle.worker.context import (
    CheckpointInfo,
    LoopContext,
    SyncLoopContext,
    SyncTaskContext,
    TaskContext,
)
from treadle.worker.mailbox import ReceivedMessage
from treadle.worker.process import serve
from treadle.worker.spending import Remaining
from treadle.worker.worker import Worker

__all__ = [
    "Ask",
    "CheckpointInfo",
    "FailedStep",
    "LoopContext",
    "ReceivedMessage",
    "Remaining",
    "Reply",
    "SyncLoopContext",
    "SyncTaskContext",
    "TaskContext",
    "Worker",
    "serve",
]
