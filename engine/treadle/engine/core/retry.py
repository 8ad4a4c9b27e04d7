"""How long to wait before the next attempt, and whether there is one."""

from __future__ import annotations

import zlib

from treadle.sdk.definition import Retry
from treadle.sdk.messages import Failure

RETRY_DELAY_MS_MAX = 365 * 24 * 3600 * 1000
"""A year: beyond it a delay is a mistake, and the arithmetic stays far from any overflow."""

LOSS_DELAY_MS = 200
LOSS_DELAY_MS_MAX = 10_000


def draw(run: str, step: str, iteration: int, attempt: int) -> float:
    """Return the jitter's draw in [0, 1): the same on every engine and on every redo."""
    text = f"{run}\x1f{step}\x1f{iteration}\x1f{attempt}"
    return zlib.crc32(text.encode()) / 2**32


def is_exhausted(policy: Retry, failure: Failure, failures: int) -> bool:
    """True when a step that has now failed ``failures`` times is not tried again."""
    return is_final(policy, failure) or failures >= policy.max_attempts


def is_final(policy: Retry, failure: Failure) -> bool:
    """True for a failure after which no attempt is of any use, however many are left."""
    return not failure.retryable or failure.type in policy.non_retryable


def retry_delay_ms(policy: Retry, failures: int, drawn: float, retry_after_ms: int = 0) -> int:
    """Return the delay before the next attempt, after ``failures`` (>= 1) failures.

    ``retry_after_ms`` is the handler's own lower bound; the policy's cap does not cut it.
    """
    base = policy.delay_s
    match policy.backoff:
        case "fixed":
            delay_s = base
        case "linear":
            delay_s = base * failures
        case "exponential":
            delay_s = _exponential(base, policy.multiplier, failures, policy.max_delay_s)
    jittered = delay_s * (1 + policy.jitter * (2 * drawn - 1))
    capped = min(jittered, policy.max_delay_s)
    return min(max(round(capped * 1000), retry_after_ms), RETRY_DELAY_MS_MAX)


def _exponential(base: float, multiplier: float, failures: int, cap: float) -> float:
    delay = base
    for _ in range(failures - 1):
        delay *= multiplier
        if delay >= cap:
            return cap
    return delay


def loss_delay_ms(losses: int) -> int:
    """Return the delay before a task is given out again whose worker vanished.

    The first loss costs nothing; a task that kills worker after worker is slowed down.
    """
    if losses <= 1:
        return 0
    return int(min(LOSS_DELAY_MS * 2 ** (losses - 2), LOSS_DELAY_MS_MAX))
