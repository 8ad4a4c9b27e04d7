"""What planners have planned: outputs into steps, and a definition extended by them. Pure.

    {"steps": [the steps as YAML has them], "inputs": {"<step>": value}}
        └─ refused, with every problem and its path
        └─ Planned: the steps with ``<planner>--`` before their ids, the first wait for the planner

The plan of a planner is the output of its ended register, which never changes. So whoever reads a
run comes to the same steps: a function of the definition and of those outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import msgspec

from treadle.sdk import wording
from treadle.sdk.definition import (
    PlannerStep,
    Step,
    SubWorkflowStep,
    TypedStep,
    WorkflowDefinition,
)
from treadle.sdk.errors import InvalidDefinition, Problem, clause
from treadle.sdk.identifier import ID_CHARS_MAX
from treadle.sdk.limits import PLANNED_INPUT_BYTES_MAX
from treadle.sdk.messages import Failure, Settled, StepCompleted, StepFailed
from treadle.sdk.outcome import ends_of
from treadle.sdk.planners import SEPARATOR
from treadle.sdk.structure import Structure
from treadle.sdk.validation import definition_from

INVALID_PLAN = "invalid_plan"
"""Failure type of an attempt whose plan was refused."""

PROBLEMS_CHARS_MAX = 4_000
"""Of the problems of one plan that are told: the failure stands in registers and documents."""

_FIELDS = ("steps", "inputs")


class Planned(NamedTuple):
    """The plan of one planner, as it stands in a run."""

    steps: tuple[Step, ...]
    names: Mapping[str, str]
    """By the id that a step has in the run: the one that it has in the plan."""
    entries: frozenset[str]
    """Steps that wait for the planner and for nothing else."""
    last: tuple[str, ...]
    """Steps that no other step of the plan waits for: their outputs are the plan's result."""
    handlers: tuple[str, ...]
    """Steps that handle a failure and that no other waits for: part of the result if they ran."""
    fatal: frozenset[str]
    """Steps whose failure is one of the plan, because nothing in it handles it."""
    inputs: Mapping[str, bytes]
    """What the plan gives a step, as JSON."""


class Extended(NamedTuple):
    """A definition with the plans of its planners, as far as they have planned."""

    definition: WorkflowDefinition
    plans: Mapping[str, Planned]
    """By the planner's id."""


# ---------------------------------------------------------------- reading a plan


def judged(step: Step | None, event: Settled) -> Settled:
    """Return a verdict for what it is: a planner that completes with an unsound plan has failed."""
    if not isinstance(step, PlannerStep) or not isinstance(event, StepCompleted):
        return event
    problems = problems_of_plan(step, bytes(event.output))
    if not problems:
        return event
    names = [name for name in StepFailed.__struct_fields__ if name != "failure"]
    shared = {name: getattr(event, name) for name in names}
    return StepFailed(**shared, failure=_failure(problems))


def problems_of_plan(planner: PlannerStep, output: bytes) -> tuple[Problem, ...]:
    """Return everything that is wrong with a planner's output; nothing if it is a plan."""
    problems: list[Problem] = []
    fields = _fields(output, problems)
    plain = {"name": "plan", "steps": fields.get("steps")}
    steps = Structure().definition(plain).steps
    if plain["steps"] != []:  # Nothing to do is a plan too.
        try:
            definition_from(plain)
        except InvalidDefinition as exc:
            problems += exc.problems
    told = {problem.path for problem in problems}
    problems += [each for each in _bounds(planner, steps, told) if each.path not in told]
    _inputs(fields.get("inputs", {}), steps, problems)
    return tuple(sorted(problems, key=lambda problem: wording.order(problem.path)))


def planned(planner: PlannerStep, output: bytes) -> Planned:
    """Return what a planner has planned, as it was accepted once: nothing is refused here."""
    fields = _fields(output, [])
    steps = Structure().definition({"name": "plan", "steps": fields.get("steps", ())}).steps
    inputs = _inputs(fields.get("inputs", {}), steps, [])

    def named(step_id: str) -> str:
        return f"{planner.id}{SEPARATOR}{step_id}" if step_id else ""

    entries = {step.id for step in steps if not step.after} - _apart(steps)
    last, handlers = ends_of(steps)
    return Planned(
        steps=tuple(
            msgspec.structs.replace(
                _within(planner, step),
                id=named(step.id),
                after=(planner.id,) if step.id in entries else tuple(map(named, step.after)),
                on_failure=named(step.on_failure),
                compensate=named(step.compensate),
            )
            for step in steps
        ),
        names={named(step.id): step.id for step in steps},
        entries=frozenset(map(named, entries)),
        last=tuple(named(step.id) for step in last),
        handlers=tuple(named(step.id) for step in handlers),
        fatal=frozenset(named(step.id) for step in steps if _is_fatal(step, steps)),
        inputs={named(step_id): value for step_id, value in inputs.items()},
    )


def extended(definition: WorkflowDefinition, outputs: Mapping[str, bytes]) -> Extended:
    """Return the definition with these plans, by planner; those of unknown planners count nothing.

    They are outputs of planners that have completed, so they were accepted once.
    """
    plans: dict[str, Planned] = {}

    def steps_of(steps: Sequence[Step]) -> Iterator[Step]:
        for step in steps:
            yield step
            if isinstance(step, PlannerStep) and step.id in outputs:
                plan = plans[step.id] = planned(step, outputs[step.id])
                yield from steps_of(plan.steps)

    steps = tuple(steps_of(definition.steps))
    if plans:
        definition = msgspec.structs.replace(definition, steps=steps)
    return Extended(definition, plans)


def own_of(definition: WorkflowDefinition, plans: Mapping[str, Planned]) -> WorkflowDefinition:
    """Return the definition without what was planned."""
    if not plans:
        return definition
    added = {step_id for plan in plans.values() for step_id in plan.names}
    own = tuple(step for step in definition.steps if step.id not in added)
    return msgspec.structs.replace(definition, steps=own)


# ---------------------------------------------------------------- leaves


def _fields(output: bytes, problems: list[Problem]) -> dict[str, object]:
    try:
        plain: object = msgspec.json.decode(output)
    except (ValueError, RecursionError) as exc:
        problems.append(Problem("plan", f"it cannot be read: {clause(exc)}. Return an object."))
        return {"steps": []}
    if not isinstance(plain, dict):
        problems.append(
            Problem(
                "plan",
                f"expected an object with the field steps, got {wording.shown(plain)}. "
                'Return {"steps": [...]}.',
            )
        )
        return {"steps": []}
    fields = cast("dict[str, object]", plain)
    for name in fields:
        if name not in _FIELDS:
            known = ", ".join(_FIELDS)
            text = f"there is no such field in a plan. Known are: {known}."
            problems.append(Problem(_key(name), text))
    return fields


def _bounds(
    planner: PlannerStep, steps: Sequence[Step], told: Collection[str]
) -> Iterator[Problem]:
    count = sum(1 + (step.max_steps if isinstance(step, PlannerStep) else 0) for step in steps)
    if count > planner.max_steps:
        yield Problem(
            "steps",
            f"the plan has {count} steps, those that its planners may add included, and the "
            f"planner may add {planner.max_steps}. Plan fewer.",
        )
    for i, step in enumerate(steps):
        path = wording.item("steps", i)
        size = len(planner.id) + len(SEPARATOR) + len(step.id)
        if size > ID_CHARS_MAX:
            yield Problem(
                wording.field(path, "id"),
                f"the id {wording.shown(step.id)} has {size} characters with the planner's before "
                f"it, and {ID_CHARS_MAX} are allowed. Shorten it.",
            )
        unread = (path, wording.field(path, "kind"), wording.field(path, "type"))
        if not any(each in told for each in unread):  # Else something harmless stands in for it.
            yield from _types(planner, step, path)


def _types(planner: PlannerStep, step: Step, path: str) -> Iterator[Problem]:
    allowed = planner.allowed_tasks
    named = [(wording.field(path, "type"), getattr(step, "type", ""))]
    if isinstance(step, PlannerStep):
        where = wording.field(path, "allowed_tasks")
        named += [(wording.item(where, j), name) for j, name in enumerate(step.allowed_tasks)]
        if step.max_depth >= planner.max_depth:
            yield Problem(
                wording.field(path, "max_depth" if planner.max_depth else "kind"),
                f"planners may be planned {planner.max_depth} levels deep here, and this one asks "
                f"for {step.max_depth + 1}. Plan the steps themselves, or lower max_depth.",
            )
    for where, name in named:
        if allowed and name and name not in allowed:
            yield Problem(
                where,
                f"task type {wording.shown(name)} is not one that this planner may use: "
                f"{', '.join(allowed)}. Choose one of them.",
            )


def _inputs(plain: object, steps: Sequence[Step], problems: list[Problem]) -> dict[str, bytes]:
    if not isinstance(plain, dict):
        text = f"expected an object of inputs by step, got {wording.shown(plain)}. Correct it."
        problems.append(Problem("inputs", text))
        return {}
    given = (step.id for step in steps if isinstance(step, TypedStep | SubWorkflowStep))
    works = {*given} - _apart(steps)
    inputs: dict[str, bytes] = {}
    for name, value in cast("dict[str, object]", plain).items():
        path = wording.field("inputs", _key(name))
        inputs[name] = msgspec.json.encode(value)
        if name not in works:
            text = (
                "no step of the plan has this id that a worker executes, or that starts a run, in "
                "its turn; one that handles a failure, or undoes another step, is given that. "
                "Correct it."
            )
            problems.append(Problem(path, text))
        elif len(inputs[name]) > PLANNED_INPUT_BYTES_MAX:
            problems.append(
                Problem(
                    path,
                    f"it takes {len(inputs[name])} bytes, and {PLANNED_INPUT_BYTES_MAX} are "
                    "allowed, because it travels inside the step's task. Give where to find it.",
                )
            )
    return inputs


def _key(name: str) -> str:
    return wording.key(name) or wording.shown(name)


def _within(planner: PlannerStep, step: Step) -> Step:
    """Return the step under the bounds of the planner that planned it."""
    if isinstance(step, PlannerStep) and not step.allowed_tasks:
        return msgspec.structs.replace(step, allowed_tasks=planner.allowed_tasks)
    return step


def _apart(steps: Sequence[Step]) -> set[str]:
    """Return the steps that handle a failure or undo another one: they wait for nothing else."""
    return {other for step in steps for other in (step.on_failure, step.compensate)}


def _is_fatal(step: Step, steps: Sequence[Step]) -> bool:
    followers = [other for other in steps if step.id in other.after]
    return not step.on_failure and not (followers and all(each.quorum for each in followers))


def _failure(problems: Sequence[Problem]) -> Failure:
    text = "\n".join(f"{problem.path}: {problem.text}" for problem in problems)
    if len(text) > PROBLEMS_CHARS_MAX:
        text = f"{text[:PROBLEMS_CHARS_MAX]}…"
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return Failure(INVALID_PLAN, f"the plan has {count}:\n{text}")
