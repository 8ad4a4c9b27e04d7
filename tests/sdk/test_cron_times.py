"""When a cron expression fires, in every zone and across every change of clocks.
Method: named days on which clocks change; and a search, minute by minute, that knows no rule but
what the clocks show, against which any expression is compared."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.sdk import UserError
from treadle.sdk.triggers.times import firings_of, next_after

LORD_HOWE = "Australia/Lord_Howe"
#: Zones with the hours around which their clocks change: back and forth, by an hour, by half an
#: hour, at midnight, and over a whole day.
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    (LORD_HOWE, datetime(2026, 4, 4, 15, tzinfo=UTC)),
    (LORD_HOWE, datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("America/Santiago", datetime(2026, 9, 6, 4, tzinfo=UTC)),
    ("America/Havana", datetime(2026, 11, 1, 5, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),
    ("UTC", datetime(2026, 3, 1, tzinfo=UTC)),
]


def ms(at: datetime) -> int:
    return int(at.timestamp()) * 1_000


def shown(expression: str, zone: str, since: str, count: int) -> list[str]:
    """Return the next firings after a local time, as the clocks of the zone show them."""
    after = datetime.fromisoformat(since).replace(tzinfo=ZoneInfo(zone))
    found = firings_of(expression, zone).upcoming(ms(after), count)
    local = [datetime.fromtimestamp(at / 1_000, ZoneInfo(zone)) for at in found]
    return [f"{at:%m-%d %H:%M %z}" for at in local]


@pytest.mark.parametrize(
    ("expression", "zone", "since", "expected"),
    [
        # 02:00 to 03:00 does not exist on 29 March, and exists twice on 25 October.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00",
            ["03-29 03:00 +0200", "03-30 02:30 +0200"],
        ),
        (
            "0,30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00",
            ["03-29 03:00 +0200", "03-30 02:00 +0200"],
        ),
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00",
            ["10-25 02:30 +0200", "10-26 02:30 +0100"],
        ),
        (
            "30 * * * *",
            "Europe/Berlin",
            "2026-03-29T01:00",
            ["03-29 01:30 +0100", "03-29 03:30 +0200"],
        ),
        (
            "*/30 2 * * *",
            "Europe/Berlin",
            "2026-10-25T01:00",
            ["10-25 02:00 +0200", "10-25 02:30 +0200", "10-25 02:00 +0100", "10-25 02:30 +0100"],
        ),
        ("*/30 2 * * *", "Europe/Berlin", "2026-03-29T01:00", ["03-30 02:00 +0200"]),
        (
            "30 2 * * *",
            "America/New_York",
            "2026-03-07T12:00",
            ["03-08 03:00 -0400", "03-09 02:30 -0400"],
        ),
        (
            "30 1 * * *",
            "America/New_York",
            "2026-10-31T12:00",
            ["11-01 01:30 -0400", "11-02 01:30 -0500"],
        ),
        # 02:00 to 02:30 does not exist on 4 October; 01:30 to 02:00 exists twice on 5 April.
        ("15 2 * * *", LORD_HOWE, "2026-10-03T12:00", ["10-04 02:30 +1100", "10-05 02:15 +1100"]),
        (
            "45 * * * *",
            LORD_HOWE,
            "2026-10-04T01:50",
            ["10-04 02:45 +1100", "10-04 03:45 +1100"],
        ),
        (
            "45 * * * *",
            LORD_HOWE,
            "2026-04-05T01:00",
            ["04-05 01:45 +1100", "04-05 01:45 +1030", "04-05 02:45 +1030"],
        ),
        ("*/15 2 * * *", LORD_HOWE, "2026-04-05T00:00", ["04-05 02:00 +1030", "04-05 02:15 +1030"]),
        # Midnight does not exist on 6 September.
        (
            "0 0 * * *",
            "America/Santiago",
            "2026-09-05T12:00",
            ["09-06 01:00 -0300", "09-07 00:00 -0300"],
        ),
        ("@daily", "Europe/Berlin", "2026-03-28T12:00", ["03-29 00:00 +0100", "03-30 00:00 +0200"]),
        ("0 9 * * mon-fri", "Europe/Berlin", "2026-10-23T09:00", ["10-26 09:00 +0100"]),
        ("0 0 LW * *", "UTC", "2026-02-01T00:00", ["02-27 00:00 +0000"]),
        ("0 0 29 2 *", "UTC", "2096-03-01T00:00", ["02-29 00:00 +0000"]),
    ],
)
def test_where_clocks_are_changed_it_fires_at(
    expression: str, zone: str, since: str, expected: list[str]
) -> None:
    assert shown(expression, zone, since, len(expected)) == expected


def test_the_next_firing_after_any_instant_between_two_equal_times_is_a_later_one() -> None:
    """Also where the clocks show once more what was fired already."""
    between = datetime(2026, 10, 25, 1, 15, tzinfo=UTC)
    found = next_after("30 2 * * *", "Europe/Berlin", ms(between))
    assert found == ms(datetime(2026, 10, 26, 1, 30, tzinfo=UTC))


_STARRED = st.sampled_from(["*", "*/7", "*/15", "*/30"])
_MINUTES = st.sampled_from(["0", "15", "45", "59", "0,30", "5-50/15"])
_HOURS = st.sampled_from(["0", "1", "2", "3", "1-3", "23", "0,2"])
_DAYS = st.sampled_from(["* * *", "* * sun", "*/2 * *", "1-7 * mon", "L * *", "30,31 * *"])
_change = st.sampled_from(CHANGES)
_offset = st.integers(-30 * 3600, 30 * 3600)


def matches(expression: str, local: datetime) -> bool:
    return next(CronSim(expression, local - timedelta(seconds=1))) == local


@settings(max_examples=40, deadline=None)
@given(_STARRED | _MINUTES, _STARRED | _HOURS, _DAYS, _change, _offset)
def test_any_schedule_without_a_time_of_day_fires_whenever_the_clocks_show_it(
    minute: str, hour: str, days: str, change: tuple[str, datetime], offset_s: int
) -> None:
    minute = minute if hour.startswith("*") else "*"
    expression, (zone, around) = f"{minute} {hour} {days}", change
    start = around + timedelta(seconds=offset_s)
    found = next_after(expression, zone, ms(start))
    at = start.replace(second=0, microsecond=0) + timedelta(minutes=1)
    until = min(datetime.fromtimestamp(found / 1_000, UTC), start + timedelta(hours=6))
    while at < until:
        assert not matches(expression, at.astimezone(ZoneInfo(zone)).replace(tzinfo=None)), at
        at += timedelta(minutes=1)
    local = datetime.fromtimestamp(found / 1_000, ZoneInfo(zone)).replace(tzinfo=None)
    assert matches(expression, local)


@settings(max_examples=60, deadline=None)
@given(_MINUTES, _HOURS, _DAYS, _change)
def test_a_time_of_day_fires_once_for_each_day_that_has_it(
    minute: str, hour: str, days: str, change: tuple[str, datetime]
) -> None:
    expression, (zone, around) = f"{minute} {hour} {days}", change
    start = around - timedelta(days=2)
    found = firings_of(expression, zone).upcoming(ms(start), 40)
    locals_ = CronSim(expression, start.astimezone(ZoneInfo(zone)).replace(tzinfo=None))
    expected: list[int] = []
    while len(expected) < len(found):
        local = next(locals_).replace(tzinfo=ZoneInfo(zone))
        at = local.astimezone(UTC)
        if at.astimezone(ZoneInfo(zone)).replace(tzinfo=None) != local.replace(tzinfo=None):
            at = _end_of_gap(local)
        if not expected or expected[-1] != ms(at):
            expected.append(ms(at))
    assert list(found) == expected


def _end_of_gap(local: datetime) -> datetime:
    """Return the first minute at which the clocks show more than a time that does not exist."""
    at = local.astimezone(UTC) - timedelta(hours=25)
    while at.astimezone(local.tzinfo).replace(tzinfo=None) < local.replace(tzinfo=None):
        at += timedelta(minutes=1)
    return at


@settings(max_examples=80, deadline=None)
@given(
    st.one_of(
        st.builds("{} {} {}".format, _STARRED | _MINUTES, _STARRED | _HOURS, _DAYS),
        st.sampled_from(["@hourly", "@weekly", "@every 7s", "@every 1h30m"]),
    ),
    _change,
    _offset,
    st.integers(1, 3),
)
def test_firings_only_increase_and_the_newest_are_the_last_of_them(
    expression: str, change: tuple[str, datetime], offset_s: int, count: int
) -> None:
    zone, around = change
    start = ms(around + timedelta(seconds=offset_s))
    firings = firings_of(expression, zone)
    found = firings.upcoming(start, 12)
    assert all(earlier < later for earlier, later in zip((start, *found), found, strict=False))
    for at in found[:3]:
        assert next_after(expression, zone, at - 1) == at
    assert firings.newest(found[0], found[-1], count) == found[-count:]
    assert firings.newest(found[0], found[-1] + 1, 100) == found
    assert firings.newest(found[2], found[-1] - 1, 100) == found[2:-1]


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("61 * * * *", "the minute field '61' is wrong"),
        ("* 24 * * *", "the hour field '24' is wrong"),
        ("* * 0 * *", "the day-of-month field '0' is wrong"),
        ("* * * foo *", "the month field 'foo' is wrong"),
        ("0 9 * * mon-fryday", "the day-of-week field 'mon-fryday' is wrong"),
        ("0 9 * *", "has 4 fields, and five are wanted: minute, hour, day-of-month"),
        ("0 0 9 * * *", "has 6 fields"),
        ("", "has 0 fields"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 feb,apr *", "never fires"),
        ("@reboot", "is not known"),
        ("@every", "no interval of one second to 366 days"),
        ("@every 0s", "no interval"),
        ("@every 367d", "no interval"),
        ("@every 10 minutes", "no interval"),
        ("*," * 150 + "*", "200 are allowed"),
    ],
)
def test_a_wrong_expression_is_refused_with_what_is_wrong(expression: str, told: str) -> None:
    with pytest.raises(UserError) as refused:
        firings_of(expression)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("zone", "meant"),
    [
        ("Europe/Berln", "Did you mean 'Europe/Berlin'?"),
        ("berlin", "Did you mean 'Europe/Berlin'?"),
        ("new york", "Did you mean 'America/New_York'?"),
        ("utc", "Did you mean 'UTC'?"),
        ("localtime", "Give a name such as Europe/Berlin"),
        ("../Europe/Berlin", "Did you mean 'Europe/Berlin'?"),
        ("Europe", "is not known"),
        ("", "is not known"),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest_one(zone: str, meant: str) -> None:
    with pytest.raises(UserError) as refused:
        firings_of("@daily", zone)
    assert meant in str(refused.value) and f"time zone {zone!r} is not known" in str(refused.value)
