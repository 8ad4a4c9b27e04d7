"""Exit codes of the command line: the same meaning in every command."""

from __future__ import annotations

OK = 0
RUN_FAILED = 1
USAGE = 2
RUN_CANCELLED = 3
SERVER = 4
UNKNOWN = 5
TIMED_OUT = 6
CONFLICT = 7
CHECK_FAILED = 8
STUCK = 9
PARTIAL = 10
BUG = 70
INTERRUPTED = 130

MEANINGS = {
    OK: "done",
    RUN_FAILED: "the run, or an evaluation, failed",
    USAGE: "bad usage or bad input: arguments, files, definitions, values",
    RUN_CANCELLED: "the run was cancelled",
    SERVER: "NATS cannot be reached, is not suitable or not set up, or holds a damaged value",
    UNKNOWN: "no such run, workflow, trigger or dead letter",
    TIMED_OUT: "not finished within --timeout",
    CONFLICT: "the run is not in a state for this, or was started with something else",
    CHECK_FAILED: "treadle doctor found something to mend",
    STUCK: "treadle explain says that the run is stuck until somebody acts",
    PARTIAL: "some of several runs or letters could not be acted on",
    BUG: "a bug of Treadle",
    INTERRUPTED: "interrupted with Ctrl-C",
}


def code_of(error: BaseException) -> int:
    """Return the exit code that an error means."""
    from treadle.sdk import errors

    match error:
        case errors.RunFailed():
            return RUN_FAILED
        case errors.RunCancelled():
            return RUN_CANCELLED
        case (
            errors.UnknownRun()
            | errors.UnknownTrigger()
            | errors.UnknownWorkflow()
            | errors.UnknownDeadLetter()
        ):
            return UNKNOWN
        case errors.RunConflict():
            return CONFLICT
        case errors.UserError():
            return USAGE
        case errors.ServerError() | errors.StoredUnreadable():
            return SERVER
        case TimeoutError():
            return TIMED_OUT
        case KeyboardInterrupt():
            return INTERRUPTED
        case _:
            return BUG


def code_of_status(status: str) -> int:
    """Return the exit code that a run's status means."""
    return {"failed": RUN_FAILED, "cancelled": RUN_CANCELLED}.get(status, OK)
