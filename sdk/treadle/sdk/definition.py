"""What a workflow is: frozen data, the same from Python, YAML or the registry.

Owns the shape of a definition and its content hash. It does not know how one is written
(``builder.py``, ``document.py``) nor whether it is sound (``validation.py``).

Durations are seconds, as numbers, and the unit is in the name: ``timeout_s``. Unknown fields
are errors, so a typo in a YAML file is refused instead of being ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, cast

import msgspec
import msgspec.structs

from treadle.sdk.collecting import Collect
from treadle.sdk.flow import Concurrency, RateLimit
from treadle.sdk.rfc3339 import moment_ms

Backoff = Literal["fixed", "linear", "exponential"]
OnLimit = Literal["fail", "wrap_up", "park"]
OnTimeout = Literal["fail", "complete"]
VersionPolicy = Literal["pin", "latest"]
Singleton = Literal["none", "skip", "queue", "cancel_older"]
OnExhausted = Literal["fail", "park"]

MAX_PARALLEL = 10
"""Items of a map at once, if its author does not say: enough to hide the waits of a service, few
enough for its rate limit."""


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How a failed attempt of a step, or of one iteration of a loop, is tried again."""

    max_attempts: int = 1
    """Executions that may end in a failure, the first included. 1 means no retry."""
    backoff: Backoff = "exponential"
    """Growth of the delay: ``fixed`` d, ``linear`` n·d, ``exponential`` d·multiplier^(n-1)."""
    delay_s: float = 1.0
    """Delay before the second attempt, in seconds."""
    max_delay_s: float = 60.0
    """Upper bound of one delay, in seconds, jitter included."""
    multiplier: float = 2.0
    """Factor of the exponential growth."""
    jitter: float = 0.1
    """Share of the delay by which it varies, 0 to 1. The draw is a hash of run, step, iteration
    and attempt: the same on every engine."""
    non_retryable: tuple[str, ...] = ()
    """Error type names that end the step at once, for example ``ValueError``."""
    on_exhausted: OnExhausted = "fail"
    """What the last failure does: ``fail`` the step, or ``park`` it with its failure until it is
    resumed, which gives it its attempts again. What is not retryable fails in any case."""


class _StepBase(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    id: str
    """Name of the step, unique in its workflow: ``[A-Za-z0-9_][A-Za-z0-9_-]{0,63}``."""
    after: tuple[str, ...] = ()
    """Steps that must have completed before this one starts."""
    quorum: int = 0
    """How many of the steps in ``after`` have to complete: 1 is any of them, 0 is all. With 0 a
    step that was skipped is not waited for, and one that failed takes this step with it."""
    when: str = ""
    """Condition of the step, asked when it is its turn: false skips it. An expression over
    ``input``, the run's, and ``steps``, the outputs of the steps in ``after`` by id."""
    on_failure: str = ""
    """Step that starts if this one fails for good, with the failure as its input. The run goes
    on: what waits for the failed step is skipped, and so is the other one if this completes."""

    compensate: str = ""
    """Step that undoes this one: it starts, with this one's output as its input, if the run fails
    or is cancelled after this one has completed. The newest is undone first."""


class _Dispatched(_StepBase, frozen=True, kw_only=True):
    """What every dispatch of a step to a worker is subject to: docs/flow-control.md."""

    concurrency: tuple[Concurrency, ...] = ()
    """How many executions there are at a time; each dispatch takes a slot of every limit."""
    rate_limits: tuple[RateLimit, ...] = ()
    """How many executions begin in a while."""
    priority: str = ""
    """Who comes first of those that wait for a slot: a whole number from -100 to 100, or an
    expression over ``input`` and ``steps``, for example ``input["priority"]``. A priority given at
    the start of a run counts instead."""
    fair_by: str = ""
    """Those that wait with one priority take turns by the value of this expression, for example
    ``input["tenant"]``."""
    weights: dict[str, float] = {}
    """By value of ``fair_by``: how many turns it has when another has one. 1 for all others."""
    metadata: dict[str, str] = {}
    """Texts by name that handlers read as ``ctx.step_metadata``; nothing else asks for them."""


class TaskStep(_Dispatched, frozen=True, tag="task", tag_field="kind", kw_only=True):
    """A step that a worker executes once; its return value is its output."""

    type: str
    """Task type: the name under which workers register the handler."""
    timeout_s: float = 0
    """Longest execution of one attempt in seconds; 0 is unlimited."""
    retry: Retry = Retry()
    input_schema: dict[str, Any] | None = None
    """JSON schema of the step's input: one that does not fit fails the step before it begins."""
    output_schema: dict[str, Any] | None = None
    """JSON schema of the step's output: one that does not fit fails the step for good."""


class PlannerStep(TaskStep, frozen=True, tag="planner", tag_field="kind", kw_only=True):
    """A task whose output is a plan: further steps of its run.

    The output is ``{"steps": [...], "inputs": {...}}``: docs/planner.md.
    """

    max_steps: int = 20
    """Most steps that it may add to a run, those of planners in its plan included."""
    max_depth: int = 0
    """Levels of planners that there may be in its plan; 0 is none."""
    allowed_tasks: tuple[str, ...] = ()
    """Task types that its plan may use; without any, all."""


class AgentLoopStep(_Dispatched, frozen=True, tag="agent_loop", tag_field="kind", kw_only=True):
    """A step that iterates until its handler completes it or a bound is reached."""

    type: str
    """Task type: the name under which workers register the handler."""
    max_iterations: int
    """Most iterations the loop may take. Required, greater than 0."""
    max_duration_s: float = 0
    """Wall clock bound in seconds, from the first dispatch; 0 is unlimited."""
    loop_delay_s: float = 0
    """Pause between two iterations in seconds, durable; 0 is none."""
    timeout_s: float = 0
    """Longest execution of one attempt of one iteration in seconds; 0 is unlimited."""
    retry: Retry = Retry()
    """Applies to each iteration on its own."""
    on_limit: OnLimit = "fail"
    """What a reached bound does: ``fail`` the step, ``wrap_up`` with one last iteration, or
    ``park`` the run until it is resumed with a raised bound."""
    budget_warn_at: int = 0
    """Iteration from which ``ctx.budget`` reads ``warn``; 0 is never. Advisory."""
    budget_force_at: int = 0
    """Iteration from which ``ctx.budget`` reads ``force``; 0 is never. Advisory."""
    max_tool_calls: int = 0
    """Tool calls the loop may report; 0 is unlimited. Like all bounds, it is asked between
    iterations, and a handler may ask what is left of it."""
    max_input_tokens: int = 0
    """Tokens the loop may report as read; 0 is unlimited."""
    max_output_tokens: int = 0
    """Tokens the loop may report as written; 0 is unlimited."""
    max_total_tokens: int = 0
    """Tokens the loop may report as read or written; 0 is unlimited."""
    max_cost_usd: float = 0
    """Dollars the loop may report as spent; 0 is unlimited."""
    input_schema: dict[str, Any] | None = None
    """JSON schema of the step's input: one that does not fit fails the step before it begins."""
    output_schema: dict[str, Any] | None = None
    """JSON schema of what the loop completes with: one that does not fit fails the step for
    good. What it continues with is its own."""


class SignalStep(_StepBase, frozen=True, tag="signal", tag_field="kind", kw_only=True):
    """A step that completes when a signal of this name reaches the run; no worker is held.

    Its output is the signal's payload. A signal that arrives early is kept; each signal
    completes one step.
    """

    signal: str
    """Name of the signal that completes the step."""
    timeout_s: float = 0
    """Longest wait in seconds; 0 is unlimited."""
    on_timeout: OnTimeout = "fail"
    """What the end of the wait does: ``fail`` the step with reason ``timeout``, or ``complete`` it
    with null for the payload."""


class SleepStep(_StepBase, frozen=True, tag="sleep", tag_field="kind", kw_only=True):
    """A step that completes by itself after a while, or at a time; no worker is held.

    Exactly one of duration, until, expression and cron is set. Its output is null.
    """

    duration_s: float = 0
    """Seconds from when it is the step's turn."""
    until: str = ""
    """A time as RFC 3339 has it, with its offset, for example ``2027-01-31T09:00:00+01:00``. One
    that has passed is no wait."""
    expression: str = ""
    """An expression as in ``when``, whose value is one of the two: a number of seconds, or the text
    of a time."""
    cron: str = ""
    """Until the next time of a cron expression after it is the step's turn, as triggers have them,
    for example ``0 9 * * mon-fri``."""
    zone: str = "UTC"
    """Time zone in which ``cron`` is read, by its IANA name, for example ``Europe/Berlin``."""

    @property
    def is_told(self) -> bool:
        """True if its end is found out when it begins, and stored then."""
        return bool(self.expression or self.cron)


class EventStep(_StepBase, frozen=True, tag="event", tag_field="kind", kw_only=True):
    """A step that completes when an event of this name is published that fits; no worker is held.

    Its output is the event's payload. Events are published to the namespace and not to a run: one
    completes every step that waits for it, of however many runs.
    """

    event: str
    """Name of the event, for example ``order.paid``."""
    match: str = ""
    """Condition of the event, over ``event``, its payload, and ``input`` and ``steps`` as in
    ``when``, for example ``event["id"] == input["order"]``. Empty is any event of the name."""
    timeout_s: float = 0
    """Longest wait in seconds; 0 is unlimited."""
    on_timeout: OnTimeout = "fail"
    """What the end of the wait does: ``fail`` the step with reason ``timeout``, or ``complete`` it
    with null for the payload."""


class ApprovalStep(_StepBase, frozen=True, tag="approval", tag_field="kind", kw_only=True):
    """A step that people decide; no worker is held, for as long as it takes.

    It stands among what is asked (``treadle approvals``) with prompt and input. Approved, it
    completes with who has decided what and when; rejected, it fails with the reason ``rejected``.
    """

    prompt: str = ""
    """What people are asked to decide, in words."""
    approvers: tuple[str, ...] = ()
    """Who may answer, by the names that answers are given with; empty is anybody."""
    timeout_s: float = 0
    """Longest wait in seconds; 0 is unlimited."""
    on_timeout: OnTimeout = "fail"
    """What the end of the wait does: ``fail`` the step with reason ``timeout``, or ``complete`` it
    with null."""


class Branch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One of the ways on from a choice."""

    name: str
    """What the choice puts out if it takes this branch."""
    when: str
    """Condition of the branch, over ``input`` and ``steps`` like that of a step."""


class ChoiceStep(_StepBase, frozen=True, tag="choice", tag_field="kind", kw_only=True):
    """A step that takes the first of its branches whose condition holds; no worker is held.

    It completes at once, with the name of the branch: what follows asks for it in its ``when``,
    for example ``steps["route"] == "review"``.
    """

    branches: tuple[Branch, ...]
    """Asked in their order; those behind the first that holds are not asked."""
    default: str
    """What the choice puts out if no condition holds."""


class RespondStep(_StepBase, frozen=True, tag="respond", tag_field="kind", kw_only=True):
    """A step that answers the HTTP request which started the run; no worker is held.

    It completes at once, and the run goes on. Its input is the body of the response, its output
    null. The first one of a run to complete is the response.
    """

    status: int = 200
    """Status code of the response."""
    headers: dict[str, str] = {}
    """Headers of the response. Without a ``content-type`` the body is JSON."""


class MapStep(_Dispatched, frozen=True, tag="map", tag_field="kind", kw_only=True):
    """A step that executes one handler for every item of a list that is known at run time.

    Its input has to be a list: the run's input, or the output of the step it waits for. Its output
    is the list of the results, in the order of the items.
    """

    type: str
    """Task type: the name under which workers register the handler of one item."""
    over: str = ""
    """Key of the input under which the list is; empty if the input is the list. A step that waits
    for several names one of them."""
    max_parallel: int = MAX_PARALLEL
    """Most items that are worked on at once."""
    chunk: int = 0
    """Most items of one task, worked through one after the other; 0 lets the engine choose."""
    tolerated_failures: int = 0
    """How many items may fail for good. With 0 the output is the list of results; else an object of
    ``results``, null for those that failed, and ``failures``, each an index, a type, a message."""
    timeout_s: float = 0
    """Longest execution of one attempt of one item in seconds; 0 is unlimited."""
    retry: Retry = Retry()
    """Applies to each item on its own."""


class SubWorkflowStep(_StepBase, frozen=True, tag="sub_workflow", tag_field="kind", kw_only=True):
    """A step that starts a run of a workflow, with its input, and completes with its result.

    The version is the newest one when the step starts the run.
    """

    workflow: str
    """Name of the workflow."""
    detached: bool = False
    """Complete as soon as the run is requested, with ``{"run_id": ...}``: its end is its own."""
    timeout_s: float = 0
    """Longest life of the run in seconds, from its request; 0 is what its workflow says."""
    retry: Retry = Retry()
    """After a failure the workflow is started again, as another run."""


Step = (
    TaskStep
    | PlannerStep
    | AgentLoopStep
    | SignalStep
    | EventStep
    | SleepStep
    | ApprovalStep
    | ChoiceStep
    | RespondStep
    | MapStep
    | SubWorkflowStep
)
WorkStep = TaskStep | AgentLoopStep
"""What is one task at a time, a planner too; it has a task type and a register."""
TypedStep = TaskStep | AgentLoopStep | MapStep
"""What workers execute; it has a task type."""
WaitStep = SignalStep | EventStep | ApprovalStep
"""What somebody else completes, with an event of the run; it may wait for a bounded time only."""


class WorkflowDefinition(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """A named DAG of steps. Its version is the hash of its content."""

    name: str
    """``[A-Za-z0-9_][A-Za-z0-9_-]{0,63}``."""
    steps: tuple[Step, ...]
    """In the order written; the order carries no meaning, ``after`` does."""
    timeout_s: float = 0
    """Longest life of a run in seconds, from its request; 0 is unlimited."""
    max_tool_calls: int = 0
    """Tool calls that all loops of a run may report together, those of the runs that its steps
    start and wait for included; 0 is unlimited."""
    max_input_tokens: int = 0
    """Tokens they may report as read; 0 is unlimited."""
    max_output_tokens: int = 0
    """Tokens they may report as written; 0 is unlimited."""
    max_total_tokens: int = 0
    """Tokens they may report as read or written; 0 is unlimited."""
    max_cost_usd: float = 0
    """Dollars they may report as spent; 0 is unlimited."""
    input_schema: dict[str, Any] | None = None
    """JSON schema of the run's input: one that does not fit is refused by clients, and fails the
    run at once if it comes from anywhere else."""
    output_schema: dict[str, Any] | None = None
    """JSON schema of the run's result: one that does not fit fails the run."""
    description: str = ""
    singleton: Singleton = "none"
    """One run at a time: a start that finds another one is skipped (``skip``), waits
    (``queue``), or cancels it first (``cancel_older``)."""
    singleton_key: str = ""
    """One run at a time for each value of this expression over ``input``; empty is for all."""
    concurrency: int = 0
    """So many runs at a time: further starts wait in their order; 0 is unlimited."""
    concurrency_key: str = ""
    """So many for each value of this expression over ``input``; empty is for all."""
    version_policy: VersionPolicy = "pin"
    """``pin``: a run finishes on the version with which it was requested. ``latest``: each of its
    loops takes the newest version of its step with every iteration."""
    cancel_on: dict[str, str] = {}
    """Events that cancel a run, by name: the condition of each over ``event``, its payload, and
    ``input``; an empty one is any event of the name. At most 5."""
    collect: Collect | None = None
    """Starts are collected, and many become one run. Of a batch ``input_schema`` and the keys are
    about one start, and the run has a list of them."""

    def step(self, step_id: str) -> Step:
        """Return the step of that id; raise ``KeyError`` if there is none."""
        for step in self.steps:
            if step.id == step_id:
                return step
        raise KeyError(step_id)


def has_keys(step: Step) -> bool:
    """True for a step whose limits depend on what a run was given, or on outputs."""
    if not isinstance(step, TypedStep):
        return False
    limits: tuple[Concurrency | RateLimit, ...] = (*step.concurrency, *step.rate_limits)
    return bool(step.priority or step.fair_by) or any(limit.key for limit in limits)


def wakes_ms(step: SleepStep, started_ms: int, due_ms: int = 0) -> int:
    """Return when a sleep is over that began at that time; all in ms since the epoch.

    ``due_ms`` is what its expression or its cron came to, if it has one.
    """
    if step.is_told:
        return due_ms
    if step.until:
        return moment_ms(step.until) or 0
    return started_ms + round(step.duration_s * 1000)


def expires_ms(step: Step, started_ms: int) -> int:
    """Return when the time of a step that waits is over; 0 is never, or no such step."""
    if not isinstance(step, WaitStep) or not step.timeout_s:
        return 0
    return started_ms + round(step.timeout_s * 1000)


def to_plain(definition: msgspec.Struct) -> dict[str, Any]:
    """Return a definition, or a part of one, as plain data, as a document would write it.

    Equal definitions give equal results: what equals its default is left out, and a duration
    written as ``30`` is the number ``30.0``. msgspec omits by identity, so it cannot do this.
    """
    return _plain_struct(definition)


def content_hash(definition: WorkflowDefinition) -> str:
    """Return the version of a definition: 16 hex digits over its canonical JSON.

    Equal definitions have the same version, however they were written.
    """
    raw = msgspec.json.encode(to_plain(definition), order="sorted")
    return hashlib.sha256(raw).hexdigest()[:16]


@cache
def _fields(cls: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(cls)


def _plain_struct(value: msgspec.Struct) -> dict[str, Any]:
    config = value.__struct_config__
    plain: dict[str, Any] = {}
    if config.tag_field is not None:
        plain[config.tag_field] = config.tag
    for field in _fields(type(value)):
        item = getattr(value, field.name)
        if item != _default(field):
            is_number = field.type is float and isinstance(item, (int, float))
            plain[field.name] = _plain_number(item) if is_number else _plain_value(item)
    return plain


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is msgspec.NODEFAULT:
        return field.default
    return cast("object", field.default_factory())


def _plain_number(value: float) -> float:
    if isinstance(value, bool):
        return value  # Wrong, and for validation to refuse.
    try:
        return float(value) + 0.0  # -0.0 becomes 0.0, which it equals.
    except OverflowError:
        return value


def _plain_value(value: object) -> object:
    if isinstance(value, msgspec.Struct):
        return _plain_struct(value)
    if isinstance(value, (list, tuple)):
        return [_plain_value(item) for item in cast("Sequence[object]", value)]
    return value
