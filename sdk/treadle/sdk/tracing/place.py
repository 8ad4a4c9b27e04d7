"""Where a log line belongs: the run and the execution it is about, and their place in the trace.

In a worker it is the current execution's, by a context variable. An engine has no span open and
no execution of its own: it names the run, and the ids follow from what is stored.

    _log.error("engine.handling-failed ...", extra={"place": Place(run=..., trace=...)})
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import NamedTuple, Protocol

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

    @property
    def place(self) -> Place:
        """Itself."""
        return self


class Located(Protocol):
    """What knows its place, and need not say so before somebody logs."""

    @property
    def place(self) -> Place:
        """Where it is."""
        ...


_current: ContextVar[Located | None] = ContextVar("treadle-place", default=None)


def enter(located: Located | None) -> Token[Located | None]:
    """Make an execution the one that runs here."""
    return _current.set(located)


def leave(token: Token[Located | None]) -> None:
    """Go back to what was before."""
    _current.reset(token)


def current() -> Place | None:
    """Return the place of the execution that runs here; None outside of one."""
    located = _current.get()
    return None if located is None else located.place
