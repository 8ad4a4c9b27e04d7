"""Workflows that start workflows: each chapter of a book is written by a run of its own.

    outline -> first chapter  (a run of "chapter", started again if it fails)
            -> last chapter   (another one, side by side)
            -> announce       (detached: nobody waits for it)
    both chapters -> bind

Cancel the book, and its chapters are cancelled with it.

Try it::

    treadle dev examples/sub_workflow.py
    treadle run start book --input '"The Loom"' --id loom
    treadle run result loom
    treadle run children loom
"""

from datetime import timedelta
from typing import Any

from treadle.sdk import Retry, Workflow
from treadle.worker import TaskContext, Worker

chapter = Workflow("chapter", input=dict[str, Any])
text = chapter.task("write-chapter")
chapter.task("proofread", after=text)

announcement = Workflow("announcement")
announcement.task("announce")

book = Workflow("book", input=str)
outline = book.task("outline")
again = Retry(max_attempts=2)
first = book.sub_workflow("first", chapter, after=outline, retry=again, timeout=timedelta(hours=1))
last = book.sub_workflow("last", chapter, after=outline, retry=again, timeout=timedelta(hours=1))
book.sub_workflow("announcement", after=outline, detached=True)
book.task("bind", after=[first, last])

worker = Worker()


@worker.handler("outline")
async def make_outline(ctx: TaskContext[str]) -> dict[str, Any]:
    return {"title": ctx.input, "words": 3}


@worker.handler("write-chapter")
async def write_chapter(ctx: TaskContext[dict[str, Any]]) -> str:
    return " ".join([str(ctx.input["title"])] * int(ctx.input["words"]))


@worker.handler("proofread")
async def proofread(ctx: TaskContext[str]) -> str:
    return f"{ctx.input}."


@worker.handler("announce")
async def announce(ctx: TaskContext[dict[str, Any]]) -> str:
    return f"{ctx.input['title']} is on its way"


@worker.handler("bind")
async def bind(ctx: TaskContext[dict[str, str]]) -> str:
    return f"{ctx.input['first']} {ctx.input['last']}"


if __name__ == "__main__":
    print(__doc__)
