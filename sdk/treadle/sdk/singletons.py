"""Singletons: one run at a time of a workflow, or of a key of it; what a start does that finds one.

    queue         the start waits behind the others: a lane
    skip          the start ends at once, as cancelled
    cancel_older  the others are cancelled, and the start follows when they have ended

The runs of a singleton share a lane that is made of the workflow's name and the key. Those of a
workflow with ``concurrency`` do too, and its lane has more places than one. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from treadle.sdk import conditions, expressions
from treadle.sdk.beginning import AT_ONCE, When
from treadle.sdk.collecting import Batch
from treadle.sdk.definition import Singleton, VersionPolicy, WorkflowDefinition
from treadle.sdk.errors import InvalidPayload, Problem, UserError
from treadle.sdk.lanes import LANE_CHARS_MAX, check_lane
from treadle.sdk.limits import PLACES_MAX
from treadle.sdk.wording import one_of

POLICIES: tuple[Singleton, ...] = get_args(Singleton)
_DIGEST_CHARS = 32


class Placed(NamedTuple):
    """Where a start queues, what it does about the runs before it, when it begins, and whether its
    loops follow newer versions (empty is what the workflow says)."""

    lane: str = ""
    singleton: Singleton = "none"
    priority: int = 0
    places: int = 1
    """Runs of the lane that may be active at once."""
    when: When = AT_ONCE
    version_policy: VersionPolicy | Literal[""] = ""


def placed(
    definition: WorkflowDefinition | None, raw: bytes, lane: str | None, singleton: str | None
) -> Placed:
    """Return the place of a start with this input.

    ``lane`` and ``singleton`` are what the start itself asks for. Raise ``UserError`` if they do
    not go together, ``InvalidPayload`` if the input has nothing where the key looks for it.
    """
    if definition is not None and (rule := _rule(definition)):
        if lane is not None or singleton is not None:
            raise UserError(
                f"workflow {definition.name!r} {rule}, which says "
                "where its runs queue. Start it without a lane and a policy of its own."
            )
        places = max(1, definition.concurrency)
        return Placed(lane_of(definition, raw), definition.singleton, places=places)
    if singleton is None:
        return Placed(check_lane(lane) if lane is not None else "")
    policy = check_policy(singleton)
    if lane is None:
        raise UserError(
            f"singleton {policy!r} says what a start does about the runs of its lane, and it has "
            "no lane. Give it one, such as lane='report:eu'."
        )
    return Placed(check_lane(lane), "none" if policy == "queue" else policy)


def placed_again(
    old: WorkflowDefinition, new: WorkflowDefinition, raw: bytes, given: Placed
) -> Placed:
    """Return the place of a run with this input that is made of another one, whose place is given.

    The version it takes says where it queues, as of any start; a lane that the start of the other
    one gave itself is kept. Raise ``InvalidPayload`` as ``placed`` does.
    """
    if has_lane(new):
        return placed(new, raw, None, None)
    return Placed() if has_lane(old) else given


def check_policy(policy: str) -> Singleton:
    """Return the policy; raise ``UserError`` if there is none of that name."""
    none = f"singleton {policy!r} is none of {', '.join(POLICIES)}."
    return one_of(policy, POLICIES, lambda hint: f"{none} {hint or 'Choose one of them.'}")


def has_lane(definition: WorkflowDefinition) -> bool:
    """True when the workflow itself says where its runs queue."""
    return bool(_rule(definition))


def _rule(definition: WorkflowDefinition) -> str:
    """Return in words what keeps the workflow's runs apart; empty if nothing does."""
    if definition.singleton != "none":
        return f"is a singleton ({definition.singleton})"
    if definition.concurrency:
        return f"has a concurrency of {definition.concurrency}"
    return ""


def lane_of(definition: WorkflowDefinition, raw: bytes) -> str:
    """Return the lane of a run with this input, of a workflow that says where its runs queue."""
    key = definition.singleton_key or definition.concurrency_key
    if not key:
        return definition.name
    try:
        run_input: Any = msgspec.json.decode(raw)
        # The key is that of one start; the run of a batch has a list of them.
        given = run_input[0] if isinstance(definition.collect, Batch) else run_input
        text = conditions.key_of(key, given, {})
    except (conditions.ConditionError, IndexError, KeyError, TypeError) as exc:
        of = "singleton" if definition.singleton_key else "concurrency"
        raise InvalidPayload(
            f"input of workflow {definition.name!r}",
            f"it has no key of the {of}: {exc}",
            "Give it what the key asks for",
        ) from exc
    lane = f"{definition.name}:{text}"
    if len(lane) <= LANE_CHARS_MAX and lane.isprintable():
        return lane
    return f"{definition.name}:{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARS]}"


def problems_of(definition: WorkflowDefinition) -> Iterator[Problem]:
    """Yield what is wrong with what a workflow says about where its runs queue."""
    is_singleton, is_limited = definition.singleton != "none", definition.concurrency != 0
    yield from _key(definition.singleton_key, "singleton", is_there=is_singleton)
    yield from _key(definition.concurrency_key, "concurrency", is_there=is_limited)
    if not 0 <= definition.concurrency <= PLACES_MAX:
        yield Problem(
            "concurrency",
            f"concurrency is {definition.concurrency}, but must be from 0 to {PLACES_MAX}: it "
            "is how many runs are under way at once, where 0 means any number. Correct it; for "
            "more, limit the steps.",
        )
    elif definition.concurrency and definition.singleton != "none":
        yield Problem(
            "concurrency",
            "a singleton has one run at a time, so there is nothing to limit. Remove one of both.",
        )


def _key(key: str, name: str, *, is_there: bool) -> Iterator[Problem]:
    path = f"{name}_key"
    if not key:
        return
    if not is_there:
        text = f"there is a key, and no {name} that it is of. Set {name}, or remove it."
        yield Problem(path, text)
    else:
        yield from expressions.problems_of(path, key, expressions.OF_A_KEY)
