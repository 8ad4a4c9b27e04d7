"""When a sleep by cron is over: asked once, and stored with what was decided of the step.

It is asked as of when it was the step's turn, so that whoever asks again says the same. It
depends on the engine's time zone database, which is why the core is told and does not ask.
"""

from __future__ import annotations

import msgspec

from treadle.engine.core.facts import StepDecided
from treadle.sdk.definition import SleepStep, Step
from treadle.sdk.errors import UserError
from treadle.sdk.limits import DURATION_S_MAX
from treadle.sdk.messages import Failure
from treadle.sdk.run import RunDocument
from treadle.sdk.triggers.times import next_after


def woken_at(run: RunDocument, step: Step, decided: StepDecided) -> StepDecided:
    """Return what was decided, of a sleep by cron that begins with when it is over.

    It is a failure if that cannot be said.
    """
    if not isinstance(step, SleepStep) or not step.cron or not decided.holds:
        return decided
    turn_ms = run.steps[step.id].started_ms
    try:
        until_ms = next_after(step.cron, step.zone, turn_ms)
    except UserError as exc:
        # Whoever registered it has a newer time zone database.
        return _failed(step, str(exc))
    if not 0 < until_ms <= turn_ms + DURATION_S_MAX * 1000:
        text = (
            f"cron expression {step.cron!r} has no time in the next ten years ({step.zone}), and "
            "no sleep is longer"
        )
        return _failed(step, text)
    return msgspec.structs.replace(decided, until_ms=until_ms)


def _failed(step: SleepStep, text: str) -> StepDecided:
    return StepDecided(step.id, False, Failure("condition", text, retryable=False))
