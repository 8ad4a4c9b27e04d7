"""A call that a 429 refuses sends nobody on: what it gives back and the pause are one change.

Method: the real gate, with values and lines in memory and a line that says that others sleep; a
scripted model, and a clock that the sleeps move.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tests.agent.models.test_retrying import Scripted
from tests.agent.models.wire import ask

from treadle.sdk.messages import ProviderWaiter
from treadle.worker.agent import ProviderBudget
from treadle.worker.agent.core.conversation import ModelFault, ModelRequest, ModelResponse
from treadle.worker.agent.models.retrying import RetryPolicy, call
from treadle.worker.agent.provider import Gate
from treadle.worker.lines import Asleep, LinesInMemory
from treadle.worker.shared import ValuesInMemory

BUDGET = ProviderBudget(tokens_per_minute=1_500)
NO_TASK: Any = None


class Sleepers(LinesInMemory):
    """Whoever waits sleeps, and knows its time."""

    def __init__(self, happened: list[str]) -> None:
        super().__init__()
        self.happened = happened

    async def state(self, waiter: ProviderWaiter) -> Asleep:
        return Asleep(NO_TASK, 1, 0)

    async def call(self, waiter: ProviderWaiter, asleep: Asleep) -> None:
        self.happened.append("called")


def test_a_sleeper_is_called_after_the_refused_call_and_not_into_the_pause() -> None:
    async def story() -> None:
        happened, values, now_ms = list[str](), ValuesInMemory(), 1_700_000_000_000
        values.lines = Sleepers(happened)

        def clock() -> int:
            return now_ms

        async def sleep(seconds: float) -> None:
            nonlocal now_ms
            now_ms += round(seconds * 1000)

        first, second = (Gate(values, "p/m", BUDGET, clock) for _ in range(2))

        class Asked(Scripted):
            async def respond(self, request: ModelRequest, **options: Any) -> ModelResponse:
                happened.append("asked")
                if not self.calls:
                    assert (await second.reserve(1_200))[0] > 0, "there is room for one of them"
                return await super().respond(request, **options)

        limited = ModelFault(kind="rate_limited", message="slow down", retry_after_s=2)
        model = Asked(limited)
        await call(model, ask(), RetryPolicy(), passage=first, sleep=sleep)
        assert happened == ["asked", "asked", "called"]

    asyncio.run(story())
