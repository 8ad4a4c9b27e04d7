"""Is a definition sound? All of its problems at once, each with its path and what to do.

Every way to a definition ends here: the builder and documents hand in plain data
(``definition_from``), the engine and the client what they were given (``problems_of``). The
shape of plain data is read in ``structure.py``, the edges are judged in ``graph.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from treadle.sdk import (
    cancel_on,
    choices,
    collect_check,
    conditions,
    expressions,
    matching,
    responses,
    singletons,
    wording,
)
from treadle.sdk.definition import (
    AgentLoopStep,
    ApprovalStep,
    ChoiceStep,
    EventStep,
    MapStep,
    RespondStep,
    Retry,
    SignalStep,
    SleepStep,
    Step,
    SubWorkflowStep,
    TypedStep,
    WorkflowDefinition,
    WorkStep,
    to_plain,
)
from treadle.sdk.errors import (
    InvalidDefinition,
    InvalidId,
    InvalidPayload,
    Problem,
    UserError,
    clause,
)
from treadle.sdk.flow_check import problems_of_flow
from treadle.sdk.graph import problems_of_edges
from treadle.sdk.identifier import is_id
from treadle.sdk.limits import (
    APPROVERS_MAX,
    DEFINITION_BYTES_MAX,
    NON_RETRYABLE_MAX,
    PROMPT_CHARS_MAX,
    RANGES,
    TEXT_CHARS_MAX,
    WORD_CHARS_MAX,
)
from treadle.sdk.payload import encode
from treadle.sdk.planners import problems_of_planners
from treadle.sdk.rfc3339 import moment_ms
from treadle.sdk.step_metadata import problems_of_metadata
from treadle.sdk.structure import Structure
from treadle.sdk.triggers.times import UTC_NAME, firings_of

NO_IDS: Mapping[int, str] = {}


def definition_from(
    plain: object, *, source: str = "", found: Sequence[Problem] = ()
) -> WorkflowDefinition:
    """Return the definition that plain data describes; raise ``InvalidDefinition``.

    ``found`` are problems the caller knows already; what lies at the same place is not reported
    again. ``source`` stands for the workflow in the error if it has no name.
    """
    structure = Structure()
    definition = structure.definition(plain)
    problems = [*found, *_not_within(found, structure.problems)]
    problems += _not_within(tuple(problems), _meaning(definition))
    if problems:
        raise refused(definition.name or source, problems, _ids(plain))
    return definition


def _ids(plain: object) -> dict[int, str]:
    """Return the ids of steps by their place, as far as they have one."""
    steps = _mapping(plain).get("steps")
    given = cast("Sequence[object]", steps) if isinstance(steps, list | tuple) else ()
    found = ((i, _mapping(step).get("id")) for i, step in enumerate(given))
    return {i: id for i, id in found if isinstance(id, str) and id}


def _mapping(plain: object) -> Mapping[object, object]:
    return cast("Mapping[object, object]", plain) if isinstance(plain, Mapping) else {}


def refused(
    workflow: str, problems: Sequence[Problem], ids: Mapping[int, str] = NO_IDS
) -> InvalidDefinition:
    """Return the error for these problems, in the order in which their places are written.

    ``ids`` are those of the steps by their place, as far as they are known.
    """
    placed = [p if p.path else Problem("definition", p.text) for p in problems]
    return InvalidDefinition(workflow, sorted(placed, key=lambda p: wording.order(p.path)), ids)


def problems_of(definition: WorkflowDefinition) -> tuple[Problem, ...]:
    """Return everything that is wrong with a definition; nothing if it is sound."""
    try:
        definition_from(to_plain(definition))
    except InvalidDefinition as exc:
        return exc.problems
    return ()


def check(definition: WorkflowDefinition) -> WorkflowDefinition:
    """Return the definition if it is sound; raise ``InvalidDefinition`` with all problems."""
    return definition_from(to_plain(definition))


def _not_within(reported: Sequence[Problem], problems: Sequence[Problem]) -> list[Problem]:
    taken = {problem.path for problem in reported}
    return [p for p in problems if taken.isdisjoint(wording.places(p.path))]


def _meaning(definition: WorkflowDefinition) -> list[Problem]:
    problems = [*_workflow(definition)]
    for i, step in enumerate(definition.steps):
        problems += _step(step, wording.item("steps", i))
    problems += _duplicates(definition.steps)
    problems += problems_of_planners(definition)
    problems += problems_of_edges(definition)
    problems += choices.problems_of_names(definition)
    return problems


def _workflow(definition: WorkflowDefinition) -> Iterator[Problem]:
    yield from _id("name", "workflow name", definition.name)
    if not definition.steps:
        yield Problem("steps", "the workflow has no steps, so a run would do nothing. Add one.")
    yield from _ranges(definition, "")
    yield from _text("description", definition.description)
    yield from singletons.problems_of(definition)
    yield from cancel_on.problems_of(definition)
    if definition.collect is not None:
        yield from _ranges(definition.collect, "collect")
        yield from collect_check.problems_of(definition)
    found = [*_schemas(definition, "")]
    for i, step in enumerate(definition.steps):
        if isinstance(step, WorkStep):
            found += _schemas(step, wording.item("steps", i))
    yield from found or _size(definition)


def _schemas(of: WorkflowDefinition | WorkStep, path: str) -> Iterator[Problem]:
    for name in ("input_schema", "output_schema"):
        schema: dict[str, Any] | None = getattr(of, name)
        if schema is None:
            continue
        try:
            encode(name, schema)
        except InvalidPayload as exc:
            yield Problem(wording.field(path, name), str(exc))


def _size(definition: WorkflowDefinition) -> Iterator[Problem]:
    try:
        size_bytes = len(msgspec.json.encode(to_plain(definition)))
    except ValueError:
        return  # Half a character or a number without end, reported where it stands.
    if size_bytes > DEFINITION_BYTES_MAX:
        yield Problem(
            "",
            f"the definition takes {size_bytes} bytes as JSON, and {DEFINITION_BYTES_MAX} are "
            "allowed, because it is stored as one message. Shorten it, or split the workflow.",
        )


def _step(step: Step, path: str) -> Iterator[Problem]:
    yield from _id(wording.field(path, "id"), "step id", step.id)
    yield from _ranges(step, path)
    yield from _turn(step, path)
    match step:
        case SleepStep():
            yield from _sleep(step, path)
        case SignalStep():
            yield from _id(wording.field(path, "signal"), "signal name", step.signal)
        case EventStep():
            yield from _event(step, path)
        case ApprovalStep():
            yield from _approval(step, path)
        case ChoiceStep():
            yield from choices.problems_of(step, path)
        case RespondStep():
            yield from responses.problems_of(step, path)
        case SubWorkflowStep():
            yield from _sub_workflow(step, path)
        case _:
            yield from _work(step, path)


def _work(step: TypedStep, path: str) -> Iterator[Problem]:
    yield from _id(wording.field(path, "type"), "task type", step.type)
    yield from _retry(step.retry, wording.field(path, "retry"))
    if isinstance(step, MapStep):
        yield from _map(step, path)
    yield from problems_of_flow(step, path)
    yield from problems_of_metadata(step.metadata, wording.field(path, "metadata"))
    for field, limits in (("concurrency", step.concurrency), ("rate_limits", step.rate_limits)):
        for i, limit in enumerate(limits):
            yield from _ranges(limit, wording.item(wording.field(path, field), i))
    if isinstance(step, AgentLoopStep) and 0 < step.budget_force_at < step.budget_warn_at:
        yield Problem(
            wording.field(path, "budget_warn_at"),
            f"budget_warn_at {step.budget_warn_at} comes after budget_force_at "
            f"{step.budget_force_at}, so the warning would never be seen. Lower it.",
        )


def _turn(step: Step, path: str) -> Iterator[Problem]:
    """What says when it is the step's turn."""
    if step.quorum > len(step.after):
        yield Problem(
            wording.field(path, "quorum"),
            f"quorum {step.quorum} is more than the {len(step.after)} steps in after, so the step "
            "could never start. Lower it.",
        )
    if step.when:
        yield from _condition(wording.field(path, "when"), step.when, step.after)


def _condition(
    path: str, text: str, after: tuple[str, ...], names: tuple[str, ...] = conditions.OF_STEPS
) -> Iterator[Problem]:
    advice = "Let a step decide it."
    what = "the condition"
    yield from expressions.problems_of(path, text, advice, after=after, names=names, what=what)


def _map(step: MapStep, path: str) -> Iterator[Problem]:
    if step.retry.on_exhausted == "park":
        yield Problem(
            wording.field(wording.field(path, "retry"), "on_exhausted"),
            "a map cannot be parked with one of its items, because the others go on. Set "
            "tolerated_failures, and let a step that follows deal with the items that failed.",
        )
    where = wording.field(path, "over")
    if len(step.over) > WORD_CHARS_MAX:
        yield Problem(
            where,
            f"the key has {len(step.over)} characters, and {WORD_CHARS_MAX} are allowed. "
            "Shorten it.",
        )
    elif wording.is_cut(step.over):
        yield Problem(where, wording.CUT)
    elif len(step.after) > 1 and step.over not in step.after:
        names = ", ".join(map(wording.shown, step.after[:5]))
        yield Problem(
            where,
            f"the step waits for {len(step.after)} steps, and its input is an object of their "
            f"outputs, not a list. Name the one whose output is the list: {names}.",
        )


def _sleep(step: SleepStep, path: str) -> Iterator[Problem]:
    given = (step.duration_s, step.until, step.expression, step.cron)
    if [bool(one) for one in given].count(True) != 1:
        yield Problem(
            wording.field(path, "duration_s"),
            "a sleep has a duration_s above 0, an until, an expression or a cron. Give it one of "
            "these.",
        )
    elif step.cron:
        yield from _cron(step, path)
    elif step.expression:
        yield from _condition(wording.field(path, "expression"), step.expression, step.after)
    elif step.until and moment_ms(step.until) is None:
        yield Problem(
            wording.field(path, "until"),
            f"{wording.shown(step.until)} is not a time with its offset. Write it like "
            "2027-01-31T09:00:00+01:00.",
        )
    if step.zone != UTC_NAME and not step.cron:
        yield Problem(
            wording.field(path, "zone"),
            f"the zone {wording.shown(step.zone)} is that of a cron, and there is none: other "
            "times have their offset in them. Leave it out.",
        )


def _cron(step: SleepStep, path: str) -> Iterator[Problem]:
    for field, expression, zone in (("zone", "@daily", step.zone), ("cron", step.cron, UTC_NAME)):
        try:
            firings_of(expression, zone)
        except UserError as exc:
            yield Problem(wording.field(path, field), str(exc))


def _event(step: EventStep, path: str) -> Iterator[Problem]:
    if not matching.is_event_name(step.event):
        yield Problem(wording.field(path, "event"), matching.name_problem(step.event))
    if step.match:
        where = wording.field(path, "match")
        yield from _condition(where, step.match, step.after, conditions.OF_EVENTS)


def _approval(step: ApprovalStep, path: str) -> Iterator[Problem]:
    prompt = wording.field(path, "prompt")
    if len(step.prompt) > PROMPT_CHARS_MAX:
        yield Problem(
            prompt,
            f"it has {len(step.prompt)} characters, and {PROMPT_CHARS_MAX} are allowed, because it "
            "stands in lists. Put the rest into the input of the step.",
        )
    else:
        yield from _text(prompt, step.prompt)
    approvers = wording.field(path, "approvers")
    if len(step.approvers) > APPROVERS_MAX:
        yield Problem(
            approvers,
            f"it has {len(step.approvers)} names, and {APPROVERS_MAX} are allowed. Name a group.",
        )
    for i, name in enumerate(step.approvers):
        if not 0 < len(name) <= WORD_CHARS_MAX or not name.isprintable():
            yield Problem(
                wording.item(approvers, i),
                f"{wording.shown(name)} cannot be the name of somebody who answers. Give 1 to "
                f"{WORD_CHARS_MAX} printable characters.",
            )


def _sub_workflow(step: SubWorkflowStep, path: str) -> Iterator[Problem]:
    yield from _id(wording.field(path, "workflow"), "workflow name", step.workflow)
    yield from _retry(step.retry, wording.field(path, "retry"))
    if step.retry.on_exhausted == "park":
        yield Problem(
            wording.field(wording.field(path, "retry"), "on_exhausted"),
            f"the step executes nothing that could be parked. Let the steps of workflow "
            f"{wording.shown(step.workflow)} park: the run of this step waits for theirs.",
        )
    if step.detached and step.retry.max_attempts > 1:
        yield Problem(
            wording.field(path, "retry"),
            "a detached step does not hear how its run ends, so it would never be tried again. "
            "Remove retry, or detached.",
        )


def _retry(retry: Retry, path: str) -> Iterator[Problem]:
    yield from _ranges(retry, path)
    if retry.max_delay_s < retry.delay_s:
        yield Problem(
            wording.field(path, "max_delay_s"),
            f"max_delay_s {retry.max_delay_s:g} is less than delay_s {retry.delay_s:g}, so the "
            "first delay could not be kept. Raise max_delay_s or lower delay_s.",
        )
    names = wording.field(path, "non_retryable")
    if len(retry.non_retryable) > NON_RETRYABLE_MAX:
        yield Problem(
            names,
            f"non_retryable has {len(retry.non_retryable)} names, and {NON_RETRYABLE_MAX} are "
            "allowed. Let the handler raise NonRetryable instead.",
        )
    for i, name in enumerate(retry.non_retryable):
        if not 0 < len(name) <= WORD_CHARS_MAX or not name.isprintable():
            yield Problem(
                wording.item(names, i),
                f"{wording.shown(name)} cannot be the name of an error. Give the name of an "
                f"exception class, for example ValueError, of {WORD_CHARS_MAX} characters at most.",
            )


def _duplicates(steps: tuple[Step, ...]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for i, step in enumerate(steps):
        earlier = first.setdefault(step.id, i)
        if earlier != i:
            yield Problem(
                f"steps[{i}].id",
                f"the id {wording.shown(step.id)} is taken by steps[{earlier}]. Rename one.",
            )


def _ranges(struct: msgspec.Struct, path: str) -> Iterator[Problem]:
    for name in struct.__struct_fields__:
        limits = RANGES.get(name)
        if limits is None:
            continue
        value = getattr(struct, name)
        # Written so that a NaN, which compares as false, is refused too.
        if not limits.least <= value <= limits.most:
            yield Problem(
                wording.field(path, name),
                f"{name} is {wording.shown(value)}, but must be from {limits.least:g} to "
                f"{limits.most:,.10g}: {clause(limits.why)}. Correct it.",
            )


def _id(path: str, what: str, value: str) -> Iterator[Problem]:
    if not is_id(value):
        yield Problem(path, str(InvalidId(what, value[:WORD_CHARS_MAX])))


def _text(path: str, value: str) -> Iterator[Problem]:
    if len(value) > TEXT_CHARS_MAX:
        yield Problem(
            path,
            f"it has {len(value)} characters, and {TEXT_CHARS_MAX} are allowed. Shorten it.",
        )
    elif wording.is_cut(value):
        yield Problem(path, wording.CUT)
