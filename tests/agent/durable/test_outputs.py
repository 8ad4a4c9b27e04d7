"""A worker is killed with -9 while it stores an output that is too long for the model.

The goal, the answer and the judgement are a record each; then the output is kept in two, and its
cut result follows. Whatever is stored by then, the worker
after it has the whole: it reads a line from the middle.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.agent.durable.stand import PATIENCE_S, stand
from tests.agent.durable.test_kill import payer

from treadle.sdk.settings import Settings
from treadle.worker.agent.core.entries import Kept, Settled
from treadle.worker.agent.core.kept import READ
from treadle.worker.agent.stored import checkpoints, read_journal
from treadle.worker.agent.testing import RecordedRequest, Turn, tool_use, turn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]
LINES = 15_000
"""About 190,000 bytes, in two parts."""
LINE = '"line 8000"'


def play(request: RecordedRequest) -> Turn:
    """Look an order up, read on in what was cut, and be done."""
    answers = sum(message["role"] == "assistant" for message in request.messages)
    if answers == 0:
        return turn(tool_use("look_up", {"order": "O-1"}, id="look"))
    if answers == 1:
        cut = request.tool_results["look"]
        assert LINE not in cut and f'{READ} with call_id "look"' in cut
        return turn(tool_use(READ, {"call_id": "look", "offset": 90_000}, id="read"))
    assert LINE in request.tool_results["read"]
    return turn(tool_use("final_output", {"paid": 0}, id="final"))


@pytest.mark.parametrize(
    ("window", "parts"),
    [
        ("worker.record-before=kill@5", [0, 0, 1]),
        ("worker.record-stored=kill@5", [0, 1, 0, 1]),
        ("worker.settle-stored=kill@1", [0, 1]),
    ],
)
def test_a_killed_worker_loses_nothing_of_an_output_that_was_cut(
    settings: Settings, tmp_path: Path, window: str, parts: list[int]
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path, play) as place:
            run = await place.client.start(payer(), "Look up O-1.", id="run")
            doomed = place.worker(window, PAY_LINES=str(LINES))
            assert await place.ended(doomed) == -9
            place.worker(PAY_LINES=str(LINES))
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == {"paid": 0}
            assert not place.fake.failures
            assert place.fake.count == 3
        records = await read_journal("run", "pay", settings)
        entries = [entry for record in records for entry in record.entries]
        assert [entry.part for entry in entries if isinstance(entry, Kept)] == parts
        assert sum(isinstance(entry, Settled) for entry in entries) == 3
        kept = [
            each for each in await checkpoints("run", "pay", settings) if "kept" in each.entries
        ]
        assert [each.kind for each in kept] == ["tool_output"] * len(parts)
        assert all(each.entries == ("kept",) for each in kept)

    asyncio.run(story())
