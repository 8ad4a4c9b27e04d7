"""Passing faults of the model's provider, met by a step that has no retry policy of its own.

A real server, an engine and a worker in this process.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.durable.test_limits import result_of

from treadle.sdk.settings import Settings
from treadle.worker.agent.testing import cut_after, error, error_after, text, turn


@pytest.mark.parametrize(
    "broken",
    [
        error(529),
        turn(text("I beg"), fault=cut_after("content_block_delta")),
        turn(text("I beg"), fault=error_after("content_block_delta")),
    ],
)
def test_a_step_without_a_retry_policy_survives_a_fault_of_the_provider(
    settings: Settings, broken: Any
) -> None:
    step = {"max_iterations": 3}
    result, fake = asyncio.run(result_of(settings, [broken, turn(text("done"))], step))
    assert result == "done"
    assert fake.count == 2
