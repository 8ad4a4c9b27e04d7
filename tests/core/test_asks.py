"""What people are asked stands in a register exactly while the step waits with it.
Method: properties after any life of a step, with asks at its verdict to wait."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.moves import moves
from tests.core.walks import StepWalk

from treadle.engine.core.bounds import task_of
from treadle.sdk.asks import ASKS_BYTES_MAX, Ask
from treadle.sdk.definition import AgentLoopStep, Retry
from treadle.sdk.messages import Ended, Parked, Register, StepWaiting, Task

LOOP = AgentLoopStep(id="a", type="think", max_iterations=9, max_duration_s=10)
ASKS = (Ask(id="one", kind="approval", tool="pay", args_hash="f"), Ask(id="two", text="Which?"))
Moves = list[tuple[str, dict[str, Any]]]


@pytest.mark.parametrize("what", ["message", "wake", "resume"])
def test_asks_come_with_the_wait_and_go_with_it(what: str) -> None:
    walk = StepWalk(LOOP)
    parked = walk.wait(due_in_ms=60_000, asks=ASKS)
    assert parked.asks == ASKS
    task = getattr(walk, what)(after_ms=60_000)
    assert isinstance(task, Task)
    assert b'"asks"' not in msgspec.json.encode(task)
    # Who waits again with one of them asks that one only.
    assert walk.wait(asks=ASKS[1:]).asks == ASKS[1:]


def test_a_wait_that_is_none_asks_nothing() -> None:
    assert isinstance(StepWalk(LOOP).wait(due_in_ms=-1, asks=ASKS), Task)
    at_bound = msgspec.structs.replace(LOOP, max_iterations=1, on_limit="park")
    parked = StepWalk(at_bound).wait(asks=ASKS)
    assert (parked.waits, parked.asks) == (False, ())


def test_what_a_worker_asks_too_much_is_cut_by_the_engine() -> None:
    big = msgspec.Raw(msgspec.json.encode("x" * 400_000))
    parked = StepWalk(LOOP).wait(asks=(Ask(id="one", input=big),))
    assert len(msgspec.json.encode(parked.asks)) < ASKS_BYTES_MAX
    assert parked.asks[0].full_bytes == 400_002


@pytest.mark.parametrize("what", ["message", "wake", "resume"])
def test_the_iteration_after_a_wait_names_what_was_asked_and_the_next_one_does_not(
    what: str,
) -> None:
    retry = Retry(max_attempts=3, delay_s=0)
    walk = StepWalk(msgspec.structs.replace(LOOP, retry=retry, max_duration_s=0))
    walk.wait(due_in_ms=60_000, asks=ASKS)
    wait = walk.events
    assert getattr(walk, what)(after_ms=60_000).asked == wait
    assert walk.fail().asked == wait, "another attempt looks at the same"
    walk.lose()
    assert task_of(walk.now).asked == wait
    walk.due(after_ms=60_000)
    assert walk.continue_().asked == 0
    walk.wait()
    assert walk.message().asked == 0


def test_a_wait_that_is_over_at_once_names_its_asks_all_the_same() -> None:
    walk = StepWalk(LOOP)
    task = walk.wait(due_in_ms=-1, asks=ASKS)
    assert task.asked == walk.events
    assert walk.wait(due_in_ms=-1).asked == 0, "the next one asks nothing"


@given(own.loop_steps(), moves(), st.booleans(), moves())
def test_a_register_asks_if_and_only_if_its_value_was_made_by_a_wait_that_asks(
    step: AgentLoopStep, before: Moves, asks: bool, after: Moves
) -> None:
    walk = StepWalk(step)
    for verb, arguments in before:
        getattr(walk, verb)(**arguments)
    assert not any(map(_asks, walk.values))
    was = walk.now
    value = walk.wait(asks=ASKS if asks else ())
    is_waiting = value is not was and isinstance(value, Parked) and value.waits
    assert _asks(value) == (ASKS if asks and is_waiting else ())
    for verb, arguments in after:
        standing = walk.now
        getattr(walk, verb)(**arguments)
        assert _asks(walk.now) == (_asks(value) if walk.now is value else ())
        if isinstance(standing, Ended):
            break


def _asks(register: Register) -> tuple[Ask, ...]:
    return register.asks if isinstance(register, Parked) else ()


def test_a_register_of_the_last_version_asks_nothing() -> None:
    waiting = {"event": "step.waiting", "step": "a", "type": "think", "token": 1, "head": 1}
    event = msgspec.convert(waiting, StepWaiting)
    assert event.asks == ()
    parked = StepWalk(LOOP).wait()
    raw = msgspec.to_builtins(parked, enc_hook=str)
    assert "asks" not in raw
