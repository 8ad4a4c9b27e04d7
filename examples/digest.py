"""Starts that are collected: one digest of what came in, instead of a message for each of it.

    news, news, news ... -> digest (a run with the list of them) -> published

A digest of a channel is written when ten news have come, or three seconds after the first.

Try it::

    treadle dev examples/digest.py
    treadle collect digest --input '{"channel": "weather", "text": "Rain at noon."}'
    treadle collect digest --input '{"channel": "weather", "text": "Sun at four."}'
    treadle collect digest --input '{"channel": "trains", "text": "The 9:14 is late."}'
    treadle run list --workflow digest          # two runs, after three seconds

An agent could write the digest as well: its step is given the same list.
"""

import msgspec

from treadle.sdk import Workflow
from treadle.sdk.collecting import Batch
from treadle.worker import TaskContext, Worker


class News(msgspec.Struct):
    """Input of one start."""

    channel: str
    text: str


workflow = Workflow("digest", input=News, collect=Batch(10, 3, 'input["channel"]'))
write = workflow.task("write-digest")
workflow.task("publish-digest", after=write)

worker = Worker()


@worker.handler("write-digest")
async def write_digest(ctx: TaskContext[list[News]]) -> str:
    lines = [f"- {news.text}" for news in ctx.input]
    return "\n".join([f"{ctx.input[0].channel}, {len(lines)} news", *lines])


@worker.handler("publish-digest")
async def publish_digest(ctx: TaskContext[str]) -> str:
    print(ctx.input)
    return ctx.input
