"""The end of the demo as data: the same for the table and for ``--json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treadle.cli.demo.story import Execution, Kill


@dataclass(frozen=True, slots=True)
class Summary:
    """What came of the demo."""

    run: str
    status: str
    model: str
    iterations: int
    """Committed ones."""
    executions: int
    model_calls: int
    kills: list[Kill]
    why_no_kill: str
    seconds: float
    """From the start of the run to its end."""
    diff: str
    repaired: bool
    """Whether the tests passed when the demo itself ran them on the result."""
    verdict: str
    """The last line of that."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON types."""
        return {
            "run": self.run,
            "status": self.status,
            "model": self.model,
            "iterations": self.iterations,
            "executions": self.executions,
            "model_calls": self.model_calls,
            "kills": [_kill_as_json(kill) for kill in self.kills],
            "seconds": round(self.seconds, 3),
            "repaired": self.repaired,
            "verdict": self.verdict,
            "diff": self.diff,
        }


def _kill_as_json(kill: Kill) -> dict[str, Any]:
    cut, resumed = kill.execution, kill.resumed
    return {
        "worker": kill.pid,
        "phase": kill.phase,
        "iteration": cut.iteration if cut else None,
        "attempt": cut.attempt if cut else None,
        "time_to_resume_s": kill.resumed_after_s,
        "resumed_by": resumed.pid if resumed else None,
        "resumed_attempt": resumed.attempt if resumed else None,
        "repeated_model_calls": repeated_calls(kill),
        "repeated_edit": bool(cut and cut.edit and kill.phase != "saved"),
    }


def repeated_calls(kill: Kill) -> int:
    """Return how many model calls the kill made worthless."""
    cut = kill.execution
    return cut.model_calls if cut and kill.resumed and kill.phase != "saved" else 0


def describe_kill(kill: Kill) -> list[tuple[str, str]]:
    """Return the rows of the table about one kill."""
    cut, resumed = kill.execution, kill.resumed
    if cut is None:
        return [("killed", f"worker {kill.pid}, while it had nothing in hand")]
    rows = [("killed", f"worker {kill.pid} in {_place(cut)}, {_doing(kill)}")]
    if resumed is None:
        return [*rows, ("time to resume", "not resumed: the iteration was already settled")]
    again = "nothing: its checkpoint had been saved"
    if kill.phase != "saved":
        again = f"{_work(cut)} of that iteration; nothing that was committed"
    return [
        *rows,
        (
            "time to resume",
            f"{kill.resumed_after_s:.2f} s, as {_place(resumed)}, by worker {resumed.pid}",
        ),
        ("executed again", again),
    ]


def _work(execution: Execution) -> str:
    calls = execution.model_calls
    asked = f"{calls} model call{'' if calls == 1 else 's'}"
    return f"{asked} and the edit ({execution.edit})" if execution.edit else asked


def _place(execution: Execution) -> str:
    return f"iteration {execution.iteration}, attempt {execution.attempt}"


def _doing(kill: Kill) -> str:
    match kill.phase:
        case "asking":
            return "while it asked the model"
        case "testing" | "tested":
            return "after its edit, before its checkpoint"
        case "saved":
            return "after its checkpoint, before its settle"
        case _:
            return "at rest"
