"""The smallest workflow: one task.

Try it::

    treadle dev examples/hello.py
    treadle run start hello --input '"Ada"' --watch
    treadle trigger create cron mornings hello "0 9 * * mon-fri" --tz Europe/Berlin --input '"Ada"'
"""

from treadle.sdk import Workflow
from treadle.worker import TaskContext, Worker

workflow = Workflow("hello", input=str)
workflow.task("greet", "greet-by-name")

worker = Worker()


@worker.handler("greet-by-name")
async def greet(ctx: TaskContext[str]) -> str:
    return f"Hello, {ctx.input}!"


if __name__ == "__main__":
    print(__doc__)
