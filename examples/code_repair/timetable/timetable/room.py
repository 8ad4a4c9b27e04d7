"""A room and what is booked in it."""

from dataclasses import dataclass

from timetable.clock import format_clock, parse_clock
from timetable.span import Span, gaps


@dataclass(frozen=True)
class Booking:
    title: str
    span: Span


class Conflict(Exception):
    """The span is taken, or the room is closed."""


class Room:
    """A room with opening hours."""

    def __init__(
        self,
        name: str,
        opens: str = "9:00",
        closes: str = "17:00",
        bookings: list[Booking] = [],
    ) -> None:
        self.name = name
        self.hours = Span(parse_clock(opens), parse_clock(closes))
        self.bookings = bookings

    def book(self, title: str, start: str, end: str) -> Booking:
        """Book the room; raise ``Conflict`` if it is closed or taken then."""
        span = Span(parse_clock(start), parse_clock(end))
        if not self.hours.contains(span):
            raise Conflict(f"{self.name} is closed for a part of {start} to {end}")
        for booking in self.bookings:
            if booking.span.overlaps(span):
                until = format_clock(booking.span.end)
                raise Conflict(f"{self.name} is taken by {booking.title} until {until}")
        booking = Booking(title, span)
        self.bookings.append(booking)
        return booking

    def free(self) -> list[Span]:
        """Return the spans in which the room is open and not booked."""
        return gaps(self.hours, (booking.span for booking in self.bookings))

    def next_free(self, minutes: int, after: str = "0:00") -> Span | None:
        """Return the first free span of that length that starts no earlier than ``after``."""
        earliest = parse_clock(after)
        for span in self.free():
            start = max(span.start, earliest)
            if span.end - start >= minutes:
                return Span(start, start + minutes)
        return None
