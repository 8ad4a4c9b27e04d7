"""Waiting for something to change: woken by the subject it is published to, never only by that.

A core subscription may miss a message and hears it a moment before it can be read, so a ring is
followed by a few quick looks, and a slow poll goes on in any case.
"""

from __future__ import annotations

import asyncio
import time

from treadle.sdk.bus.connection import Connection, Message, Subscription

POLL_S = 1.0
"""Between two looks that nothing asked for: the longest a missed ring can cost."""
RECHECKS_S = (0.0005, 0.001, 0.003, 0.01, 0.05)
"""Looks after a ring, until what rang can be read."""
RECHECK_S = 0.02
"""The one look after a ring that has led to something: it may have been the ring before."""


class Waiter:
    """Wakes its owner when one of some subjects is published to, and every ``POLL_S``.

        async with Waiter(connection, subject) as waiter:
            while not look():
                await waiter.wait()

    A class and not a generator: when an event loop ends it closes all generators at once, and
    one inside the other would be closed twice.
    """

    def __init__(self, connection: Connection, *subjects: str) -> None:
        self._connection = connection
        self._subjects = subjects
        self._subscriptions: list[Subscription] = []
        self._rung = asyncio.Event()
        self._rechecks: list[float] = []
        self._changed = set(subjects)

    async def __aenter__(self) -> Waiter:
        for subject in self._subjects:
            self._subscriptions.append(await self._connection.subscribe(subject, self._ring))
        return self

    async def __aexit__(self, *_: object) -> None:
        while self._subscriptions:
            await self._subscriptions.pop().unsubscribe()

    def _ring(self, message: Message) -> None:
        self._changed.add(message.subject)
        self._rung.set()

    def may_have_changed(self, subject: str) -> bool:
        """Return whether to look at what is stored on one subject.

        True at first, after its ring until the quick looks have been made, and at each poll.
        """
        return subject in self._changed

    async def wait(self, longest_s: float = float("inf"), *, found: bool = False) -> None:
        """Return after a ring, or when it is time to look again.

        ``found`` says that the last look has led to something, so fewer quick ones follow.
        """
        if found and self._rechecks:
            self._rechecks = [RECHECK_S]
        if not self._rechecks and not self._rung.is_set():
            self._changed.clear()
        pause_s = self._rechecks.pop(0) if self._rechecks else POLL_S
        try:
            async with asyncio.timeout(min(pause_s, longest_s)):
                await self._rung.wait()
        except TimeoutError:
            if pause_s == POLL_S:
                self._changed.update(self._subjects)
            return
        self._rung.clear()
        self._rechecks = list(RECHECKS_S)


class Deadline:
    """A bound on a whole operation; None is unlimited."""

    def __init__(self, timeout_s: float | None) -> None:
        self._end = None if timeout_s is None else time.monotonic() + timeout_s

    def remaining_s(self) -> float:
        """Return the seconds left; not positive when the time is over."""
        return float("inf") if self._end is None else self._end - time.monotonic()
