"""What the living say of themselves: beats on core NATS, for as long as it takes to hear them."""

from __future__ import annotations

import asyncio
from collections.abc import Set

import msgspec

from treadle.sdk.bus.connection import Connection, Message
from treadle.sdk.messages import Beat
from treadle.sdk.presence import BEAT_S
from treadle.sdk.subjects import Subjects

HEARING_S = BEAT_S + 0.3
"""Every living process beats within it, on a machine that is not overloaded."""

_decode = msgspec.json.Decoder(Beat).decode


async def hear(
    connection: Connection, subjects: Subjects, tokens: Set[int], processes: Set[str]
) -> dict[str, Beat]:
    """Return the newest beat of each process that was heard, by incarnation.

    It ends as soon as somebody has said of each token that it holds it, or all the processes have
    been heard.
    """
    heard: dict[str, Beat] = {}
    enough = asyncio.Event()

    def take(message: Message) -> None:
        try:
            beat = _decode(message.data)
        except (ValueError, RecursionError):
            return
        heard[beat.presence.incarnation] = beat
        held = {entry.token for each in heard.values() for entry in each.held}
        if tokens <= held or processes <= heard.keys():
            enough.set()

    subscription = await connection.subscribe(subjects.all_beats, take)
    try:
        async with asyncio.timeout(HEARING_S):
            await enough.wait()
    except TimeoutError:
        pass
    finally:
        await subscription.unsubscribe()
    return {name: beat for name, beat in heard.items() if not beat.leaving}
