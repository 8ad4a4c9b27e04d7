"""Fan-out and fan-in by edges: three steps read one text at the same time, a fourth joins them.

           ┌─> words ──────┐
    fetch ─┼─> longest ────┼─> summary
           └─> sentences ──┘

Try it::

    treadle dev examples/fan_out.py
    treadle run start text-statistics --input '"A treadle turns a loom. It never hurries."' --watch
"""

import re

import msgspec

from treadle.sdk import Workflow
from treadle.worker import SyncTaskContext, TaskContext, Worker


class Statistics(msgspec.Struct, frozen=True):
    """Outputs of the steps that ``summary`` comes after: one field for each, by step id."""

    words: int
    longest: str
    sentences: int


workflow = Workflow("text-statistics", input=str)
fetch = workflow.task("fetch", "fetch-text")
words = workflow.task("words", "count-words", after=[fetch])
longest = workflow.task("longest", "find-longest", after=[fetch])
sentences = workflow.task("sentences", "count-sentences", after=[fetch])
summary = workflow.task("summary", "summarise", after=[words, longest, sentences])

worker = Worker()


@worker.handler("fetch-text")
async def fetch_text(ctx: TaskContext[str]) -> str:
    return " ".join(ctx.input.split())


@worker.handler("count-words")
async def count_words(ctx: TaskContext[str]) -> int:
    return len(re.findall(r"\w+", ctx.input))


@worker.handler("find-longest")
async def find_longest(ctx: TaskContext[str]) -> str:
    return max(re.findall(r"\w+", ctx.input), key=len, default="")


@worker.handler("count-sentences")
def count_sentences(ctx: SyncTaskContext[str]) -> int:  # A plain function runs in a thread.
    return len(re.findall(r"[.!?]+", ctx.input))


@worker.handler("summarise")
async def summarise(ctx: TaskContext[Statistics]) -> str:
    found = ctx.input
    return f"{found.words} words in {found.sentences} sentences, the longest is {found.longest!r}"


if __name__ == "__main__":
    print(__doc__)
