"""What only a worker knows, as gauges: its slots, its abandoned handlers, a blocked event loop.

They go to the provider of the process, whoever has set it; without one they do nothing. Several
workers of a process are added up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import NamedTuple

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from treadle.sdk.tracing import metric_names as names
from treadle.sdk.tracing.names import SCOPE
from treadle.worker.runner import Runner
from treadle.worker.watchdog import LoopWatch


class _Working(NamedTuple):
    runner: Runner
    watch: LoopWatch


_working: dict[int, _Working] = {}
_lock = threading.Lock()
_made: list[object] = []
"""The instruments, once they are made: a meter keeps what was made of it."""


@contextmanager
def observed(runner: Runner, watch: LoopWatch) -> Generator[None]:
    """Let the gauges show a worker while the block runs."""
    with _lock:
        if not _made:
            _make()
    each = _Working(runner, watch)
    _working[id(each)] = each
    try:
        yield
    finally:
        del _working[id(each)]


def _make() -> None:
    meter = metrics.get_meter(SCOPE)
    values: dict[names.Instrument, Callable[[_Working], float]] = {
        names.WORKER_SLOTS: lambda each: each.runner.slots,
        names.WORKER_SLOTS_USED: lambda each: each.runner.slots_used,
        names.WORKER_WAITING: lambda each: each.runner.waiting,
        names.WORKER_ABANDONED: lambda each: each.runner.abandoned,
        names.WORKER_BLOCKED: lambda each: each.watch.stalled_s(time.monotonic()),
    }
    for instrument, value in values.items():
        _made.append(
            meter.create_observable_gauge(
                instrument.name, [_sum(value)], instrument.unit, instrument.description
            )
        )


def _sum(
    value: Callable[[_Working], float],
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def total(options: CallbackOptions) -> Iterable[Observation]:
        del options
        # Copied in one step: another thread reads.
        working = list(_working.values())
        return [Observation(sum(map(value, working)))] if working else []

    return total
