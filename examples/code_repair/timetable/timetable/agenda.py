"""A room's day as text."""

from timetable.clock import format_clock, format_duration
from timetable.room import Room
from timetable.span import merge


def usage_percent(room: Room) -> int:
    """Return the share of the opening hours that is booked, rounded down."""
    taken = sum(span.minutes for span in merge(booking.span for booking in room.bookings))
    return taken * 100 // room.hours.minutes


def agenda(room: Room) -> str:
    """Return the bookings in order of time, one a line, under a heading."""
    lines = [f"{room.name}, {usage_percent(room)} % booked"]
    for booking in sorted(room.bookings, key=lambda booking: booking.span):
        start, end = format_clock(booking.span.start), format_clock(booking.span.end)
        length = format_duration(booking.span.minutes)
        lines.append(f"{start} to {end}  {booking.title} ({length})")
    return "\n".join(lines)
