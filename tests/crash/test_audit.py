"""The audit itself: a sound history passes, and each way of corrupting it is reported.

A checker that has never failed proves nothing; these corruptions are what crashes could do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import msgspec
import pytest
from tests.crash.audit import SIGNAL_MARGIN_MS, Expected, violations
from tests.crash.chain import Baton, link, seed
from tests.crash.evidence import Evidence, Kept

from treadle.sdk.messages import (
    DeadLetter,
    Ended,
    Event,
    Inline,
    MessageSent,
    Register,
    SignalReceived,
    StepCompleted,
    StepContinued,
    Task,
)
from treadle.sdk.run import RunDocument
from treadle.sdk.spending import Spent

ITERATIONS = 3
EXPECTED = [Expected("run", ITERATIONS)]


def sound() -> Evidence:
    """Return the history of a loop of three iterations, and one signal."""
    found = Evidence()
    baton = Baton(state=seed("run"))
    token = 1
    found.registers["run", "loop"].append(Kept(1, 0, _task(0, "e1", baton)))
    for iteration in range(ITERATIONS):
        salt = f"salt{iteration}"
        baton = Baton(
            state=link(baton.state, "run", "loop", iteration, salt),
            previous=baton.state,
            salt=salt,
            iteration=iteration,
        )
        is_last = iteration == ITERATIONS - 1
        settle = StepCompleted if is_last else StepContinued
        sequence, parent = iteration + 10, f"e{iteration + 10}"
        event: Event = settle(step="loop", type="link", token=token, head=token, output=_raw(baton))
        found.events["run"][sequence] = event
        register: Register = _task(iteration + 1, parent, baton)
        if is_last:
            register = Ended(
                parent=parent,
                outcome="completed",
                iterations=ITERATIONS,
                output=_raw(baton),
                spent=Spent(tool_calls=ITERATIONS),
            )
        found.registers["run", "loop"].append(Kept(token + 1, token, register))
        token += 1
    found.events["run"][2] = SignalReceived(name="note", id="s1")
    found.times_ms = {2: 0}
    running = RunDocument(run="run", workflow="chain", definition="0")
    ended_ms = SIGNAL_MARGIN_MS + 1
    completed = msgspec.structs.replace(
        running, status="completed", signals_received=1, ended_ms=ended_ms
    )
    found.documents["run"] = [running, completed]
    return found


def _task(iteration: int, parent: str, baton: Baton) -> Task:
    return Task(
        parent=parent,
        workflow="chain",
        definition="0",
        loop=True,
        iteration=iteration,
        input=Inline(_raw(baton)),
    )


def _raw(baton: Baton) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(baton))


def test_a_sound_history_passes() -> None:
    assert violations(sound(), EXPECTED) == []


# ---------------------------------------------------------------- corruptions


def _edit(found: Evidence, index: int, **changes: object) -> None:
    kept = found.registers["run", "loop"]
    kept[index] = kept[index]._replace(
        register=msgspec.structs.replace(kept[index].register, **changes)
    )


def _edit_run(found: Evidence, **changes: object) -> None:
    documents = found.documents["run"]
    documents[-1] = msgspec.structs.replace(documents[-1], **changes)


def _edit_settle(found: Evidence, sequence: int, **changes: object) -> None:
    event = found.events["run"][sequence]
    assert isinstance(event, StepContinued | StepCompleted)
    baton = msgspec.structs.replace(msgspec.json.decode(event.output, type=Baton), **changes)
    found.events["run"][sequence] = msgspec.structs.replace(event, output=_raw(baton))


def no_document(found: Evidence) -> None:
    del found.documents["run"]


def not_ended(found: Evidence) -> None:
    found.documents["run"].pop()


def ended_twice(found: Evidence) -> None:
    found.documents["run"].append(found.documents["run"][-1])


def status_changed(found: Evidence) -> None:
    found.documents["run"].append(
        msgspec.structs.replace(found.documents["run"][-1], status="cancelled")
    )


def wrong_status(found: Evidence) -> None:
    _edit_run(found, status="cancelled")


def failed_without_letter(found: Evidence) -> None:
    _edit_run(found, status="failed")


def two_letters(found: Evidence) -> None:
    found.letters["run"] = [DeadLetter(reason="run_failed", run="run")] * 2


def signal_twice(found: Evidence) -> None:
    _edit_run(found, signals_received=2)


def signal_lost(found: Evidence) -> None:
    _edit_run(found, signals_received=0)


def live_register(found: Evidence) -> None:
    found.registers["run", "loop"].pop()


def moved_after_its_end(found: Evidence) -> None:
    kept = found.registers["run", "loop"]
    kept.append(kept[0]._replace(sequence=9, replaced=4))


def one_event_moved_it_twice(found: Evidence) -> None:
    _edit(found, 2, parent="e10")


def iteration_skipped(found: Evidence) -> None:
    _edit(found, 1, iteration=2)


def iteration_back(found: Evidence) -> None:
    _edit(found, 2, iteration=0)


def attempt_back(found: Evidence) -> None:
    _edit(found, 0, attempt=3)
    _edit(found, 1, iteration=0, attempt=2)


def too_few_iterations(found: Evidence) -> None:
    _edit(found, 3, iterations=2)


def another_token(found: Evidence) -> None:
    event = found.events["run"][11]
    assert isinstance(event, StepContinued)
    found.events["run"][11] = msgspec.structs.replace(event, token=77)


def no_such_event(found: Evidence) -> None:
    _edit(found, 2, parent="t7")


def link_lost(found: Evidence) -> None:
    del found.events["run"][11]


def another_salt(found: Evidence) -> None:
    _edit_settle(found, 11, salt="other")


def alien_checkpoint(found: Evidence) -> None:
    _edit_settle(found, 11, is_alien=True)


def another_iteration(found: Evidence) -> None:
    _edit_settle(found, 11, iteration=0)


def another_seed(found: Evidence) -> None:
    _edit_settle(found, 10, previous="other")


def spent_twice(found: Evidence) -> None:
    _edit(found, -1, spent=Spent(tool_calls=ITERATIONS + 1))


def ended_over_a_message(found: Evidence) -> None:
    events = found.events["run"]
    last = events[ITERATIONS + 9]
    assert isinstance(last, StepCompleted)
    events[ITERATIONS + 9] = msgspec.structs.replace(last, takes_messages=True, seen=4)
    events[5] = MessageSent(step="loop", id="m1")


CORRUPTIONS: list[Callable[[Evidence], None]] = [
    no_document,
    not_ended,
    ended_twice,
    status_changed,
    wrong_status,
    failed_without_letter,
    two_letters,
    signal_twice,
    signal_lost,
    live_register,
    moved_after_its_end,
    one_event_moved_it_twice,
    iteration_skipped,
    iteration_back,
    attempt_back,
    too_few_iterations,
    another_token,
    no_such_event,
    link_lost,
    another_salt,
    alien_checkpoint,
    another_iteration,
    another_seed,
    spent_twice,
    ended_over_a_message,
]


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda each: each.__name__)
def test_a_corrupted_history_is_reported(corrupt: Callable[[Evidence], None]) -> None:
    found = copy.deepcopy(sound())
    corrupt(found)
    assert violations(found, EXPECTED)
