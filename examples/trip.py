"""A trip that is booked as a whole or not at all: a quorum, compensation, an event that cancels.

    rail --+
    road --+- (two of three) -> seat (unseat) -> room (unroom) -+-> remind -> thank
    air ---+                                                    +- (failed) -> apologise

Long trips go by rail, and at the station there is no room, so a handler takes that failure. An
account plans one trip at a time (``singleton``). The event ``trip.cancelled`` ends it, and what was
booked is undone, the newest first.

Try it::

    treadle dev examples/trip.py
    treadle run start trip --input '{"account": 7, "nights": 2, "remind_s": 5}' --id trip-1
    treadle run result trip-1
    treadle run start trip --input '{"account": 7, "nights": 2, "remind_s": 3600}' --id trip-2
    treadle event publish trip.cancelled --payload '{"account": 7}'
    treadle run timeline trip-2
"""

from typing import Any

import msgspec

from treadle.sdk import NonRetryable, Workflow
from treadle.worker import TaskContext, Worker


class Trip(msgspec.Struct, frozen=True):
    """What an account asks for."""

    account: int
    nights: int
    remind_s: float = 0


workflow = Workflow(
    "trip",
    input=Trip,
    singleton="skip",
    singleton_key='input["account"]',
    cancel_on={"trip.cancelled": 'event["account"] == input["account"]'},
)
quotes = [workflow.task(way, "quote") for way in ("rail", "road", "air")]
seat = workflow.task("seat", after=quotes, quorum=2, compensate="unseat")
workflow.task("unseat", "undo")
room = workflow.task("room", after=seat, compensate="unroom", on_failure="apologise")
workflow.task("unroom", "undo")
workflow.task("apologise")
remind = workflow.sleep("remind", expression='input["remind_s"]', after=room)
workflow.task("thank", after=[seat, room, remind])

worker = Worker()


@worker.handler("quote")
async def quote(ctx: TaskContext[Trip]) -> int:
    if ctx.step == "air":
        raise NonRetryable("fog")
    return 90 if ctx.step == "rail" else 40 * ctx.input.nights


@worker.handler("seat")
async def seat_(ctx: TaskContext[dict[str, int | None]]) -> str:
    """Take the cheapest; a way of which nothing has been heard yet is null."""
    offers = {way: price for way, price in ctx.input.items() if price is not None}
    return f"a seat by {min(offers, key=offers.__getitem__)}"


@worker.handler("room")
async def room_(ctx: TaskContext[str]) -> str:
    if ctx.input.endswith("rail"):
        raise NonRetryable("no room at the station")
    return f"a room, with {ctx.input}"


@worker.handler("undo")
async def undo(ctx: TaskContext[Any]) -> str:
    return f"gave back {ctx.input}"


@worker.handler("apologise")
async def apologise(ctx: TaskContext[Any]) -> str:
    return "sorry"


@worker.handler("thank")
async def thank(ctx: TaskContext[dict[str, Any]]) -> str:
    return f"have a good trip: {ctx.input['room']}"


if __name__ == "__main__":
    print(__doc__)
