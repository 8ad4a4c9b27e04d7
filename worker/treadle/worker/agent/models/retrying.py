"""Calling a model until it answers, as far as that is safe.

    too early for the provider     wait, and then call; a long wait is ModelBusy
    429                            the same: it takes no retry
    transient, nothing given out   wait, call again
    transient, deltas given out    tell the caller, wait, call again, twice at most
    tool input that is no JSON     call again, once
    a long retry-after             ModelBusy: the caller parks the iteration durably
    anything else                  ModelError, at once

A call whose deltas have been given out is never repeated silently: whoever saw them would see the
answer begin a second time. A caller that can mark them as superseded says so with
``on_superseded``; without it, such a call is not repeated at all.
"""

from __future__ import annotations

import asyncio
import random as _random
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from treadle.sdk.errors import clause
from treadle.worker.agent.core import tokens
from treadle.worker.agent.core.conversation import (
    TRANSIENT,
    ModelError,
    ModelFault,
    ModelRequest,
    ModelResponse,
    RateLimits,
    Usage,
)
from treadle.worker.agent.models.port import Model, OnDelta

LOOK_S = 1.0
"""Whoever waits in its worker looks as often as this."""


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often, and how long to wait between."""

    retries: int = 5
    """After the first call, so at most one more call than this is made."""
    malformed_retries: int = 1
    superseded_retries: int = 2
    """Of ``retries``: after an answer that broke off when its beginning had been given out.
    Fewer, because what was streamed so far has been paid for."""
    first_delay_s: float = 1.0
    """Doubled with each further retry."""
    delay_s_max: float = 60.0
    jitter: float = 0.25
    """Up to this part of the delay is added, so that workers do not call all at once."""
    park_after_s: float = 60.0
    """A longer wait is not slept through in the worker."""
    wait_s_max: float = 5.0
    """How long the worker is held for a budget of the provider; the rest is waited without it."""


class Passage(Protocol):
    """Where calls are reserved and accounted for, together with those of other workers."""

    async def reserve(self, tokens: int) -> tuple[float, str]:
        """Reserve a call; return how many seconds to wait before asking again, and why."""
        ...

    async def settle(self, usage: Usage, said: RateLimits | None) -> None:
        """Take note of what the call has used, and of what the provider said with it."""
        ...

    async def limited(self, fault: ModelFault) -> None:
        """Settle a call that a 429 refused: it comes before all who have not been let in."""
        ...

    @property
    def line(self) -> str:
        """Key of the line in which its run may wait without a worker; '' if it cannot."""
        ...

    async def leave(self) -> None:
        """Give up a place in the line that nobody comes back to."""
        ...


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """A call failed, and another one follows."""

    number: int
    """1 for the first retry."""
    delay_s: float
    fault: ModelFault


class Called(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and what it took."""

    response: ModelResponse
    tries: int
    """Calls made, the successful one included."""
    wasted: Usage
    """Used by the calls that failed; not part of ``response.usage``."""


class ModelBusy(Exception):
    """The provider asks for a longer wait than a worker should sleep through."""

    def __init__(self, retry_after_s: float, fault: ModelFault, tries: int, line: str = "") -> None:
        super().__init__(
            f"{clause(fault.message)}. "
            f"The provider asks to wait {retry_after_s:.0f} s, too long to hold "
            "a worker. Park the iteration for that time."
        )
        self.retry_after_s = retry_after_s
        self.fault = fault
        """Its usage is that of all the calls that failed."""
        self.tries = tries
        self.line = line
        """Key of the line in which it has a place; '' if it has none."""


async def call(
    model: Model,
    request: ModelRequest,
    policy: RetryPolicy | None = None,
    *,
    on_delta: OnDelta | None = None,
    on_retry: Callable[[Retry], None] | None = None,
    on_superseded: Callable[[], None] | None = None,
    timeout_s: float = 600.0,
    api_key: str = "",
    passage: Passage | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    random: Callable[[], float] = _random.random,
) -> Called:
    """Call the model until it answers.

    Raises ``ModelBusy`` when the wait should be parked, else ``ModelError`` of the last call;
    the usage in its fault is that of all the calls made. ``timeout_s`` bounds each call.
    ``on_superseded`` is told before each repetition that the deltas so far do not count.
    """
    policy = policy or RetryPolicy()
    wasted = Usage()
    tries = limited = malformed = superseded = 0
    reserved = 0 if passage is None else tokens.reserved(request)
    while True:
        if passage is not None:
            await _admitted(passage, reserved, policy, wasted, tries, sleep)
        tries += 1
        try:
            response = await model.respond(
                request, on_delta=on_delta, timeout_s=timeout_s, api_key=api_key
            )
            if passage is not None:
                await passage.settle(response.usage, response.limits)
            return Called(response=response, tries=tries, wasted=wasted)
        except ModelError as exc:
            wasted += exc.fault.usage
            fault = msgspec.structs.replace(exc.fault, usage=wasted)
            malformed += fault.kind == "malformed"
            superseded += fault.is_committed
            may_supersede = on_superseded is not None and superseded <= policy.superseded_retries
            is_over = not _is_repeatable(fault, malformed, policy)
            if fault.is_committed and (not may_supersede or fault.kind not in TRANSIENT):
                is_over = True
            is_limited = fault.kind == "rate_limited" and not is_over
            limited += is_limited
            if passage is not None and is_limited:
                await passage.limited(_patient(exc.fault, policy, limited))
            elif passage is not None:
                await passage.settle(exc.fault.usage, exc.fault.limits)
            if is_over:
                raise ModelError(fault) from exc
            line = passage.line if is_limited and passage is not None else ""
            if fault.retry_after_s > policy.park_after_s:
                raise ModelBusy(fault.retry_after_s, fault, tries, line) from exc
            if is_limited and passage is None and limited > policy.retries:
                # It says no more than that it is too early: the call comes later, and not never.
                raise ModelBusy(max(fault.retry_after_s, policy.delay_s_max), fault, tries) from exc
            if not is_limited and tries - limited > policy.retries:
                raise ModelError(fault) from exc
        if fault.is_committed and on_superseded is not None:
            on_superseded()
        # After a 429 the passage says when: to this call, and to those of all others.
        is_told = is_limited and passage is not None
        delay_s = 0.0 if is_told else backoff_s(policy, tries, fault.retry_after_s, random())
        if on_retry is not None:
            on_retry(Retry(number=tries, delay_s=delay_s or fault.retry_after_s, fault=fault))
        if delay_s:
            await sleep(delay_s)


def _patient(fault: ModelFault, policy: RetryPolicy, limited: int) -> ModelFault:
    """Return a 429 with a long wait, if it names none and was not the first."""
    if fault.retry_after_s or limited <= policy.retries:
        return fault
    return msgspec.structs.replace(fault, retry_after_s=policy.delay_s_max)


async def _admitted(
    passage: Passage,
    reserved: int,
    policy: RetryPolicy,
    wasted: Usage,
    tries: int,
    sleep: Callable[[float], Awaitable[None]],
) -> None:
    """Wait until a call may be made; ``ModelBusy`` if that is too long to hold a worker."""
    left_s, may_come_back = policy.wait_s_max, False
    try:
        while True:
            wait_s, why = await passage.reserve(reserved)
            if not wait_s:
                may_come_back = True
                return
            if wait_s > left_s:
                may_come_back = passage.line != ""
                fault = ModelFault(
                    kind="rate_limited", message=why, retry_after_s=wait_s, usage=wasted
                )
                raise ModelBusy(wait_s, fault, tries, passage.line)
            # What others give back may let it in before.
            step_s = min(wait_s, LOOK_S)
            left_s -= step_s
            await sleep(step_s)
    finally:
        if not may_come_back and not passage.line:
            await passage.leave()


def backoff_s(policy: RetryPolicy, retry: int, retry_after_s: float, chance: float) -> float:
    """Return the wait before that retry (1 for the first); never below ``retry_after_s``."""
    doubled = policy.first_delay_s * 2.0 ** min(retry - 1, 60)
    delay_s = min(doubled, policy.delay_s_max) * (1 + policy.jitter * chance)
    return max(delay_s, retry_after_s)


def _is_repeatable(fault: ModelFault, malformed: int, policy: RetryPolicy) -> bool:
    if fault.kind == "malformed":
        return malformed <= policy.malformed_retries
    return fault.kind in TRANSIENT
