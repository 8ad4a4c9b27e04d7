"""What the demo saw: executions from the workers' journal, commits from the run's events.

Pure. The two sources differ on purpose: the journal says what was executed, the events say what
counts. An execution that a kill cut off is in the first and not in the second, and what it had
done is what the crash cost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Phase = Literal["asking", "testing", "tested", "saved", "committed", "killed"]


@dataclass(slots=True)
class Execution:
    """One execution of one iteration by one worker process."""

    iteration: int
    attempt: int
    pid: int
    started_at: float
    """Seconds since the epoch, by the worker's clock: it is this machine's."""
    phase: Phase = "asking"
    model_calls: int = 0
    edit: str = ""
    passed: int = 0
    failed: int = 0


@dataclass(slots=True)
class Kill:
    """A worker process that was killed, and what became of its work."""

    pid: int
    at: float
    execution: Execution | None
    """What it was executing; None when it had nothing in hand."""
    phase: Phase | Literal["idle"] = "idle"
    """What that execution was doing at that moment."""
    resumed: Execution | None = None
    """The next execution of that iteration, by another process."""

    @property
    def resumed_after_s(self) -> float | None:
        """Seconds from the kill to the resumption."""
        return round(self.resumed.started_at - self.at, 3) if self.resumed else None


@dataclass(slots=True)
class Story:
    """All executions, commits and kills of one run."""

    executions: list[Execution] = field(default_factory=list[Execution])
    committed: int = 0
    """Iterations that were committed: they are committed in order, each once."""
    kills: list[Kill] = field(default_factory=list[Kill])

    def note(self, entry: Mapping[str, Any]) -> None:
        """Take one line of the journal."""
        iteration, attempt, pid = entry["iteration"], entry["attempt"], entry["pid"]
        execution = self._last_of(pid)
        if entry["what"] == "started":
            execution = Execution(iteration, attempt, pid, entry["at"])
            self.executions.append(execution)
            self._resume(execution)
        elif execution is not None and execution.phase != "killed":
            _update(execution, entry)
        self._mark_committed()

    def commit(self, iterations: int) -> None:
        """Take the news that so many iterations are committed."""
        self.committed = max(self.committed, iterations)
        for kill in self.kills:
            # It had settled just before it was killed, and the news came after.
            if kill.execution and kill.resumed is None and kill.execution.iteration < iterations:
                kill.execution.phase = "committed"
        self._mark_committed()

    def kill(self, pid: int, at: float) -> Kill:
        """Take the news that a worker was killed."""
        kill = Kill(pid, at, None)
        execution = self._last_of(pid)
        if execution is not None and execution.phase != "committed":
            kill.execution, kill.phase = execution, execution.phase
            execution.phase = "killed"
        self.kills.append(kill)
        return kill

    def current(self, pid: int) -> Execution | None:
        """Return what a worker executes now, if anything."""
        execution = self._last_of(pid)
        return execution if execution and execution.phase not in ("committed", "killed") else None

    @property
    def model_calls(self) -> int:
        return sum(execution.model_calls for execution in self.executions)

    def _last_of(self, pid: int) -> Execution | None:
        return next((e for e in reversed(self.executions) if e.pid == pid), None)

    def _mark_committed(self) -> None:
        # Journal and events come on different ways, so either may be ahead.
        for execution in self.executions:
            if execution.iteration < self.committed and execution.phase != "killed":
                execution.phase = "committed"

    def _resume(self, execution: Execution) -> None:
        for kill in self.kills:
            cut = kill.execution
            if cut and kill.resumed is None and execution.iteration == cut.iteration:
                kill.resumed = execution


def _update(execution: Execution, entry: Mapping[str, Any]) -> None:
    match entry["what"]:
        case "asked":
            execution.model_calls += 1
        case "edited":
            execution.edit, execution.phase = entry["edit"], "testing"
        case "tested":
            execution.passed, execution.failed = entry["passed"], entry["failed"]
            execution.phase = "tested"
        case "saved":
            execution.phase = "saved"
        case _:
            pass
