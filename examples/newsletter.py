"""Runs that start by themselves: at nine on weekdays, and for each message on a subject.

    treadle dev examples/newsletter.py
    treadle trigger create cron mornings newsletter "0 9 * * mon-fri" --input '"all"'
    treadle trigger fire mornings
    treadle trigger create subject joined newsletter 'readers.joined' --lane newsletter
    nats pub readers.joined '"ada"'
    treadle run list --workflow newsletter

One firing is one run and one message is one run, whatever dies. Those of the messages follow one
another: they share a lane.
"""

from treadle.sdk import Workflow
from treadle.worker import TaskContext, Worker

workflow = Workflow("newsletter", input=str)
workflow.task("post", after=workflow.task("write"))

worker = Worker()


@worker.handler("write")
async def write(ctx: TaskContext[str]) -> str:
    return f"news for {ctx.input}"


@worker.handler("post")
async def post(ctx: TaskContext[str]) -> str:
    return f"posted: {ctx.input}"


if __name__ == "__main__":
    print(__doc__)
