"""Write a workflow in Python.

    workflow = Workflow("code-review", input=Diff)
    fetch = workflow.task("fetch", "fetch-diff", retry=Retry(max_attempts=5))
    review = workflow.agent_loop("review", "llm-review", after=[fetch], max_iterations=10)
    publish = workflow.task("publish", "post-comment", after=[review])

The builder only collects, it never raises: ``build`` hands everything to ``validation.py``, so a
definition is refused with all of its problems, and the same ones as if it came from YAML.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Unpack, cast

from treadle.sdk import wording
from treadle.sdk.building import ChoiceRef, Declared, Dispatch, Duration, Parts, StepRef, Turn
from treadle.sdk.collecting import Collect
from treadle.sdk.definition import (
    MAX_PARALLEL,
    OnLimit,
    OnTimeout,
    Retry,
    Singleton,
    VersionPolicy,
    WorkflowDefinition,
)
from treadle.sdk.validation import definition_from

if TYPE_CHECKING:
    # With a default, a workflow without an input type is one of Any.
    from typing_extensions import TypeVar

    InputT = TypeVar("InputT", default=Any)
else:
    from typing import TypeVar

    InputT = TypeVar("InputT")

P = ParamSpec("P")
R = TypeVar("R")


def _may_be_missing(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a required keyword be missing at run time: ``build`` reports it with the rest."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            kwargs.setdefault(name, None)
            return method(*args, **kwargs)

        return wrapper

    return decorate


class Workflow(Generic[InputT]):
    """A workflow under construction."""

    def __init__(
        self,
        name: str,
        *,
        input: type[InputT] | dict[str, Any] | None = None,
        output: Declared = None,
        timeout: Duration = 0,
        description: str = "",
        singleton: Singleton = "none",
        singleton_key: str = "",
        concurrency: int = 0,
        concurrency_key: str = "",
        version_policy: VersionPolicy = "pin",
        cancel_on: Mapping[str, str] | None = None,
        collect: Collect | None = None,
        max_tool_calls: int = 0,
        max_input_tokens: int = 0,
        max_output_tokens: int = 0,
        max_total_tokens: int = 0,
        max_cost_usd: float = 0,
    ) -> None:
        """Begin a workflow.

        ``input`` is the type of a run's input and ``output`` that of its result, or a JSON schema;
        a value that does not fit fails the run. ``timeout`` is the longest life of a run.
        ``singleton`` is what a start does that finds another run, of the workflow or of the same
        ``singleton_key``, an expression over ``input``: docs/singletons.md. Of the runs of a
        ``concurrency_key`` so many are under way at once as ``concurrency`` says; further starts
        wait in their order: docs/flow-control.md. With the ``version_policy`` ``latest`` the loops
        of a run take the newest version with each iteration: docs/versions.md.
        ``cancel_on`` are events that cancel a run, by name, each with its match: docs/events.md.
        With ``collect``, a Debounce or a Batch, many starts become one run:
        docs/debounce-and-batch.md.

        The other bounds are on what all loops of a run and of its children report to have used,
        together: docs/sub-workflows.md.
        """
        self.name = name
        self.input_type: type[InputT] | None = None if isinstance(input, dict) else input
        self.input_schema = input if isinstance(input, dict) else None
        self._steps: list[dict[str, object]] = []
        self._parts = Parts(self)
        self._fields: dict[str, object] = {
            "name": name,
            "timeout_s": self._parts.seconds("timeout_s", timeout),
            "input_schema": self._parts.schema("input_schema", input),
            "output_schema": self._parts.schema("output_schema", output),
            "description": description,
            "singleton": singleton,
            "singleton_key": singleton_key,
            "concurrency": concurrency,
            "concurrency_key": concurrency_key,
            "version_policy": version_policy,
            "cancel_on": dict(cancel_on or {}),
            "collect": self._parts.collect(collect),
            "max_tool_calls": max_tool_calls,
            "max_input_tokens": max_input_tokens,
            "max_output_tokens": max_output_tokens,
            "max_total_tokens": max_total_tokens,
            "max_cost_usd": max_cost_usd,
        }

    def task(
        self,
        id: str,
        type: str | None = None,
        *,
        timeout: Duration = 0,
        retry: Retry | None = None,
        input: Declared = None,
        output: Declared = None,
        **options: Unpack[Dispatch],
    ) -> StepRef:
        """Add a step that a worker executes once.

        ``type`` is the task type under which workers register the handler, by default the id.
        ``timeout`` bounds one attempt; 0 is unlimited. ``input`` and ``output`` are types, or JSON
        schemas, of what it is given and puts out; a value that does not fit fails the step.
        ``quorum``, ``when``, ``on_failure`` and ``compensate`` say when it is a step's turn, and
        what follows a failure: docs/control-flow.md.
        ``concurrency``, ``rate_limits``, ``priority``, ``fair_by`` and ``weights`` are about each
        dispatch to a worker: docs/flow-control.md. ``metadata`` are texts for its handler.
        """
        path = self._next_path()
        return self._add(
            StepRef(self, id),
            kind="task",
            **self._parts.dispatch(path, options),
            type=id if type is None else type,
            timeout_s=self._parts.seconds(wording.field(path, "timeout_s"), timeout),
            retry=self._parts.retry(path, retry),
            **self._schemas(path, input, output),
        )

    def map(
        self,
        id: str,
        type: str | None = None,
        *,
        over: str = "",
        max_parallel: int = MAX_PARALLEL,
        chunk: int = 0,
        tolerated_failures: int = 0,
        timeout: Duration = 0,
        retry: Retry | None = None,
        **options: Unpack[Dispatch],
    ) -> StepRef:
        """Add a step that executes a handler for every item of a list, and puts out the results.

        The list is the step's input, or what is under the key ``over`` of it. At most
        ``max_parallel`` items are worked on at once; ``timeout`` and ``retry`` are an item's.
        ``chunk`` is how many items a task has at most; 0 lets the engine choose. With
        ``tolerated_failures`` so many items may fail for good: docs/map.md.
        """
        path = self._next_path()
        return self._add(
            StepRef(self, id),
            kind="map",
            **self._parts.dispatch(path, options),
            type=id if type is None else type,
            over=over,
            max_parallel=max_parallel,
            chunk=chunk,
            tolerated_failures=tolerated_failures,
            timeout_s=self._parts.seconds(wording.field(path, "timeout_s"), timeout),
            retry=self._parts.retry(path, retry),
        )

    def planner(
        self,
        id: str,
        type: str | None = None,
        *,
        max_steps: int = 20,
        max_depth: int = 0,
        allowed_tasks: Iterable[str] = (),
        timeout: Duration = 0,
        retry: Retry | None = None,
        **options: Unpack[Dispatch],
    ) -> StepRef:
        """Add a step whose output is a plan: further steps of its run.

        A worker executes it once, as a task; ``type`` is its task type, by default the id. What
        waits for it waits for its plan. ``max_steps`` bounds the steps it may add, ``max_depth``
        the levels of planners in its plan, and ``allowed_tasks`` are the task types that it may
        use, by default all. A plan that is refused is a failure of the attempt: ``retry``.
        """
        path = self._next_path()
        return self._add(
            StepRef(self, id),
            kind="planner",
            **self._parts.dispatch(path, options),
            type=id if type is None else type,
            max_steps=max_steps,
            max_depth=max_depth,
            allowed_tasks=[*allowed_tasks],
            timeout_s=self._parts.seconds(wording.field(path, "timeout_s"), timeout),
            retry=self._parts.retry(path, retry),
        )

    @_may_be_missing("max_iterations")
    def agent_loop(
        self,
        id: str,
        type: str | None = None,
        *,
        max_iterations: int,
        max_duration: Duration = 0,
        loop_delay: Duration = 0,
        timeout: Duration = 0,
        retry: Retry | None = None,
        on_limit: OnLimit = "fail",
        budget_warn_at: int = 0,
        budget_force_at: int = 0,
        max_tool_calls: int = 0,
        max_input_tokens: int = 0,
        max_output_tokens: int = 0,
        max_total_tokens: int = 0,
        max_cost_usd: float = 0,
        input: Declared = None,
        output: Declared = None,
        **options: Unpack[Dispatch],
    ) -> StepRef:
        """Add a step that iterates until its handler completes it or a bound is reached.

        ``max_iterations`` is required. ``max_duration`` counts from the first dispatch,
        ``loop_delay`` is the pause between iterations, ``timeout`` bounds one attempt of one
        iteration and ``retry`` applies to each iteration on its own; 0 is unlimited or none.
        ``on_limit`` is what a reached bound does. From ``budget_warn_at`` and
        ``budget_force_at`` on, the handler is told that its iterations run out.
        ``max_tool_calls``, ``max_..._tokens`` and ``max_cost_usd`` bound what the handler reports
        with ``ctx.report_spent``; the engine counts it. ``input`` and ``output`` are types, or JSON
        schemas, of what the loop is given and completes with.
        """
        path = self._next_path()
        loop = {} if cast("object", max_iterations) is None else {"max_iterations": max_iterations}
        return self._add(
            StepRef(self, id),
            kind="agent_loop",
            **self._parts.dispatch(path, options),
            type=id if type is None else type,
            **loop,
            max_duration_s=self._parts.seconds(wording.field(path, "max_duration_s"), max_duration),
            loop_delay_s=self._parts.seconds(wording.field(path, "loop_delay_s"), loop_delay),
            timeout_s=self._parts.seconds(wording.field(path, "timeout_s"), timeout),
            retry=self._parts.retry(path, retry),
            on_limit=on_limit,
            budget_warn_at=budget_warn_at,
            budget_force_at=budget_force_at,
            max_tool_calls=max_tool_calls,
            max_input_tokens=max_input_tokens,
            max_output_tokens=max_output_tokens,
            max_total_tokens=max_total_tokens,
            max_cost_usd=max_cost_usd,
            **self._schemas(path, input, output),
        )

    def wait_for_signal(
        self,
        id: str,
        *,
        signal: str | None = None,
        timeout: Duration = 0,
        on_timeout: OnTimeout = "fail",
        **turn: Unpack[Turn],
    ) -> StepRef:
        """Add a step that completes when a signal reaches the run; its payload is the output.

        ``signal`` is the signal's name, by default the id. After ``timeout`` the step fails, or
        completes with null.
        """
        path = self._next_path()
        return self._add(
            StepRef(self, id),
            kind="signal",
            **self._parts.turn(path, turn),
            signal=id if signal is None else signal,
            timeout_s=self._parts.seconds(wording.field(path, "timeout_s"), timeout),
            on_timeout=on_timeout,
        )

    def wait_for_event(
        self,
        id: str,
        event: str,
        *,
        match: str = "",
        timeout: Duration = 0,
        on_timeout: OnTimeout = "fail",
        **turn: Unpack[Turn],
    ) -> StepRef:
        """Add a step that completes when a fitting event is published; its payload is the output.

        ``match`` is a condition of the event, for example
        ``event["id"] == input["order"]``; without one any event of the name fits. An event that
        was published since the run was requested is not missed. After ``timeout`` the step
        fails, or completes with null. See docs/events.md.
        """
        path = self._next_path()
        return self._add(
            StepRef(self, id),
            kind="event",
            **self._parts.turn(path, turn),
            event=event,
            match=match,
            timeout_s=self._parts.seconds(wording.field(path, "timeout_s"), timeout),
            on_timeout=on_timeout,
        )

    def approval(
        self,
        id: str,
        *,
        prompt: str = "",
        approvers: Iterable[str] = (),
        timeout: Duration = 0,
        on_timeout: OnTimeout = "fail",
        **turn: Unpack[Turn],
    ) -> StepRef:
        """Add a step that people decide: ``treadle approvals`` lists it, with its input.

        Approved, its output says by whom, when and with what comment; rejected, it fails.
        ``approvers`` are the names that may answer, none is anybody. After ``timeout`` the step
        fails, or completes with null. See docs/approvals.md.
        """
        path = self._next_path()
        return self._add(
            StepRef(self, id),
            kind="approval",
            **self._parts.turn(path, turn),
            prompt=prompt,
            approvers=[approvers] if isinstance(approvers, str) else list(approvers),
            timeout_s=self._parts.seconds(wording.field(path, "timeout_s"), timeout),
            on_timeout=on_timeout,
        )

    def choice(
        self,
        id: str,
        branches: Mapping[str, str],
        *,
        default: str,
        **turn: Unpack[Turn],
    ) -> ChoiceRef:
        """Add a step that takes the first of its branches whose condition holds, or the default.

        ``branches`` are conditions by name, asked in their order. What follows waits for
        ``choice["name"]``, and is skipped if the choice takes another branch.
        """
        path = self._next_path()
        ref = ChoiceRef(self, id)
        self._add(
            ref,
            kind="choice",
            **self._parts.turn(path, turn),
            branches=[{"name": name, "when": when} for name, when in branches.items()],
            default=default,
        )
        return ref

    def sleep(
        self,
        id: str,
        duration: Duration = 0,
        *,
        until: datetime | str = "",
        expression: str = "",
        cron: str = "",
        zone: str = "UTC",
        **turn: Unpack[Turn],
    ) -> StepRef:
        """Add a step that completes by itself: after a while, or at a time with its zone.

        ``expression`` says which in each run: ``input["remind_at"]``, seconds or an RFC 3339 time.
        ``cron`` is until its next time in a zone: ``0 9 * * mon-fri`` in ``Europe/Berlin``.
        Its output is null, and it holds no worker, for a second or for a year.
        """
        path = self._next_path()
        return self._add(
            StepRef(self, id),
            kind="sleep",
            **self._parts.turn(path, turn),
            duration_s=self._parts.seconds(wording.field(path, "duration_s"), duration),
            until=until.isoformat() if isinstance(until, datetime) else until,
            expression=expression,
            cron=cron,
            zone=zone,
        )

    def respond(
        self,
        id: str,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        **turn: Unpack[Turn],
    ) -> StepRef:
        """Add a step that answers the HTTP request which started the run: docs/http.md.

        Its input is the body. The run goes on after it; in a run that nobody waits for it does
        nothing.
        """
        path = self._next_path()
        return self._add(
            StepRef(self, id),
            kind="respond",
            **self._parts.turn(path, turn),
            status=status,
            headers=dict(headers or {}),
        )

    def sub_workflow(
        self,
        id: str,
        workflow: Workflow[Any] | str | None = None,
        *,
        detached: bool = False,
        timeout: Duration = 0,
        retry: Retry | None = None,
        **turn: Unpack[Turn],
    ) -> StepRef:
        """Add a step that starts a run of another workflow and completes with its result.

        ``workflow`` is that workflow or its name, by default the id; the newest version counts
        when the step starts. The run's input is the step's. ``timeout`` is the longest life of
        the run; after a failure ``retry`` starts another one. A ``detached`` step completes with
        ``{"run_id": ...}`` once the run is requested, and neither waits for it nor ends it:
        docs/sub-workflows.md.
        """
        path = self._next_path()
        name = workflow.name if isinstance(workflow, Workflow) else workflow
        return self._add(
            StepRef(self, id),
            kind="sub_workflow",
            **self._parts.turn(path, turn),
            workflow=id if name is None else name,
            detached=detached,
            timeout_s=self._parts.seconds(wording.field(path, "timeout_s"), timeout),
            retry=self._parts.retry(path, retry),
        )

    def build(self) -> WorkflowDefinition:
        """Return the definition; raise ``InvalidDefinition`` with all problems."""
        plain = {**self._fields, "steps": self._steps}
        return definition_from(plain, found=list(self._parts.problems))

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} with {len(self._steps)} steps>"

    # ---------------------------------------------------------------- as plain data

    def _schemas(self, path: str, input: Declared, output: Declared) -> dict[str, object]:
        declared = {"input_schema": input, "output_schema": output}
        return {
            name: self._parts.schema(wording.field(path, name), each)
            for name, each in declared.items()
        }

    def _next_path(self) -> str:
        return wording.item("steps", len(self._steps))

    def _add(self, ref: StepRef, **fields: object) -> StepRef:
        self._steps.append({"id": ref.id, **fields})
        return ref
