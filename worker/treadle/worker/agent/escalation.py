"""Who else is asked when nobody answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from treadle.sdk.limits import DURATION_S_MAX

ESCALATIONS_MAX = 20
"""Each wakes the run for one iteration; a longer chain is a mistake."""


class Escalation(msgspec.Struct, frozen=True, kw_only=True):
    """If nobody has answered so long after the question was asked, somebody else is asked too.

    The run wakes, tells it with the event ``agent_run.escalated``, and waits on; the question
    names the new addressee.
    """

    after: timedelta
    to: str
    """Whom to ask, as whoever looks at open questions knows them: a name, a role, a queue."""


def escalation_problems(levels: Sequence[Escalation], timeout: timedelta) -> list[str]:
    """Return what is wrong with the escalations of an agent."""
    found: list[str] = []
    if not timedelta(0) <= timeout <= timedelta(seconds=DURATION_S_MAX):
        found.append(f"approval_timeout is {timeout}: it is 0, for ever, to ten years")
    if len(levels) > ESCALATIONS_MAX:
        found.append(f"approval_escalation has {len(levels)} levels, at most {ESCALATIONS_MAX}")
    earlier = timedelta(0)
    for number, level in enumerate(levels, 1):
        where = f"approval_escalation level {number}"
        if not level.to.strip():
            found.append(f"{where} names nobody: give to=")
        if level.after <= earlier:
            found.append(f"{where} comes after {level.after}: it has to be later than {earlier}")
        if timeout and level.after >= timeout:
            found.append(
                f"{where} comes after {level.after}, when approval_timeout={timeout} has ended "
                "the wait"
            )
        earlier = max(earlier, level.after)
    return found
