"""Sound sleeps, and what can be wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from hypothesis import strategies as st

from treadle.sdk.definition import SleepStep

Change = Callable[[dict[str, Any]], str | None]


def sleep_steps(step_id: str) -> st.SearchStrategy[SleepStep]:
    """Sound sleeps of every kind."""
    return st.one_of(
        st.builds(
            SleepStep,
            id=st.just(step_id),
            duration_s=st.floats(0.001, 1e8),
        ),
        st.builds(
            SleepStep,
            id=st.just(step_id),
            until=st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
        ),
        st.builds(SleepStep, id=st.just(step_id), expression=st.just('input["at"]')),
        st.builds(
            SleepStep,
            id=st.just(step_id),
            cron=st.sampled_from(("0 9 * * mon-fri", "@daily", "*/5 * L * *")),
            zone=st.sampled_from(("UTC", "Europe/Berlin")),
        ),
    )


NEW_YEAR = "2027-01-01T00:00:00+01:00"


def _sleep(place: str, length: dict[str, object]) -> Change:
    def change(plain: dict[str, Any]) -> str | None:
        for i, step in enumerate(plain["steps"]):
            if step["kind"] == "sleep":
                plain["steps"][i] = {"kind": "sleep", "id": step["id"], **length}
                plain["steps"][i]["after"] = step.get("after", [])
                return f"steps[{i}].{place}"
        return None

    return change


FAULTS: dict[str, tuple[Change, bool]] = {
    "sleep of no length": (_sleep("duration_s", {"duration_s": 0}), False),
    "sleep of two lengths": (_sleep("duration_s", {"duration_s": 3, "until": NEW_YEAR}), False),
    "sleep of two ways": (_sleep("duration_s", {"until": NEW_YEAR, "expression": "3"}), False),
    "expression is none": (_sleep("expression", {"expression": "input["}), False),
    "sleep by cron and more": (_sleep("duration_s", {"cron": "@daily", "until": NEW_YEAR}), False),
    "cron of four fields": (_sleep("cron", {"cron": "0 9 * *"}), False),
    "cron that never comes": (_sleep("cron", {"cron": "0 0 30 2 *"}), False),
    "cron is long": (_sleep("cron", {"cron": "0 " * 101}), True),
    "zone is none": (_sleep("zone", {"cron": "@daily", "zone": "Europe/Berlim"}), False),
    "zone without cron": (_sleep("zone", {"duration_s": 3, "zone": "Europe/Berlin"}), False),
    "until is no time": (_sleep("until", {"until": "tomorrow"}), False),
    "until without an offset": (_sleep("until", {"until": NEW_YEAR[:19]}), False),
}
