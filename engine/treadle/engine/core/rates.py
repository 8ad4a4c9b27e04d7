"""When the next may begin under a rate limit: the generic cell rate algorithm, pure.

One number is kept, the theoretical time of the next. Whoever comes earlier than the burst allows is
given a time of its own, once: it need not ask again.
"""

from __future__ import annotations


def reserve(
    next_us: int, now_us: int, interval_us: int, burst: int, count: int = 1
) -> tuple[int, int]:
    """Return the theoretical time after one more, and when that one may begin; microseconds.

    ``count`` is how many begin together: they begin when all of them may. More than the burst
    begin when as many as the burst may, and the next one waits for the rest.
    """
    theoretical = max(next_us, now_us)
    begins = max(now_us, theoretical - (burst - min(count, burst)) * interval_us)
    return theoretical + count * interval_us, begins


def counted_from(next_us: int, stored_us: int, now_us: int) -> int:
    """Return a theoretical time that was stored at a time, by the clock of now; microseconds.

    A clock that was ahead when it was stored, and is right again, shows an earlier time: what is
    reserved counts from then on, and not from when the clock will be there once more.
    """
    return next_us - max(0, stored_us - now_us)
