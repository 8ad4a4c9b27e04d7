import pytest

from timetable.room import Booking, Conflict, Room
from timetable.span import Span


def test_two_rooms_share_no_bookings() -> None:
    Room("Ada").book("planning", "9:00", "10:00")
    assert Room("Grace").bookings == []


def test_bookings_may_follow_each_other_without_a_pause() -> None:
    room = Room("Ada", bookings=[])
    room.book("planning", "9:00", "10:00")
    room.book("review", "10:00", "11:00")
    assert len(room.bookings) == 2


def test_a_taken_or_closed_room_refuses() -> None:
    room = Room("Ada", bookings=[])
    room.book("planning", "9:00", "10:30")
    with pytest.raises(Conflict, match="taken by planning until 10:30"):
        room.book("review", "10:00", "11:00")
    with pytest.raises(Conflict, match="closed"):
        room.book("party", "16:30", "18:00")


def test_a_room_is_free_between_and_after_its_bookings() -> None:
    nested = [Booking("workshop", Span(600, 720)), Booking("demo", Span(630, 660))]
    assert Room("Ada", bookings=nested).free() == [Span(540, 600), Span(720, 1020)]


def test_the_next_free_span_is_long_enough() -> None:
    room = Room("Ada", bookings=[Booking("standup", Span(550, 560))])
    assert room.next_free(15) == Span(560, 575)
    assert room.next_free(30, after="16:45") is None
