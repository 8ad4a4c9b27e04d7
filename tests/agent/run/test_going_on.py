"""Whatever model, tools and people do: a run that was cut anywhere goes on to the same end.

Hypothesis makes the world; each run is cut after every batch of entries that its journal stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.agent.run.worlds import Script, World, outcome, scripts

from treadle.worker.agent.core.entries import Answered, Settled


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@settings(
    max_examples=20,
    deadline=None,
    # An example is dozens of runs: one that fails is shown as it is, and not made smaller for long.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(scripts)
def test_a_run_cut_after_any_stored_batch_goes_on_to_the_same_end(script: Script) -> None:
    async def go() -> None:
        whole = World(script)
        end = outcome(await whole.run())
        assert whole.asked == whole.answered
        assert len(whole.ran) == len(set(whole.ran))
        for cut in range(1, len(whole.batches) + 1):
            world = World(script, batches=list(whole.batches[:cut]))
            settled = {each.result.id for each in world.stored if isinstance(each, Settled)}
            known = sum(isinstance(each, Answered) for each in world.stored)
            assert outcome(await world.run()) == end, f"cut after batch {cut}"
            assert world.asked == world.answered - known, "a stored answer was asked for again"
            assert not settled.intersection(world.ran), "a settled call ran again"
            assert world.answered == whole.answered

    asyncio.run(go())
