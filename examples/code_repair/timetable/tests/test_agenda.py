from timetable.agenda import agenda
from timetable.room import Booking, Room
from timetable.span import Span


def test_an_agenda_lists_the_day_in_order() -> None:
    room = Room(
        "Ada", bookings=[Booking("review", Span(780, 840)), Booking("standup", Span(545, 560))]
    )
    assert agenda(room).splitlines() == [
        "Ada, 15 % booked",
        "09:05 to 09:20  standup (15m)",
        "13:00 to 14:00  review (1h)",
    ]


def test_minutes_booked_twice_are_counted_once() -> None:
    room = Room(
        "Ada", bookings=[Booking("workshop", Span(600, 840)), Booking("demo", Span(660, 720))]
    )
    assert agenda(room).startswith("Ada, 50 % booked")
