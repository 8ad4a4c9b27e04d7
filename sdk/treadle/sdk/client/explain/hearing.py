"""What the living say of themselves: beats on core NATS, for as long as it takes to hear them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set

import msgspec

from treadle.sdk.bus.connection import Connection, Message
from treadle.sdk.client.living import UNRECORDED
from treadle.sdk.messages import Beat, WorkerPresence
from treadle.sdk.presence import BEATS_LOST_S
from treadle.sdk.subjects import Subjects

SILENT_S = BEATS_LOST_S
"""Who is not heard for so long is taken for dead, as the engines take it."""

_decode = msgspec.json.Decoder(Beat).decode


class Heard(msgspec.Struct, frozen=True):
    """What was heard, and who was not."""

    beats: dict[str, Beat] = {}
    """The newest of each process, by incarnation; of those that are leaving, none."""
    silent: tuple[WorkerPresence, ...] = ()
    """Processes that gave no sign of life while one listened for as long as they may be silent."""


async def hear(
    connection: Connection,
    subjects: Subjects,
    tokens: Set[int],
    workers: Sequence[WorkerPresence],
    engines: Sequence[WorkerPresence],
) -> Heard:
    """Listen to the processes that are recorded.

    It ends as soon as an engine has been heard, and either all the workers have, or of each token
    that one of them holds it: within half a second, unless somebody is silent.
    """
    heard: dict[str, Beat] = {}
    enough = asyncio.Event()
    awaited = {each.incarnation for each in workers} - {UNRECORDED}
    ruling = {each.incarnation for each in engines} - {UNRECORDED}

    def is_enough() -> bool:
        held = {entry.token for each in heard.values() for entry in each.held}
        has_workers = awaited <= heard.keys() or (bool(tokens) and tokens <= held)
        return has_workers and (not ruling or not ruling.isdisjoint(heard))

    def take(message: Message) -> None:
        try:
            beat = _decode(message.data)
        except (ValueError, RecursionError):
            return
        heard[beat.presence.incarnation] = beat
        if is_enough():
            enough.set()

    if is_enough():
        return Heard()
    silent: tuple[WorkerPresence, ...] = ()
    subscription = await connection.subscribe(subjects.all_beats, take)
    try:
        async with asyncio.timeout(SILENT_S):
            await enough.wait()
    except TimeoutError:
        missing = (awaited | ruling) - heard.keys()
        silent = tuple(each for each in (*workers, *engines) if each.incarnation in missing)
    finally:
        await subscription.unsubscribe()
    return Heard({name: beat for name, beat in heard.items() if not beat.leaving}, silent)
