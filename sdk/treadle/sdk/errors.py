"""Every error a user can meet, by who can act on it.

    TreadleError
    ├── UserError                what was asked cannot be done as asked
    │   ├── InvalidId            a name or id with a character it may not hold
    │   ├── InvalidDefinition    a workflow definition with problems, all of them listed
    │   ├── InvalidPayload       a value that cannot be encoded, decoded or is too large
    │   ├── UnknownWorkflow      no such workflow is registered
    │   ├── UnknownRun           no such run
    │   ├── UnknownTrigger       no such trigger
    │   ├── UnknownDeadLetter    no such dead letter
    │   ├── RunConflict          the run exists, but was started with something else
    │   └── HandlerError         a handler used its context wrongly (two verdicts, none, ...)
    ├── RunFailed                the run ended as failed; carries step, iteration, cause
    ├── RunCancelled             the run ended as cancelled
    ├── ServerError              NATS cannot be used as it is; an operator can act
    │   ├── ServerUnavailable    it cannot be reached, or did not answer within the budget
    │   └── ServerUnsuitable     too old, without JetStream, not set up
    ├── StoredUnreadable         a stored value is damaged or was deleted; an operator can act
    └── InvariantError           a bug of Treadle; please report it

Handlers raise two more: ``NonRetryable`` ends the step at once, ``Retryable`` names the least
delay before the next attempt. Any other exception follows the step's retry policy.

Texts say what happened with its values, why, and what to do next. Attributes carry the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.sdk.messages import Failure


def sentence(text: str) -> str:
    """Return the text with one full stop at its end, whatever a user's message ends with."""
    text = text.rstrip()
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def clause(text: object) -> str:
    """Return a text without the full stop at its end, to put it before one, or to go on after it.

    What exceptions and people say is a sentence now and a phrase then.
    """
    said = str(text).rstrip()
    return said[:-1] if said.endswith(".") and not said.endswith("..") else said


VALUE_CHARS_MAX = 200
"""Of a value in a text: enough to recognise it."""


def _shortened(value: object) -> str:
    text = repr(value)
    if len(text) <= VALUE_CHARS_MAX:
        return text
    return f"{text[:VALUE_CHARS_MAX]}… ({len(text)} characters)"


class TreadleError(Exception):
    """Base of all errors of this package."""


class UserError(TreadleError):
    """What was asked cannot be done as asked."""


class InvalidId(UserError):
    """A name or id with a character it may not hold."""

    def __init__(self, field: str, value: object) -> None:
        self.field = field
        self.value = value
        super().__init__(
            f"{field} {_shortened(value)} is not a valid id: 1 to 64 of the characters "
            "A-Z a-z 0-9 _ - are allowed, the first of them not -, because ids become parts of "
            f"NATS subjects and arguments of commands. Choose another {field}."
        )


class Problem:
    """One fault of a definition: where it is, and what to do."""

    __slots__ = ("path", "text")

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text

    def __repr__(self) -> str:
        return f"{self.path}: {self.text}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and (self.path, self.text) == (other.path, other.text)

    def __hash__(self) -> int:
        return hash((self.path, self.text))


def _named(path: str, ids: Mapping[int, str]) -> str:
    """Return which step a path is in: positions are hard to count, ids are what people know."""
    begins = path.removeprefix("steps[").partition("]")[0]
    index = int(begins) if path.startswith("steps[") and begins.isdecimal() else -1
    return f" (step {_shortened(ids[index])})" if index in ids else ""


class InvalidDefinition(UserError):
    """A workflow definition with problems, all of them listed."""

    def __init__(
        self, workflow: str, problems: Sequence[Problem], ids: Mapping[int, str] | None = None
    ) -> None:
        """``ids`` are those of the steps by their place, as far as they are known."""
        self.workflow = workflow
        self.problems = tuple(problems)
        lines = "\n".join(
            f"  {problem.path}{_named(problem.path, ids or {})}: {problem.text}"
            for problem in problems
        )
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__(f"workflow {workflow!r} has {count}:\n{lines}")


class InvalidPayload(UserError):
    """A value that cannot be encoded or decoded, or that is too large."""

    def __init__(self, what: str, why: str, remedy: str) -> None:
        self.what = what
        self.why = why
        super().__init__(f"{what}: {sentence(why)} {sentence(remedy)}")


class UnknownWorkflow(UserError):
    """No such workflow is registered."""

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        self.name = name
        have = ", ".join(repr(k) for k in known) if known else "none"
        super().__init__(
            f"workflow {name!r} is not registered (registered: {have}). Register it: "
            f"`treadle workflow register FILE`, or run its worker, which registers what it imports."
        )


class UnknownRun(UserError):
    """No such run."""

    def __init__(self, run: str, hint: str = "") -> None:
        self.run = run
        next_step = hint or "List runs: `treadle run list`."
        super().__init__(f"run {run!r} does not exist. {next_step}")


class UnknownTrigger(UserError):
    """No such trigger."""

    def __init__(self, name: str, nearest: str = "") -> None:
        self.name = name
        meant = f"Did you mean {nearest!r}? " if nearest else ""
        super().__init__(
            f"trigger {name!r} does not exist: none of that name was created, or it was deleted. "
            f"{meant}List triggers: `treadle trigger list`."
        )


class UnknownDeadLetter(UserError):
    """No such dead letter."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(
            f"dead letter {number} does not exist: there was none, or it is older than they are "
            "kept. List them: `treadle dead list`."
        )


class RunConflict(UserError):
    """The run is not in a state that allows what was asked, or was started with something else."""

    def __init__(self, run: str, why: str, remedy: str) -> None:
        self.run = run
        self.why = why
        super().__init__(f"run {run!r} {sentence(why)} {sentence(remedy)}")


class HandlerError(UserError):
    """A handler used its context wrongly."""


class RunFailed(TreadleError):
    """The run ended as failed; ``iteration``, from 0, is that of an agent loop which failed it."""

    def __init__(
        self, run: str, step: str, iteration: int | None, failure: Failure, hint: str = ""
    ) -> None:
        self.run = run
        self.step = step
        self.iteration = iteration
        self.failure = failure
        where = f"step {step!r}" if step else "the run itself"
        if step and iteration is not None:
            where = f"{where}, iteration {iteration}"
        next_step = hint or f"See it: `treadle run show {run}`."
        super().__init__(f"run {run!r} failed at {where}: {sentence(str(failure))} {next_step}")


class RunCancelled(TreadleError):
    """The run ended as cancelled."""

    def __init__(self, run: str, reason: str = "") -> None:
        self.run = run
        self.reason = reason
        super().__init__(sentence(f"run {run!r} was cancelled{': ' + reason if reason else ''}"))


class ServerError(TreadleError):
    """NATS cannot be used as it is."""


class ServerUnavailable(ServerError):
    """NATS cannot be reached, or did not answer within the budget."""


class ServerUnsuitable(ServerError):
    """The server is too old, lacks JetStream, or the namespace is not set up."""


class StoredUnreadable(TreadleError):
    """A stored value that is needed cannot be read: something else has written or deleted it."""

    def __init__(
        self, bucket: str, key: str, run: str, revision: int, why: str, *, written_ms: int = 0
    ) -> None:
        self.bucket = bucket
        self.key = key
        self.run = run
        """The run it belongs to; '' if to none."""
        self.revision = revision
        """Sequence of the message in its stream; 0 if there is none."""
        self.is_deleted = not why
        self.written_ms = written_ms
        where = f"bucket {bucket!r}, key {key!r}" if bucket else f"subject {key!r}"
        at = f"{where}, revision {revision}" if revision else where
        if self.is_deleted:
            what = f"{at}: the value is gone. Something other than Treadle has deleted it."
        else:
            what = (
                f"{at}: the stored value cannot be read: {sentence(why)} Something other than "
                "Treadle, or a newer version of it, has written it."
            )
        steps = ["put the value back"]
        if bucket and not self.is_deleted:
            steps.append(f"remove it (`nats kv del {bucket} {key}`)")
        if run:
            steps.append(f"end the run (`treadle run cancel {run}`)")
        remedy = f"{', '.join(steps[:-1])} or {steps[-1]}" if len(steps) > 1 else steps[0]
        super().__init__(f"{what} {remedy[0].upper()}{remedy[1:]}.")


class InvariantError(TreadleError):
    """A bug of Treadle."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{clause(text)}. This is a bug of Treadle; please report it.")


class NonRetryable(Exception):
    """Raised in a handler: the step fails at once, whatever its retry policy."""


class Retryable(Exception):
    """Raised in a handler: try again, not before ``after_s`` seconds."""

    def __init__(self, message: str = "", *, after_s: float = 0) -> None:
        self.after_s = after_s
        super().__init__(message)
