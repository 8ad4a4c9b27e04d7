"""A map: one handler for every paragraph of a text, four at a time, results in order.

    split ──> translate each paragraph ──> join

A paragraph fails in its first attempt and is tried again; the others are not done twice. One that
cannot be translated is left as it is.

Try it::

    treadle dev examples/translate.py
    treadle run start translation --input '"Good morning.\\n\\nThe loom turns.\\n\\n???"' --watch
"""

from __future__ import annotations

from treadle.sdk import NonRetryable, Retry, Workflow
from treadle.sdk.mapped import Mapped
from treadle.worker import TaskContext, Worker

WORDS = {"good": "guten", "morning": "Morgen", "the": "der", "loom": "Webstuhl", "turns": "läuft"}


workflow = Workflow("translation", input=str)
split = workflow.task("split")
translated = workflow.map(
    "translate",
    after=split,
    max_parallel=4,
    retry=Retry(max_attempts=3, delay_s=0.2),
    tolerated_failures=10,
)
workflow.task("join", after=translated)

worker = Worker()


@worker.handler("split")
async def split_text(ctx: TaskContext[str]) -> list[str]:
    return ctx.input.split("\n\n")


@worker.handler("translate")
async def translate(ctx: TaskContext[str]) -> str:
    if ctx.index == 0 and ctx.attempt == 1:
        raise ConnectionError("the dictionary did not answer")
    words = [WORDS.get(word.strip(".").lower()) for word in ctx.input.split()]
    if None in words:
        raise NonRetryable(f"paragraph {ctx.index} has a word that is in no dictionary")
    return " ".join(filter(None, words)) + "."


@worker.handler("join")
async def join(ctx: TaskContext[Mapped[str]]) -> str:
    missing = [failure.index for failure in ctx.input.failures]
    text = "\n\n".join(result or "(not translated)" for result in ctx.input.results)
    return f"{text}\n\n{len(missing)} left out"


if __name__ == "__main__":
    print(__doc__)
