"""The server is killed with -9 while an agent's worker stores the result of a tool.

The worker stands still there while the server dies and returns on its store, then it goes on. It
cannot reconcile: a payment made again would show, and one it was not sure of would wait for people.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.agent.durable.stand import PATIENCE_S, Stand, stand
from tests.agent.durable.test_kill import payer, payments, play
from tests.agent.durable.test_overtaken import check_one_line, journal_of

from treadle.sdk import UserError
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.worker.agent.stored import read_journal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]


async def reached(place: Stand, records: int) -> None:
    """Wait until the journal has so many records."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                if len(await read_journal("run", "pay", place.settings)) >= records:
                    return
            except UserError:
                pass  # It has none yet.
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("window", "records"),
    [("worker.record-before=pause:2@5", 4), ("worker.record-stored=pause:2@5", 5)],
)
def test_a_result_is_stored_on_the_server_that_came_back_and_its_tool_does_not_run_again(
    own_server: NatsServer,
    namespace: str,
    tmp_path: Path,
    window: str,
    records: int,
) -> None:
    settings = Settings(url=own_server.url, namespace=namespace)

    async def story() -> None:
        async with stand(settings, tmp_path, play) as place:
            run = await place.client.start(payer(), "Pay order O-0.", id="run")
            place.worker(window)
            await reached(place, records)
            await asyncio.to_thread(own_server.kill)
            own_server.restart()  # It ends with the thread that starts it.
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == {"paid": 201}
            assert [paid["cents"] for paid in payments(place)] == [100, 101]
            assert place.fake.count == 3 and not place.fake.failures
            check_one_line(await journal_of(place, "run"))
            kinds = [event.kind async for event in run.history()]
            assert "task.lost" not in kinds and "step.failed" not in kinds

    asyncio.run(story())
