"""Values that a builder was given, as the plain data of a definition.

What cannot be read is noted as a problem and stands as something harmless, so that ``build``
reports it with the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict, cast

from treadle.sdk import wording
from treadle.sdk.definition import Retry, to_plain
from treadle.sdk.errors import Problem

if TYPE_CHECKING:
    from treadle.sdk.builder import Workflow

Duration = timedelta | float
"""A timedelta, or a number of seconds."""


class StepRef:
    """A step of a workflow under construction: give it to ``after`` of later steps."""

    __slots__ = ("id", "workflow")

    def __init__(self, workflow: Workflow[Any], id: str) -> None:
        self.workflow = workflow
        self.id = id

    def __repr__(self) -> str:
        return f"<step {self.id!r} of workflow {self.workflow.name!r}>"


After = StepRef | str | Iterable[StepRef | str]
"""What a step waits for: steps of the same workflow, or their ids."""


class Turn(TypedDict, total=False):
    """When it is a step's turn, and what follows its failure: docs/control-flow.md."""

    after: After
    """Steps that must have completed before this one starts."""
    quorum: int
    """How many of them have to complete; 0 is all."""
    when: str
    """Condition, asked when it is the step's turn; false skips it."""
    on_failure: StepRef | str
    """Step that starts if this one fails for good."""
    compensate: StepRef | str
    """Step that undoes this one if the run does not complete."""


class Parts:
    """Reads what the methods of one workflow's builder were given; ``problems`` holds the rest."""

    def __init__(self, workflow: Workflow[Any]) -> None:
        self._workflow = workflow
        self.problems: list[Problem] = []

    def turn(self, path: str, turn: Turn) -> dict[str, object]:
        """Return the fields that say when it is a step's turn, and what follows a failure."""
        if unknown := sorted(turn.keys() - Turn.__annotations__.keys()):
            raise TypeError(f"a step got an unexpected keyword argument {unknown[0]!r}")
        others = {"on_failure": turn.get("on_failure"), "compensate": turn.get("compensate")}
        named = {
            field: self._named(wording.field(path, field), other, "Name a step") if other else ""
            for field, other in others.items()
        }
        return {
            "after": self._after(path, turn.get("after", ())),
            "quorum": turn.get("quorum", 0),
            "when": turn.get("when", ""),
            **named,
        }

    def seconds(self, path: str, value: object) -> object:
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
        self.problems.append(
            Problem(
                path,
                f"{wording.shown(value)} is not a duration. Give a timedelta, for example "
                "timedelta(minutes=5), or a number of seconds.",
            )
        )
        return 0

    def retry(self, path: str, value: object) -> object:
        if value is None:
            return {}
        if isinstance(value, Retry):
            return to_plain(value)
        self.problems.append(
            Problem(
                wording.field(path, "retry"),
                f"{wording.shown(value)} is not a retry policy. Give one, for example "
                "Retry(max_attempts=5).",
            )
        )
        return {}

    def _after(self, path: str, after: object) -> list[object]:
        path = wording.field(path, "after")
        if isinstance(after, (str, StepRef)):
            return [self._named(wording.item(path, 0), after, "Wait for a step")]
        if not isinstance(after, Iterable):
            self.problems.append(
                Problem(
                    path,
                    f"{wording.shown(after)} is not a list of steps. Give steps of this workflow, "
                    "or their ids.",
                )
            )
            return []
        items = enumerate(cast("Iterable[object]", after))
        return [self._named(wording.item(path, i), item, "Wait for a step") for i, item in items]

    def _named(self, path: str, item: object, remedy: str) -> object:
        if not isinstance(item, StepRef):
            return item
        if item.workflow is not self._workflow:
            self.problems.append(
                Problem(
                    path,
                    f"step {wording.shown(item.id)} belongs to workflow "
                    f"{wording.shown(item.workflow.name)}, not to this one. {remedy} "
                    "that was added to this workflow.",
                )
            )
        return item.id
