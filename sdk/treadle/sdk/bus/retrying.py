"""How long to try again: a budget in time, and waits that grow with jitter."""

from __future__ import annotations

import asyncio
import random
from math import inf

from treadle.sdk.bus.acks import ApiError
from treadle.sdk.bus.wire import Unknown
from treadle.sdk.errors import ServerUnavailable, clause

BUDGET_S = 15.0
"""An R3 leader change takes 5 to 7 s; twice that is an outage."""
_WAIT_S_FIRST = 0.02
_WAIT_S_MAX = 0.5


class Backoff:
    """The waits between the tries of one request."""

    __slots__ = ("_budget_s", "_deadline", "_full_deadline", "_loop", "_verb", "_wait_s", "_what")

    def __init__(
        self, what: str, budget_s: float, *, verb: str = "stored", full_s: float | None = None
    ) -> None:
        self._what = what
        self._verb = verb
        self._budget_s = budget_s
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + budget_s
        self._full_deadline = self._loop.time() + (budget_s if full_s is None else full_s)
        self._wait_s = _WAIT_S_FIRST

    async def wait(self, exc: Unknown | ApiError) -> None:
        """Wait before the next try; raise the user's error if there is to be none."""
        if isinstance(exc, ApiError) and not exc.transient:
            raise exc.for_users(self._what) from exc
        is_full = isinstance(exc, ApiError) and exc.is_full
        if self._loop.time() >= min(self._deadline, self._full_deadline if is_full else inf):
            raise self._over(exc) from exc
        await asyncio.sleep(self._wait_s * random.uniform(0.5, 1.0))
        self._wait_s = min(self._wait_s * 2, _WAIT_S_MAX)

    async def wait_short(self, between_s: tuple[float, float]) -> None:
        """Wait a moment: the server has answered, and the next answer may be another."""
        if self._loop.time() >= self._deadline:
            raise self._over(Unknown("other writes were always in flight"))
        await asyncio.sleep(random.uniform(*between_s))

    def _over(self, exc: Unknown | ApiError) -> ServerUnavailable:
        if isinstance(exc, ApiError):
            return exc.for_users(self._what)
        return ServerUnavailable(
            f"{self._what} was not {self._verb} within {self._budget_s:.0f} s: {clause(exc)}. "
            "NATS cannot "
            f"be reached, has no leader, or the namespace is not set up. See `treadle doctor`."
        )
