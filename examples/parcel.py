"""A parcel is watched from later on, for as long as it takes, and newer versions reach the watch.

    watch (agent loop: a look whenever there is news, and once a day)

Try it::

    treadle dev examples/parcel.py
    treadle run start parcel --input '{"number": "JD-104"}' --id parcel-104 --in 10s
    treadle explain parcel-104                              # it begins in 9 s, and no worker waits
    treadle run send parcel-104 --payload '"at customs"'
    treadle run send parcel-104 --payload '"delivered"'
    treadle run result parcel-104

The loop follows its workflow: register one with other bounds, and the next look is under those.
"""

from __future__ import annotations

from datetime import timedelta

import msgspec

from treadle.sdk import Workflow
from treadle.worker import LoopContext, Worker

LOOKS_MAX = 400


class Parcel(msgspec.Struct, frozen=True):
    """What is known of it."""

    number: str
    place: str = "posted"


def parcel(looks_max: int = LOOKS_MAX) -> Workflow[Parcel]:
    """A watch that gives up after so many looks."""
    workflow = Workflow("parcel", input=Parcel, version_policy="latest")
    workflow.agent_loop("watch", max_iterations=looks_max)
    return workflow


workflow = parcel()
worker = Worker()


@worker.handler("watch")
async def watch(ctx: LoopContext[Parcel]) -> object:
    news = await ctx.messages()
    place = news[-1].decode(str) if news else ctx.input.place
    if place == "delivered":
        looks = f"look {ctx.iteration + 1} of at most {ctx.max_iterations}"
        return ctx.complete(f"parcel {ctx.input.number} was delivered, which was {looks}")
    state = Parcel(ctx.input.number, place)
    return ctx.wait(f"parcel {ctx.input.number} is {place}", until=timedelta(days=1), state=state)


if __name__ == "__main__":
    print(__doc__)
