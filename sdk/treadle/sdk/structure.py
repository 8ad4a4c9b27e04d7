"""Plain data into the types of a definition: every structural fault at once, with its path.

Builder, YAML and JSON all pass through here, so they accept and refuse the same. What cannot be
read is reported and stands in the draft as something harmless, so that ``validation.py`` can
still judge the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, cast, get_args, get_origin

import msgspec
import msgspec.structs

from treadle.sdk import wording
from treadle.sdk.collecting import Batch, Collect, Debounce
from treadle.sdk.definition import (
    AgentLoopStep,
    ApprovalStep,
    Branch,
    ChoiceStep,
    EventStep,
    MapStep,
    PlannerStep,
    RespondStep,
    Retry,
    SignalStep,
    SleepStep,
    Step,
    SubWorkflowStep,
    TaskStep,
    WorkflowDefinition,
)
from treadle.sdk.errors import Problem
from treadle.sdk.flow import Concurrency, RateLimit
from treadle.sdk.limits import STEPS_MAX
from treadle.sdk.wording import Suggestions

STEP_KINDS: dict[str, type[Step]] = {
    "task": TaskStep,
    "planner": PlannerStep,
    "agent_loop": AgentLoopStep,
    "signal": SignalStep,
    "event": EventStep,
    "sleep": SleepStep,
    "approval": ApprovalStep,
    "choice": ChoiceStep,
    "respond": RespondStep,
    "map": MapStep,
    "sub_workflow": SubWorkflowStep,
}

#: Why a field is required, and what to do.
_MISSING = {
    "name": "the name identifies the workflow. Give it one",
    "steps": "a workflow is made of steps. Give it a list of them",
    "id": "the id identifies a step in its workflow. Give the step one",
    "type": "workers register their handlers under the task type. Give the step one",
    "signal": "the step completes when a signal of this name arrives. Name the signal",
    "event": "the step completes when an event of this name is published. Name the event",
    "limit": "it says how many there may be. Set it, for example to 10",
    "per_s": "a rate is so many in a period. Give its seconds, for example 60",
    "period_s": "the run begins when no start came for so long. Give its seconds, for example 30",
    "max_wait_s": "the first start waits at most so long. Give its seconds, for example 300",
    "max_size": "the run begins when so many starts have come. Set it, for example to 100",
    "workflow": "the step starts a run of this workflow. Name it",
    "max_iterations": "an agent loop must have a bound greater than 0, because a handler that "
    "never completes would iterate for ever. Set it, for example to 10",
    "branches": "a choice takes the first branch whose condition holds. Give it a list of them",
    "when": "the branch is taken if its condition holds. Give it one",
    "default": "it is the branch that is taken if no condition holds. Name it",
}
_STAND_INS: dict[str, object] = {
    **{"type": "_", "signal": "_", "event": "_", "max_iterations": 1, "name": "_", "when": "true"},
    **{"branches": (), "default": "_", "workflow": "_"},
}
COLLECT_KINDS: dict[str, type[Collect]] = {"debounce": Debounce, "batch": Batch}
#: Of what is collected: what stands for a field that cannot be read.
_COLLECTED: dict[str, object] = {"period_s": 1.0, "max_wait_s": 1.0, "max_size": 1}
#: Other words for the kinds of steps: those of the builder, and of neighbouring tools.
_ALSO_CALLED = {
    **dict.fromkeys(("wait_for_signal", "wait"), "signal"),
    **dict.fromkeys(("wait_for_event", "on_event", "message"), "event"),
    **dict.fromkeys(("approve", "human", "review", "manual"), "approval"),
    **dict.fromkeys(("switch", "branch", "route", "if"), "choice"),
    **dict.fromkeys(("response", "reply", "return"), "respond"),
    **dict.fromkeys(("agent", "loop"), "agent_loop"),
    **dict.fromkeys(("plan", "dynamic"), "planner"),
    **dict.fromkeys(("timer", "delay", "sleep_until"), "sleep"),
    **dict.fromkeys(("foreach", "for_each", "fanout", "fan_out"), "map"),
    **dict.fromkeys(
        ("child_workflow", "subworkflow", "workflow", "invoke", "child"), "sub_workflow"
    ),
    **dict.fromkeys(("step", "activity", "job", "function"), "task"),
}
_NAMES_OF_A_SIGNAL = frozenset({"name", "type", "event"})
_EXPECTED: dict[object, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
_PARTS: dict[object, type[Concurrency] | type[RateLimit]] = {
    tuple[Concurrency, ...]: Concurrency,
    tuple[RateLimit, ...]: RateLimit,
}
_UNREADABLE = object()


class Structure:
    """Reads one definition and collects its problems."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._suggestions = Suggestions()

    def definition(self, plain: object) -> WorkflowDefinition:
        """Return the definition as far as it can be read; ``problems`` holds the rest."""
        if not isinstance(plain, Mapping):
            self._expect("", "the fields of a workflow", plain)
            return WorkflowDefinition(name="", steps=())
        values = self._fields(
            cast("Mapping[object, object]", plain),
            WorkflowDefinition,
            "",
            {"name": "", "steps": ()},
        )
        return WorkflowDefinition(**values)

    # ---------------------------------------------------------------- structs

    def _fields(
        self,
        plain: Mapping[object, object],
        cls: type[msgspec.Struct],
        path: str,
        stand_ins: Mapping[str, object],
    ) -> dict[str, Any]:
        known = _fields_of(cls)
        tag_field = cls.__struct_config__.tag_field
        for key in plain:
            if key not in known and key != tag_field:
                self._unknown_field(path, key, known)
        values: dict[str, Any] = {}
        for name, info in known.items():
            where = wording.field(path, name)
            value = _UNREADABLE
            if name in plain:
                value = self._value(plain[name], info.type, where)
            elif info.required:
                self._report(where, f"{name} is required: {_MISSING[name]}.")
            if value is not _UNREADABLE:
                values[name] = value
            elif info.required:
                values[name] = stand_ins[name]
        return values

    def _steps(self, value: object, path: str) -> object:
        items = self._items(value, path, "a list of steps")
        if items is None:
            return _UNREADABLE
        if len(items) > STEPS_MAX:
            self._report(
                path,
                f"the workflow has {len(items)} steps, and {STEPS_MAX} are allowed, because every "
                "transition reads and writes an entry for each. Split the workflow, or let one "
                "step work through a list.",
            )
            return _UNREADABLE
        return tuple(self._step(step, wording.item(path, i)) for i, step in enumerate(items))

    def _step(self, plain: object, path: str) -> Step:
        stand_ins = {**_STAND_INS, "id": path}
        if not isinstance(plain, Mapping):
            self._expect(path, "the fields of a step", plain)
            return TaskStep(id=path, type="_")
        fields = cast("Mapping[object, object]", plain)
        kind = fields.get("kind")
        cls = STEP_KINDS.get(kind) if isinstance(kind, str) else None
        if cls is not None:
            return cls(**self._fields(fields, cls, path, stand_ins))
        self._one_of(wording.field(path, "kind"), kind, STEP_KINDS, "kind" in fields)
        # The id is still read, so that steps which wait for this one are not blamed.
        step_id = fields.get("id")
        return TaskStep(id=step_id if isinstance(step_id, str) else path, type="_")

    def _branches(self, value: object, path: str) -> object:
        items = self._items(value, path, "a list of branches")
        if items is None:
            return _UNREADABLE
        return tuple(self._branch(item, wording.item(path, i)) for i, item in enumerate(items))

    def _branch(self, plain: object, path: str) -> Branch:
        if not isinstance(plain, Mapping):
            self._expect(path, "the fields of a branch", plain)
            plain = {"name": path, "when": "true"}
        fields = cast("Mapping[object, object]", plain)
        return Branch(**self._fields(fields, Branch, path, _STAND_INS))

    def _collect(self, plain: object, path: str) -> object:
        if plain is None:
            return None
        if not isinstance(plain, Mapping):
            return self._expect(path, "how starts are collected, with its kind", plain)
        fields = cast("Mapping[object, object]", plain)
        kind = fields.get("kind")
        cls = COLLECT_KINDS.get(kind) if isinstance(kind, str) else None
        if cls is None:
            where = wording.field(path, "kind")
            return self._one_of(where, kind, COLLECT_KINDS, "kind" in fields)
        return cls(**self._fields(fields, cls, path, _COLLECTED))

    # ---------------------------------------------------------------- values

    def _value(self, value: object, kind: object, path: str) -> object:
        """Return the value as its field has it, or ``_UNREADABLE`` after reporting why."""
        if kind is Retry:
            if not isinstance(value, Mapping):
                return self._expect(path, "the fields of a retry policy", value)
            return Retry(**self._fields(cast("Mapping[object, object]", value), Retry, path, {}))
        if kind == tuple[str, ...]:
            return self._texts(value, path)
        if kind == dict[str, str]:
            return self._texts_by_name(value, path)
        if kind == tuple[Branch, ...]:
            return self._branches(value, path)
        if kind == Collect | None:
            return self._collect(value, path)
        if kind in _PARTS:
            return self._parts(value, _PARTS[kind], path)
        if kind == dict[str, float]:
            return self._numbers(value, path)
        if get_origin(kind) is tuple:
            return self._steps(value, path)
        if get_origin(kind) is Literal:
            options = get_args(kind)
            if isinstance(value, str) and value in options:
                return value
            return self._one_of(path, value, options, True)
        if kind in _EXPECTED:
            return self._scalar(value, kind, path)
        if value is None or isinstance(value, dict):  # A schema, the one kind left
            return cast("object", value)
        return self._expect(path, "a JSON schema, an object", value)

    def _scalar(self, value: object, kind: object, path: str) -> object:
        try:
            return cast("object", msgspec.convert(value, kind, strict=True))
        except msgspec.ValidationError:
            return self._expect(path, _EXPECTED[kind], value)

    def _parts(self, value: object, cls: type[Concurrency] | type[RateLimit], path: str) -> object:
        items = self._items(value, path, "a list of limits")
        if items is None:
            return _UNREADABLE
        parts: list[Concurrency | RateLimit] = []
        for i, item in enumerate(items):
            where = wording.item(path, i)
            if not isinstance(item, Mapping):
                self._expect(where, "the fields of a limit", item)
                continue
            fields = cast("Mapping[object, object]", item)
            parts.append(cls(**self._fields(fields, cls, where, {"limit": 1, "per_s": 1.0})))
        return tuple(parts)

    def _numbers(self, value: object, path: str) -> object:
        if not isinstance(value, Mapping):
            return self._expect(path, "numbers by name", value)
        numbers: dict[str, float] = {}
        for key, item in cast("Mapping[object, object]", value).items():
            where = wording.field(path, wording.key(key))
            if not isinstance(key, str):
                self._expect(where, "a name", key)
                continue
            number = self._scalar(item, float, where)
            if isinstance(number, float):
                numbers[key] = number
        return numbers

    def _texts(self, value: object, path: str) -> object:
        items = self._items(value, path, "a list of names")
        if items is None:
            return _UNREADABLE
        for i, entry in enumerate(items):
            if not isinstance(entry, str):
                self._expect(wording.item(path, i), "a name", entry)
        # The place of an unreadable entry is kept: the paths of the others count it.
        return tuple(entry if isinstance(entry, str) else "" for entry in items)

    def _texts_by_name(self, value: object, path: str) -> object:
        if not isinstance(value, Mapping):
            return self._expect(path, "texts by name", value)
        texts: dict[str, str] = {}
        for name, text in cast("Mapping[object, object]", value).items():
            where = wording.field(path, wording.key(name))
            if not isinstance(name, str):
                self._expect(where, "a name", name)
            elif not isinstance(text, str):
                self._expect(where, "text", text)
            else:
                texts[name] = text
        return texts

    def _items(self, value: object, path: str, expected: str) -> Sequence[object] | None:
        if isinstance(value, (list, tuple)):
            return cast("Sequence[object]", value)
        self._expect(path, expected, value)
        return None

    # ---------------------------------------------------------------- problems

    def _report(self, path: str, text: str) -> object:
        self.problems.append(Problem(path, text))
        return _UNREADABLE

    def _expect(self, path: str, expected: str, value: object) -> object:
        got = "nothing" if value is None else f"{wording.shown(value)} ({type(value).__name__})"
        unquoted = expected in ("text", "a name") and isinstance(value, (int, float))
        remedy = "Put it in quotes" if unquoted else "Correct it"
        return self._report(path, f"expected {expected}, got {got}. {remedy}.")

    def _one_of(self, path: str, value: object, options: Any, given: bool) -> object:
        names = ", ".join(options)
        if not given:
            return self._report(path, f"it is required. Set it to one of {names}.")
        meant = _ALSO_CALLED.get(value.lower(), "") if isinstance(value, str) else ""
        nearest = meant if meant in options else self._suggestions.nearest(value, options)
        remedy = f"Did you mean {nearest!r}?" if nearest else "Choose one of them."
        return self._report(path, f"{wording.shown(value)} is none of {names}. {remedy}")

    def _unknown_field(self, path: str, key: object, known: Mapping[str, object]) -> None:
        is_signal = "signal" in known and key in _NAMES_OF_A_SIGNAL
        nearest = "signal" if is_signal else self._suggestions.nearest(key, known)
        remedy = f"Did you mean {nearest!r}?" if nearest else f"Known are: {', '.join(known)}."
        self._report(
            wording.field(path, wording.key(key)), f"there is no such field here. {remedy}"
        )


@cache
def _fields_of(cls: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {info.name: info for info in msgspec.structs.fields(cls)}
