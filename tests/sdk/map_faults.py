"""Sound maps, and what can be wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from treadle.sdk.definition import MapStep, Retry
from treadle.sdk.limits import ITEMS_MAX, PARALLEL_MAX

Change = Callable[[dict[str, Any]], str | None]


def map_steps(
    step_id: str,
    after: tuple[str, ...],
    ids: st.SearchStrategy[str],
    texts: st.SearchStrategy[str],
    seconds: st.SearchStrategy[float],
    retry: Retry,
) -> st.SearchStrategy[MapStep]:
    """Sound maps; one that waits for several steps names one of them."""
    return st.builds(
        MapStep,
        id=st.just(step_id),
        after=st.just(after),
        type=ids,
        over=texts if len(after) < 2 else st.sampled_from(after),
        max_parallel=st.integers(1, PARALLEL_MAX),
        chunk=st.integers(0, ITEMS_MAX),
        tolerated_failures=st.integers(0, ITEMS_MAX),
        timeout_s=seconds,
        retry=st.just(retry),
    )


def _map(field: dict[str, object], after: int = 0) -> Change:
    """Change one field of a map that waits for so many steps at least."""

    def change(plain: dict[str, Any]) -> str | None:
        for i, step in enumerate(plain["steps"]):
            if step["kind"] == "map":
                if after:
                    others = [each["id"] for each in plain["steps"] if each["kind"] == "task"]
                    step["after"] = [*step.get("after", []), *others][:after]
                if len(step.get("after", [])) < after or len(set(step.get("after", []))) < after:
                    return None
                step.update(field)
                return f"steps[{i}].{next(iter(field))}"
        return None

    return change


def _handled_by_a_map(plain: dict[str, Any]) -> str | None:
    maps = [step["id"] for step in plain["steps"] if step["kind"] == "map"]
    for i, step in enumerate(plain["steps"]):
        if maps and step["id"] != maps[0] and not step.get("on_failure"):
            target = next(each for each in plain["steps"] if each["id"] == maps[0])
            target.pop("after", None)
            target.pop("over", None)
            target.pop("quorum", None)
            step["on_failure"] = maps[0]
            return f"steps[{i}].on_failure"
    return None


FAULTS: dict[str, tuple[Change, bool]] = {
    "map of nothing at once": (_map({"max_parallel": 0}), True),
    "map of too much at once": (_map({"max_parallel": 1_001}), True),
    "map of negative chunks": (_map({"chunk": -1}), True),
    "map that tolerates half a failure": (_map({"tolerated_failures": 0.5}), True),
    "map over a key too long": (_map({"over": "x" * 129}), True),
    "map over half a character": (_map({"over": "\ud800"}), False),
    "map over several outputs": (_map({"over": "a"}, 2), False),
    "failure handled by a map": (_handled_by_a_map, False),
}
