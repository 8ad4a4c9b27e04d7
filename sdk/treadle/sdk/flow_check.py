"""Are the limits of a step sound? What ``validation.py`` asks about flow control."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.sdk import expressions, wording
from treadle.sdk.definition import TypedStep
from treadle.sdk.errors import InvalidId, Problem
from treadle.sdk.flow import Concurrency, RateLimit, key_that_names
from treadle.sdk.identifier import is_id
from treadle.sdk.limits import (
    CONCURRENCY_MAX,
    FLOW_LIMITS_MAX,
    WEIGHTS_MAX,
    WORD_CHARS_MAX,
)

WEIGHT_LEAST, WEIGHT_MOST = 0.01, 100.0


def problems_of_flow(step: TypedStep, path: str) -> Iterator[Problem]:
    """Yield what is wrong with the limits, the priority and the fairness of a step."""
    for name in ("concurrency", "rate_limits"):
        yield from _limits(step, getattr(step, name), wording.field(path, name))
    for name in ("priority", "fair_by"):
        yield from _expression(step, getattr(step, name), wording.field(path, name))
    if (step.priority or step.fair_by) and not step.concurrency:
        yield Problem(
            wording.field(path, "priority" if step.priority else "fair_by"),
            "it says who comes first of those that wait for a slot, and the step has no "
            "concurrency limit to wait for. Add one, or remove this.",
        )
    yield from _weights(step, wording.field(path, "weights"))


def _limits(
    step: TypedStep, limits: tuple[Concurrency | RateLimit, ...], path: str
) -> Iterator[Problem]:
    if len(limits) > FLOW_LIMITS_MAX:
        yield Problem(
            path,
            f"the step has {len(limits)} of them, and {FLOW_LIMITS_MAX} are allowed, because each "
            "dispatch takes a slot of every one. Remove some.",
        )
    seen: set[tuple[str, str, str]] = set()
    for i, limit in enumerate(limits):
        where = wording.item(path, i)
        yield from _expression(step, limit.key, wording.field(where, "key"))
        yield from _name(limit, wording.field(where, "name"))
        if isinstance(limit, Concurrency) and limit.limit > CONCURRENCY_MAX:
            yield Problem(
                wording.field(where, "limit"),
                f"limit is {limit.limit}, and {CONCURRENCY_MAX} are allowed, because the record of "
                "a limit names every holder. Lower it, or remove the limit.",
            )
        identity = (limit.scope, limit.name, key_that_names(limit))
        if identity in seen:
            also = f" under the name {limit.name!r}" if limit.name else ""
            text = f"the step has this limit already{also}. Remove one, or give each its own name."
            yield Problem(where, text)
        seen.add(identity)


def _name(limit: Concurrency | RateLimit, path: str) -> Iterator[Problem]:
    if limit.scope == "namespace" and not limit.name:
        yield Problem(
            path, "a limit of the namespace is shared by its name, and has none. Give it one."
        )
    elif limit.name and not is_id(limit.name):
        yield Problem(path, str(InvalidId("limit name", limit.name[:WORD_CHARS_MAX])))


def _expression(step: TypedStep, text: str, path: str) -> Iterator[Problem]:
    advice, what = "Let a step before it put the value together.", "the expression"
    yield from expressions.problems_of(path, text, advice, after=step.after, what=what)


def _weights(step: TypedStep, path: str) -> Iterator[Problem]:
    if step.weights and not step.fair_by:
        yield Problem(path, "weights are by value of fair_by, and the step has none. Add it.")
    if len(step.weights) > WEIGHTS_MAX:
        yield Problem(
            path,
            f"there are {len(step.weights)} of them, and {WEIGHTS_MAX} are allowed. Give groups of "
            "tenants a weight: let fair_by be the group.",
        )
        return
    for name, weight in step.weights.items():
        if not WEIGHT_LEAST <= weight <= WEIGHT_MOST:
            yield Problem(
                wording.field(path, wording.key(name)),
                f"the weight is {weight:g}, but must be from {WEIGHT_LEAST:g} to {WEIGHT_MOST:g}: "
                "it is how many turns one has when another has one. Correct it.",
            )
