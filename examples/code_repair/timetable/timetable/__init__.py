"""Rooms, bookings and the gaps between them. Times are minutes since midnight."""
