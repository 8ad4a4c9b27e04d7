"""What the properties of definitions are tried on: sound definitions, and single faults.

A fault is a change to the plain data of a sound definition together with the place at which it
has to be reported, and whether JSON schema can see it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from tests.sdk import map_faults, metadata_faults, planner_faults, sleep_faults
from tests.sdk.collects import collects

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
    to_plain,
)
from treadle.sdk.limits import COST_USD_MAX, DURATION_S_MAX, SPENDING_MAX

# No deadline: a busy machine is no fault of the code.
QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_matches = st.sampled_from(("", 'event["id"] == input["id"]', "event > 3"))

# Words that YAML 1.1, YAML 1.2 or both would read as something else than text.
_TRICKY = ["on", "no", "null", "true", "1e3", "0x1F", "0b1", "010", "1_000", "_", "1"]

_words = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,7}", fullmatch=True)
ids = st.one_of(st.sampled_from(_TRICKY), _words)
seconds = st.floats(0, DURATION_S_MAX, allow_nan=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def retries(draw: st.DrawFn) -> Retry:
    delay_s, max_delay_s = sorted([draw(seconds), draw(seconds)])
    return Retry(
        on_exhausted=draw(st.sampled_from(("fail", "park"))),
        max_attempts=draw(st.integers(1, 1000)),
        backoff=draw(st.sampled_from(["fixed", "linear", "exponential"])),
        delay_s=delay_s,
        max_delay_s=max_delay_s,
        multiplier=draw(st.floats(1, 100)),
        jitter=draw(st.floats(0, 1)),
        non_retryable=tuple(draw(st.lists(ids, max_size=2))),
    )


_json_schemas = st.none() | st.dictionaries(texts, json_values, max_size=3)
_step_schemas = st.sampled_from((None, None, {"type": "integer", "minimum": 3}))


_any_step: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        SubWorkflowStep,
        id=st.just("x"),
        workflow=ids,
        timeout_s=seconds,
    ),
    st.builds(
        TaskStep,
        id=st.just("x"),
        type=ids,
        timeout_s=seconds,
        input_schema=_step_schemas,
        output_schema=_step_schemas,
    ),
    planner_faults.planner_steps("x", (), ids, seconds, Retry()),
    st.builds(
        AgentLoopStep,
        id=st.just("x"),
        type=ids,
        max_iterations=st.integers(1, 1_000_000),
        max_duration_s=seconds,
        loop_delay_s=seconds,
        timeout_s=seconds,
        on_limit=st.sampled_from(["fail", "wrap_up", "park"]),
        max_tool_calls=st.integers(0, SPENDING_MAX),
        max_total_tokens=st.integers(0, SPENDING_MAX),
        max_cost_usd=st.floats(0, COST_USD_MAX),
    ),
    st.builds(
        SignalStep,
        id=st.just("x"),
        signal=ids,
        timeout_s=seconds,
        on_timeout=st.sampled_from(["fail", "complete"]),
    ),
    st.builds(
        EventStep,
        id=st.just("x"),
        event=st.lists(ids, min_size=1, max_size=2).map(
            lambda parts: ".".join(parts)[:120].rstrip(".")
        ),
        match=_matches,
        timeout_s=seconds,
        on_timeout=st.sampled_from(["fail", "complete"]),
    ),
    st.builds(
        ApprovalStep,
        id=st.just("x"),
        prompt=texts,
        approvers=st.lists(ids, max_size=2).map(tuple),
        timeout_s=seconds,
        on_timeout=st.sampled_from(["fail", "complete"]),
    ),
    st.builds(
        ChoiceStep,
        id=st.just("x"),
        branches=st.lists(
            st.builds(Branch, name=ids, when=st.sampled_from(("true", "len(input) > 3"))),
            min_size=1,
            max_size=3,
            unique_by=lambda branch: branch.name,
        ).map(tuple),
        default=ids,
    ),
    map_faults.map_steps("x", (), ids, texts, seconds, Retry()),
    st.builds(
        RespondStep,
        id=st.just("x"),
        status=st.integers(200, 599),
        headers=st.just({}) | st.just({"x-kind": "a b"}),
    ),
    sleep_faults.sleep_steps("x"),
)
"""Made once: that costs more than to draw from it."""


@st.composite
def _step(draw: st.DrawFn, step_id: str, after: tuple[str, ...]) -> Step:
    step = msgspec.structs.replace(draw(_any_step), id=step_id, after=after)
    if isinstance(step, AgentLoopStep):
        warn_at, force_at = sorted([draw(st.integers(0, 10)), draw(st.integers(0, 10))])
        step = msgspec.structs.replace(step, budget_warn_at=warn_at, budget_force_at=force_at)
    if isinstance(step, MapStep) and len(after) > 1:
        step = msgspec.structs.replace(step, over=draw(st.sampled_from(after)))
    if hasattr(step, "retry"):
        retry = draw(st.just(Retry()) | retries())
        if isinstance(step, MapStep | SubWorkflowStep):
            retry = msgspec.structs.replace(retry, on_exhausted="fail")
        step = msgspec.structs.replace(step, retry=retry)
    return step


@st.composite
def _turn(draw: st.DrawFn, step: Step, later: list[Step]) -> Step:
    plain = (other for other in later if not isinstance(other, MapStep))
    handlers = [other.id for other in plain if not other.after]
    return msgspec.structs.replace(
        step,
        quorum=draw(st.integers(0, len(step.after))),
        when=draw(st.sampled_from(("", 'input["n"] > 3', "len(steps) == 0 or null"))),
        on_failure=draw(st.sampled_from(("", *handlers))),
    )


@st.composite
def definitions(draw: st.DrawFn, max_steps: int = 6) -> WorkflowDefinition:
    """Sound definitions: any DAG, its steps written in any order."""
    names = draw(st.lists(ids, min_size=1, max_size=max_steps, unique=True))
    steps = [
        draw(
            _step(name, tuple(draw(st.lists(st.sampled_from(names[:i]), unique=True)) if i else ()))
        )
        for i, name in enumerate(names)
    ]
    steps = [draw(_turn(step, steps[i + 1 :])) for i, step in enumerate(steps)]
    if draw(st.booleans()) and not (step := steps[-1]).id.startswith("undo-"):
        undo = f"undo-{step.id}"[:64]
        steps[-1] = msgspec.structs.replace(step, compensate=undo)
        steps.append(TaskStep(id=undo, type="undo"))
    return WorkflowDefinition(
        name=draw(ids),
        steps=tuple(draw(st.permutations(steps))),
        timeout_s=draw(seconds),
        input_schema=draw(_json_schemas),
        output_schema=draw(_json_schemas),
        description=draw(texts),
        collect=draw(collects),
        cancel_on=draw(st.dictionaries(st.sampled_from(("stop", "order.gone")), _matches)),
    )


@dataclass(frozen=True)
class Fault:
    """One thing wrong with otherwise sound plain data."""

    plain: dict[str, Any]
    path: str
    in_schema: bool
    """True if the JSON schema refuses it too."""


Change = Callable[[dict[str, Any]], str | None]
"""Breaks plain data in place and returns where; None if these data have no such part."""


_FIELDS = {cls.__struct_config__.tag: cls.__struct_fields__ for cls in get_args(Step)}


def _set(place: str, value: object, *, having: str = "") -> Change:
    """Set a field of the first step whose kind has it; ``retry.x`` reaches into the policy."""
    first, _, inner = place.partition(".")

    def change(plain: dict[str, Any]) -> str | None:
        for i, step in enumerate(plain["steps"]):
            if (having or first) in _FIELDS[step["kind"]]:
                target = step.setdefault("retry", {}) if inner else step
                target[inner or first] = value
                return f"steps[{i}].{place}"
        return None

    return change


def _top(name: str, value: object) -> Change:
    def change(plain: dict[str, Any]) -> str:
        plain[name] = value
        return name

    return change


def _drop(name: str) -> Change:
    def change(plain: dict[str, Any]) -> str | None:
        for i, step in enumerate(plain["steps"]):
            if name in step:
                del step[name]
                return f"steps[{i}].{name}"
        return None

    return change


def _branch(name: str, value: object) -> Change:
    """Put a value into the first branch of a choice, or in its place; None removes it."""

    def change(plain: dict[str, Any]) -> str | None:
        for i, step in enumerate(plain["steps"]):
            if step["kind"] != "choice":
                continue
            place = f"steps[{i}].branches[0]"
            branch = step["branches"][0]
            if not name:
                step["branches"][0] = value
                return place
            if value is None:
                del branch[name]
            else:
                branch[name] = value
            return f"{place}.{name}"
        return None

    return change


def _approver(name: str) -> Change:
    def change(plain: dict[str, Any]) -> str | None:
        for i, step in enumerate(plain["steps"]):
            if step["kind"] == "approval":
                step["approvers"] = [name]
                return f"steps[{i}].approvers[0]"
        return None

    return change


def _unknown_branch(plain: dict[str, Any]) -> str | None:
    """Let a step wait for a branch that its choice has not."""
    for step in plain["steps"]:
        if step["kind"] == "choice":
            asks = f'steps["{step["id"]}"] == "no such branch"'
            late = {"kind": "task", "id": "late", "type": "t", "after": [step["id"]], "when": asks}
            plain["steps"].append(late)
            return f"steps[{len(plain['steps']) - 1}].when"
    return None


def _wait(step: dict[str, Any], other: object) -> int:
    after = step.setdefault("after", [])
    after.append(other)
    if step["kind"] == "map":
        step["over"] = next((name for name in after if isinstance(name, str)), "")
    return len(after) - 1


def _waits_for(other: object) -> Change:
    def change(plain: dict[str, Any]) -> str:
        j = _wait(plain["steps"][-1], other)
        return f"steps[{len(plain['steps']) - 1}].after[{j}]"

    return change


def _waits_for_itself(plain: dict[str, Any]) -> str:
    return f"steps[0].after[{_wait(plain['steps'][0], plain['steps'][0]['id'])}]"


def _waits_twice(plain: dict[str, Any]) -> str | None:
    for i, step in enumerate(plain["steps"]):
        if step.get("after"):
            return f"steps[{i}].after[{_wait(step, step['after'][0])}]"
    return None


def _same_id(plain: dict[str, Any]) -> str:
    plain["steps"].append({**plain["steps"][0], "after": []})
    return f"steps[{len(plain['steps']) - 1}].id"


def _delay_above_its_bound(plain: dict[str, Any]) -> str | None:
    for i, step in enumerate(plain["steps"]):
        if step["kind"] in ("task", "agent_loop"):
            step["retry"] = {"delay_s": 90, "max_delay_s": 80}
            return f"steps[{i}].retry.max_delay_s"
    return None


def _not_a_step(plain: dict[str, Any]) -> str:
    plain["steps"].append("fetch")
    return f"steps[{len(plain['steps']) - 1}]"


#: Faults by name: the change, and whether JSON schema can see it.
FAULTS: dict[str, tuple[Change, bool]] = {
    "bad workflow name": (_top("name", "code review"), True),
    "no steps": (_top("steps", []), True),
    "steps is no list": (_top("steps", {"a": 1}), True),
    "unknown field": (_top("stepz", []), True),
    "description is no text": (_top("description", 5), True),
    "description too long": (_top("description", "x" * 10_001), True),
    "negative run timeout": (_top("timeout_s", -1), True),
    "input schema is no object": (_top("input_schema", [1]), True),
    "bad step id": (_set("id", "a.b"), True),
    "bad task type": (_set("type", "llm review"), True),
    "bad signal name": (_set("signal", "approve>"), True),
    "id too long": (_set("id", "x" * 65), True),
    "id missing": (_drop("id"), True),
    "kind missing": (_drop("kind"), True),
    "type missing": (_drop("type"), True),
    "signal missing": (_drop("signal"), True),
    "bound missing": (_drop("max_iterations"), True),
    "bound 0": (_set("max_iterations", 0), True),
    "bound negative": (_set("max_iterations", -3), True),
    "bound over the limit": (_set("max_iterations", 1_000_001), True),
    "bound is text": (_set("max_iterations", "10"), True),
    "bound is a fraction": (_set("max_iterations", 2.5), True),
    "bound is a boolean": (_set("max_iterations", True), True),
    "bound is nothing": (_set("max_iterations", None), True),
    "unknown kind": (_set("kind", "agent-loop", having="id"), True),
    "unknown step field": (_set("after_", ["x"], having="id"), True),
    "negative timeout": (_set("timeout_s", -0.5), True),
    "negative loop delay": (_set("loop_delay_s", -1), True),
    "eleven years": (_set("max_duration_s", 11 * 366 * 24 * 3600), True),
    "after is a word": (_set("after", "fetch"), True),
    "unknown limit": (_set("on_limit", "explode"), True),
    "no attempts": (_set("retry.max_attempts", 0), True),
    "too many attempts": (_set("retry.max_attempts", 1001), True),
    "jitter over 1": (_set("retry.jitter", 1.5), True),
    "shrinking delays": (_set("retry.multiplier", 0.5), True),
    "unknown backoff": (_set("retry.backoff", "expo"), True),
    "unknown retry field": (_set("retry.attempts", 3), True),
    "retry is no object": (_set("retry", 3), True),
    "entry of after is no name": (_waits_for(7), True),
    "waits twice": (_waits_twice, True),
    "not a step": (_not_a_step, True),
    "same id": (_same_id, False),
    "quorum negative": (_set("quorum", -1), True),
    "quorum above after": (_set("quorum", 900), False),
    "condition is no expression": (_set("when", "input >"), False),
    "condition with attribute": (_set("when", "input.total > 3"), False),
    "condition of another step": (_set("when", 'steps["no-such-step"]'), False),
    "condition too long": (_set("when", "1 + " * 500 + "1"), True),
    "schema of an input is none": (_set("input_schema", 3), True),
    "schema of an output is none": (_set("output_schema", "string"), True),
    "schema of a result is none": (_top("output_schema", []), True),
    "no event": (_drop("event"), True),
    "event of no name": (_set("event", "order paid"), True),
    "event of a wildcard": (_set("event", "order.*"), True),
    "event of an empty word": (_set("event", "order..paid"), True),
    "match is no expression": (_set("match", "event >"), False),
    "match of another step": (_set("match", 'steps["no-such-step"] == event'), False),
    "match too long": (_set("match", "1 + " * 500 + "1"), True),
    "condition asks for an event": (_set("when", 'event["id"]'), False),
    "choice without branches": (_set("branches", []), True),
    "choice without a default": (_drop("default"), True),
    "branch is no branch": (_branch("", "big"), True),
    "unknown field of a branch": (_branch("then", "fetch"), True),
    "branch without a condition": (_branch("when", None), True),
    "condition of a branch is none": (_branch("when", "input >"), False),
    "branch of no name": (_branch("name", "two words"), True),
    "unknown branch": (_unknown_branch, False),
    "undone by a choice": (_set("compensate", "route"), False),
    "nobody may approve": (_approver(""), True),
    "prompt too long": (_set("prompt", "x" * 4_001), True),
    "undoes itself": (_set("compensate", "fetch"), False),
    "unknown compensation": (_set("compensate", "no-such-step"), False),
    "unknown handler": (_set("on_failure", "no-such-step"), False),
    **map_faults.FAULTS,
    **metadata_faults.FAULTS,
    **planner_faults.FAULTS,
    **sleep_faults.FAULTS,
    "unknown step": (_waits_for("no-such-step"), False),
    "waits for itself": (_waits_for_itself, False),
    "delay above its bound": (_delay_above_its_bound, False),
}


SAMPLE = WorkflowDefinition(
    name="code-review",
    steps=(
        TaskStep(id="fetch", type="fetch-diff"),
        AgentLoopStep(id="review", type="llm-review", after=("fetch",), max_iterations=10),
        SignalStep(id="approved", signal="approve", after=("review",)),
        SleepStep(id="rest", duration_s=5, after=("review",)),
        ChoiceStep(id="route", branches=(Branch("big", 'input["n"] > 3'),), default="small"),
        EventStep(id="paid", event="order.paid", match='event["id"] == input["id"]'),
        ApprovalStep(id="allowed", prompt="Go on?", approvers=("ada",)),
        MapStep(id="check", type="check", after=("review",)),
        PlannerStep(id="more", type="plan", after=("review",)),
    ),
)
"""Sound, and has a place for every fault."""


def broken(definition: WorkflowDefinition, name: str) -> Fault | None:
    """Return the definition with that fault; None if it has no such part."""
    plain = copy.deepcopy(to_plain(definition))
    change, in_schema = FAULTS[name]
    path = change(plain)
    return None if path is None else Fault(plain, path, in_schema)


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    """Return a sound definition with one fault."""
    definition, names = draw(definitions()), sorted(FAULTS)
    first = draw(st.integers(0, len(names) - 1))
    # Most faults need a kind of step that few definitions have: the next one that fits this.
    tried = (broken(definition, name) for name in (*names[first:], *names[:first]))
    return next(fault for fault in tried if fault is not None)
