"""What happens to one step, in any order: verbs of ``StepWalk`` with their arguments."""

from __future__ import annotations

from hypothesis import strategies as st
from tests.core import strategies as own

_waits = st.sampled_from((0, 0, 1, 40, 300, 5_000, 60_000, 400_000))


def moves() -> st.SearchStrategy[list[tuple[str, dict[str, object]]]]:
    """What happens to one step: verbs of ``StepWalk`` with their arguments, in any order."""
    arguments: dict[str, dict[str, st.SearchStrategy[object]]] = {
        "continue_": {"delay_ms": st.sampled_from((-1, -1, 0, 100, 40_000)), "spent": own.told},
        "complete": {"newest": st.sampled_from((0, 0, 10**6)), "takes_messages": st.booleans()},
        "wait": {
            "due_in_ms": st.sampled_from((0, 0, 300, 60_000)),
            "takes_messages": st.booleans(),
            "spent": own.told,
        },
        "message": {},
        "fail": {
            "type": st.sampled_from(own.ERRORS),
            "retryable": st.sampled_from((True, True, True, False)),
            "retry_after_ms": st.sampled_from((0, 0, 500, 50_000)),
            "spent": own.told,
        },
        "lose": {},
        "due": {},
        "wake": {},
        "deadline": {},
        "resume": {
            "add_iterations": st.integers(0, 2),
            "add_duration_ms": st.sampled_from((0, 1_000, 1_000_000)),
        },
    }
    verbs = ("continue_",) * 3 + ("fail",) * 2 + ("due", "wake") * 2 + tuple(arguments)
    return st.lists(
        st.sampled_from(verbs).flatmap(
            lambda verb: st.tuples(
                st.just(verb), st.fixed_dictionaries({**arguments[verb], "after_ms": _waits})
            )
        ),
        max_size=30,
    )
