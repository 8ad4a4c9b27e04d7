"""Words that come at the very end of a durable run: heard, or said to be unheard, and never lost.

Workers that die, or stand still, between the stored end of a run and its verdict are processes; a
bound that is reached meanwhile needs none.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.agent.durable.stand import PATIENCE_S, Stand, stand
from tests.agent.durable.test_kill import payer
from tests.agent.durable.test_stream import ANSWER, talking

from treadle.sdk import RunFailed, chunks
from treadle.sdk.settings import Settings
from treadle.worker.agent import Budget
from treadle.worker.agent.core.entries import Entry, Heard, Stopped
from treadle.worker.agent.stored import read_journal
from treadle.worker.agent.testing import (
    Gate,
    RecordedRequest,
    Turn,
    stall_after,
    text,
    tool_use,
    turn,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_S)]
STORED = "worker.record-stored=%s@4"
"""The beginning, the answer, the result that was accepted, and then the end."""
VERDICT = "worker.settle-before=%s@1"


def receipts(request: RecordedRequest) -> Turn:
    """Give a receipt for as many words of people as there are."""
    said = str(request.messages).count("More.")
    return turn(tool_use("final_output", {"paid": said}, id=f"final{said}"))


async def entries_of(place: Stand) -> list[Entry]:
    records = await read_journal("run", "pay", place.settings)
    return [entry for record in records for entry in record.entries]


@pytest.mark.parametrize(
    ("window", "fate", "kind"),
    [
        (STORED, "kill", "follow_up"),
        (STORED, "stop", "steer"),
        (VERDICT, "kill", "steer"),
        (VERDICT, "stop", "follow_up"),
    ],
)
def test_words_between_the_stored_end_of_a_run_and_its_verdict_reopen_it(
    settings: Settings, tmp_path: Path, window: str, fate: str, kind: Any
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path, receipts) as place:
            run = await place.client.start(payer(), "Pay.", id="run")
            first = place.worker(window % fate)
            await (place.ended(first) if fate == "kill" else place.stopped(first))
            assert isinstance((await entries_of(place))[-1], Stopped)
            await run.send("pay", "More.", kind=kind, id="late")
            if fate == "kill":
                place.worker()
            else:
                first.send_signal(signal.SIGCONT)
            assert await asyncio.wait_for(run.result(), PATIENCE_S) == {"paid": 1}
            entries = await entries_of(place)
            assert sum(isinstance(entry, Heard) for entry in entries) == 1
            assert place.fake.count == 2 and not place.fake.failures

    asyncio.run(story())


CALL = tool_use("read_order", {"order": "O-1"}, id="c")


@pytest.mark.parametrize(
    ("begin", "last", "on_limit", "told"),
    [
        ([turn(CALL)], text(ANSWER), "wrap_up", "max_steps is 1"),
        ([], CALL, "fail", "max_steps is 1"),
        ([], text(ANSWER), "fail", ""),
    ],
)
def test_words_that_arrive_as_a_bound_is_reached_are_said_to_be_unheard(
    settings: Settings, begin: list[Turn], last: Any, on_limit: Any, told: str
) -> None:
    gate = Gate()
    slow = turn(last, fault=stall_after("content_block_start", gate=gate))

    async def story() -> None:
        options = {"budget": Budget(max_steps=1), "on_limit": on_limit}
        async with talking(settings, [*begin, slow], **options) as (client, fake):
            run = await client.start("orders", "Is it late?", id="r1")
            await asyncio.to_thread(gate.wait_reached, PATIENCE_S)
            await run.send("answer", "And is that usual?", kind="follow_up", id="late")
            gate.open()
            if last is CALL:
                with pytest.raises(RunFailed, match="1 message to it was not heard"):
                    await run.result()
            else:
                # What was accepted stands: there is no turn left that could hear anything.
                assert await run.result() == ANSWER
            stops = [i.chunk async for i in run.stream() if isinstance(i.chunk, chunks.Stopped)]
            assert told in stops[-1].detail and "1 message to it was not heard" in stops[-1].detail
            assert [event.kind async for event in run.history()].count("run.message") == 1
            assert fake.count == len(begin) + 1

    asyncio.run(story())
