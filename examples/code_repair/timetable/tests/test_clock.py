import pytest

from timetable.clock import format_clock, format_duration, parse_clock, parse_duration


def test_a_time_of_day_is_minutes_since_midnight() -> None:
    assert parse_clock("9:30") == 570
    assert parse_clock(" 00:00 ") == 0
    assert parse_clock("24:00") == 1440


@pytest.mark.parametrize("text", ["9:60", "24:01", "930", "-1:00", ""])
def test_what_is_no_time_of_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a time of day"):
        parse_clock(text)


def test_a_formatted_time_has_two_digits_for_hours_and_minutes() -> None:
    assert format_clock(570) == "09:30"
    assert format_clock(545) == "09:05"


@pytest.mark.parametrize(("text", "minutes"), [("45m", 45), ("2h", 120), ("1h30m", 90)])
def test_durations_are_read_and_written(text: str, minutes: int) -> None:
    assert parse_duration(text) == minutes
    assert format_duration(minutes) == text
