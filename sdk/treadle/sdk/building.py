"""Values that a builder was given, as the plain data of a definition.

What cannot be read is noted as a problem and stands as something harmless, so that ``build``
reports it with the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict, cast

import msgspec

from treadle.sdk import wording
from treadle.sdk.collecting import Batch, Debounce
from treadle.sdk.definition import Retry, to_plain
from treadle.sdk.errors import InvalidPayload, Problem
from treadle.sdk.flow import Concurrency, RateLimit
from treadle.sdk.payload import json_schema

if TYPE_CHECKING:
    from treadle.sdk.builder import Workflow

Declared = type[Any] | dict[str, Any] | None
"""What a value is declared to be: a type, a JSON schema, or nothing."""
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


class BranchRef(StepRef):
    """A branch of a choice: what waits for it starts only if the choice takes that branch."""

    __slots__ = ("branch",)

    def __init__(self, workflow: Workflow[Any], id: str, branch: str) -> None:
        super().__init__(workflow, id)
        self.branch = branch

    def __repr__(self) -> str:
        return f"<branch {self.branch!r} of choice {self.id!r}>"


class ChoiceRef(StepRef):
    """A choice of a workflow under construction; ``choice["name"]`` is one of its branches."""

    __slots__ = ()

    def __getitem__(self, branch: str) -> BranchRef:
        return BranchRef(self.workflow, self.id, branch)


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


class Dispatch(Turn, total=False):
    """The same, and what every dispatch of the step is subject to: docs/flow-control.md."""

    concurrency: Concurrency | int | Iterable[Concurrency]
    """How many executions there are at a time; a number is a limit of this step alone."""
    rate_limits: RateLimit | Iterable[RateLimit]
    """How many executions begin in a while."""
    priority: int | str
    """Who comes first of those that wait: -100 to 100, or an expression."""
    fair_by: str
    """Those that wait take turns by the value of this expression."""
    weights: Mapping[str, float]
    """By that value: how many turns it has when another has one."""
    metadata: Mapping[str, str]
    """Texts by name that its handler reads as ``ctx.step_metadata``."""


class Parts:
    """Reads what the methods of one workflow's builder were given; ``problems`` holds the rest."""

    def __init__(self, workflow: Workflow[Any]) -> None:
        self._workflow = workflow
        self.problems: list[Problem] = []

    def turn(self, path: str, turn: Turn) -> dict[str, object]:
        """Return the fields that say when it is a step's turn, and what follows a failure."""
        return self._turn(path, turn, Turn.__annotations__)

    def dispatch(self, path: str, options: Dispatch) -> dict[str, object]:
        """Return those fields, and the limits of a step that workers execute."""
        priority = options.get("priority", "")
        concurrency = options.get("concurrency", ())
        if isinstance(concurrency, int):
            concurrency = Concurrency(concurrency)
        return {
            **self._turn(path, options, Dispatch.__annotations__),
            "concurrency": self._limits(path, "concurrency", Concurrency, concurrency),
            "rate_limits": self._limits(
                path, "rate_limits", RateLimit, options.get("rate_limits", ())
            ),
            "priority": str(priority) if isinstance(priority, int) else priority,
            "fair_by": options.get("fair_by", ""),
            "weights": dict(options.get("weights", {})),
            "metadata": dict(options.get("metadata", {})),
        }

    def _limits(
        self, path: str, field: str, cls: type[Concurrency] | type[RateLimit], given: object
    ) -> list[object]:
        if isinstance(given, cls):
            return [to_plain(given)]
        items = cast("Iterable[object]", given) if isinstance(given, Iterable) else (given,)
        plain: list[object] = []
        for i, item in enumerate(items):
            if isinstance(item, cls):
                plain.append(to_plain(item))
                continue
            where = wording.item(wording.field(path, field), i)
            self.problems.append(
                Problem(where, f"{wording.shown(item)} is not a {cls.__name__}. Give one.")
            )
            plain.append({"limit": 1, "per_s": 1} if cls is RateLimit else {"limit": 1})
        return plain

    def _turn(self, path: str, turn: Turn, known: Mapping[str, object]) -> dict[str, object]:
        if unknown := sorted(turn.keys() - known.keys()):
            raise TypeError(f"a step got an unexpected keyword argument {unknown[0]!r}")
        after = turn.get("after", ())
        if isinstance(after, Iterable) and not isinstance(after, str):
            after = list(after)  # It is looked at twice, and may be an iterator.
        others = {"on_failure": turn.get("on_failure"), "compensate": turn.get("compensate")}
        named = {
            field: self._named(wording.field(path, field), other, "Name a step") if other else ""
            for field, other in others.items()
        }
        return {
            "after": self._after(path, after),
            "quorum": turn.get("quorum", 0),
            "when": _when(after, turn.get("when", "")),
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

    def schema(self, path: str, declared: object) -> object:
        """Return the JSON schema of a type, or the one that was given."""
        if declared is None or isinstance(declared, dict):
            return cast("object", declared)
        try:
            return json_schema(declared)
        except InvalidPayload as exc:
            self.problems.append(Problem(path, str(exc)))
            return None

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

    def collect(self, value: object) -> object:
        """Return how starts are collected as plain data, None if they are not."""
        if isinstance(value, Debounce | Batch):
            return to_plain(value)
        if value is not None:
            self.problems.append(
                Problem(
                    "collect",
                    f"{wording.shown(value)} does not say how starts are collected. Give a "
                    "Debounce or a Batch, for example Debounce(period_s=30, max_wait_s=300).",
                )
            )
        return None

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
        named = [self._named(wording.item(path, i), item, "Wait for a step") for i, item in items]
        # Two branches of one choice are one step to wait for.
        branches = {item.id for item in _branches(cast("object", after))}
        return [
            name for i, name in enumerate(named) if name not in branches or name not in named[:i]
        ]

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


def _branches(after: object) -> list[BranchRef]:
    items = cast("Iterable[object]", after) if isinstance(after, Iterable) else (after,)
    return [item for item in items if isinstance(item, BranchRef)]


def _when(after: object, when: object) -> object:
    """Return the condition of a step that waits for branches of choices: that they are taken."""
    taken: dict[str, list[str]] = {}
    for branch in _branches(after):
        taken.setdefault(branch.id, []).append(branch.branch)
    parts = [
        f"steps[{_quoted(choice)}] == {_quoted(names[0])}"
        if len(names) == 1
        else f"steps[{_quoted(choice)}] in [{', '.join(map(_quoted, names))}]"
        for choice, names in taken.items()
    ]
    if not parts:
        return when
    return " and ".join([*parts, f"({when})"] if when else parts)


def _quoted(name: str) -> str:
    return msgspec.json.encode(name).decode()
