"""An agent loop with a checkpoint: it iterates until the handler says that it is done.

Each iteration is a task of its own: it loads the conversation, takes one turn, saves the
conversation, and continues or completes. Kill the worker whenever you like: the next one goes
on from the checkpoint. ``think`` stands for a call to a language model, so this runs offline.

Try it::

    treadle dev examples/agent_loop.py
    treadle run start guess-number --input 617 --watch
"""

import re
from datetime import timedelta
from typing import Any

from treadle.sdk import Retry, Workflow
from treadle.worker import LoopContext, Worker

workflow = Workflow("guess-number", input=int)
guess = workflow.agent_loop(
    "guess",
    "take-a-turn",
    max_iterations=15,
    max_duration=timedelta(minutes=5),
    loop_delay=timedelta(milliseconds=100),
    timeout=timedelta(seconds=30),
    retry=Retry(max_attempts=3),
)

worker = Worker()


@worker.handler("take-a-turn")
async def take_a_turn(ctx: LoopContext[int | str]) -> Any:
    # The output of ``continue_`` is the next iteration's input; the first one has the run's.
    history = await ctx.load_checkpoint(list[str]) or [f"the number is {ctx.input}"]
    written = ctx.last_checkpoint
    # If this iteration has saved before, its worker died between checkpoint and verdict: the
    # turn is taken, and only the verdict is missing.
    if written is None or written.iteration != ctx.iteration:
        history.append(play(history))
        await ctx.checkpoint(history)
    if history[-1].endswith("is correct"):
        return ctx.complete({"said": history[-1], "turns": len(history) - 1})
    return ctx.continue_(history[-1])


def play(history: list[str]) -> str:
    """Take one turn: ask the model for a guess, and call the tool that judges it."""
    secret, guessed = int(history[0].removeprefix("the number is ")), think(history[1:])
    judgement = "correct" if guessed == secret else "too low" if guessed < secret else "too high"
    return f"{guessed} is {judgement}"


def think(conversation: list[str]) -> int:
    """Stand in for the model: the middle of what the answers so far leave open."""
    low, high = 1, 1000
    for line in conversation:
        if match := re.fullmatch(r"(\d+) is too (low|high)", line):
            number = int(match[1])
            low, high = (number + 1, high) if match[2] == "low" else (low, number - 1)
    return (low + high) // 2


if __name__ == "__main__":
    print(__doc__)
