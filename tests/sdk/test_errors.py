"""What errors say: one full stop at the end, nothing empty, iterations of loops only.
Method: make each with the texts that users' code may have, and read it."""

from __future__ import annotations

import pytest

from treadle.sdk.errors import (
    InvalidId,
    InvalidPayload,
    InvariantError,
    RunCancelled,
    RunConflict,
    RunFailed,
    clause,
)
from treadle.sdk.ids import check_id
from treadle.sdk.messages import Failure


@pytest.mark.parametrize("message", ["it broke", "it broke.", "it broke.\n"])
def test_a_users_message_ends_with_one_full_stop(message: str) -> None:
    failed = str(RunFailed("r1", "s", 3, Failure("Boom", message), "Look."))
    assert failed == "run 'r1' failed at step 's', iteration 3: Boom: it broke. Look."
    assert str(RunCancelled("r1", message)) == "run 'r1' was cancelled: it broke."
    assert str(RunCancelled("r1")) == "run 'r1' was cancelled."
    assert str(RunConflict("r1", message, message)) == "run 'r1' it broke. it broke."
    assert str(InvalidPayload("x", message, message)) == "x: it broke. it broke."


@pytest.mark.parametrize(
    ("said", "before_more"),
    [
        ("it broke.", "it broke"),
        ("it broke", "it broke"),
        ("why?", "why?"),
        ("so on...", "so on..."),
    ],
)
def test_what_somebody_else_said_ends_with_one_full_stop_wherever_it_stands(
    said: str, before_more: str
) -> None:
    assert clause(ValueError(f"{said} ")) == before_more
    told = str(InvariantError(said))
    assert told == f"{before_more}. This is a bug of Treadle; please report it."


def test_a_failure_does_not_say_its_type_twice() -> None:
    failure = Failure("condition", "condition input.n cannot be evaluated")
    assert str(failure) == "condition input.n cannot be evaluated"
    assert str(Failure("condition", "conditional")) == "condition: conditional"
    assert str(Failure("Boom", "it broke")) == "Boom: it broke"


def test_an_exception_without_a_text_is_its_type_and_a_plain_step_has_no_iteration() -> None:
    failed = str(RunFailed("r1", "s", None, Failure("KeyboardInterrupt"), "Look."))
    assert failed == "run 'r1' failed at step 's': KeyboardInterrupt. Look."


def test_a_value_of_any_length_is_named_by_its_beginning() -> None:
    text = str(InvalidId("run id", "x" * 5_000))
    assert len(text) < 600 and "(5002 characters)" in text


def test_an_id_that_a_command_would_take_for_an_option_is_refused() -> None:
    for good in ("a-", "_", "0", "a" * 64):
        assert check_id("run id", good) == good
    for bad in ("-", "-x", "--help", "", "a" * 65):
        with pytest.raises(InvalidId, match="the first of them not -"):
            check_id("run id", bad)
