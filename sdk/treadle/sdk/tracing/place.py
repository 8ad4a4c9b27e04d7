"""Where a log line belongs: the run and the execution it is about, and their place in the trace.

In a worker it is the current execution's, by a context variable. An engine has no span open and
no execution of its own: it names the run, and the ids follow from what is stored.

    _log.error("engine.handling-failed ...", extra={"place": Place(run=..., trace=...)})
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from treadle.sdk.tracing import ids


class Place(NamedTuple):
    """What is known; empty or below 0 is not."""

    run: str
    workflow: str = ""
    step: str = ""
    iteration: int = -1
    attempt: int = 0
    worker: str = ""
    """The worker process, as ``Client.processes`` names it."""
    trace: str = ""
    """The run's trace as ``tracing.ids`` writes a reference."""

    @property
    def fields(self) -> dict[str, str | int]:
        """The fields of a log line, those that are known."""
        found: dict[str, str | int] = {
            "run_id": self.run,
            "workflow": self.workflow,
            "step": self.step,
            "worker_id": self.worker,
        }
        found = {name: value for name, value in found.items() if value}
        if self.iteration >= 0:
            found["iteration"] = self.iteration
        if self.attempt:
            found["attempt"] = self.attempt
        return found

    @property
    def span(self) -> tuple[str, str] | None:
        """Trace and span id of the narrowest span that this is about; None without a trace."""
        ref = ids.parse_ref(self.trace)
        if ref is None:
            return None
        if self.step and self.attempt:
            return ids.attempt_place(ref, self.step, max(0, self.iteration), self.attempt)
        if self.step:
            return ref.trace_id, ids.step_span(ref.trace_id, self.step)
        return ref.trace_id, ids.root_span(ref.trace_id)


current: ContextVar[Place | None] = ContextVar("treadle-place", default=None)
"""The execution that runs here."""
