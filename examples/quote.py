"""A price over HTTP: a request starts a run, a step of it answers, and the run goes on after that.

    price ──> answer (the response) ──> file

Try it::

    treadle dev examples/quote.py --http-port 8099
    treadle trigger create http quote quote
    curl --json '{"looms": 2}' http://127.0.0.1:8099/api/quote
"""

from typing import Any

from treadle.sdk import Workflow
from treadle.worker import TaskContext, Worker

LOOM_EUR = 450

workflow = Workflow("quote", input=dict[str, int])
price = workflow.task("price")
answer = workflow.respond("answer", headers={"cache-control": "no-store"}, after=price)
workflow.task("file", "file-quote", after=[answer, price])

worker = Worker()


@worker.handler("price")
async def priced(ctx: TaskContext[dict[str, int]]) -> dict[str, int]:
    looms = ctx.input["looms"]
    return {"looms": looms, "total_eur": LOOM_EUR * looms}


@worker.handler("file-quote")
async def filed(ctx: TaskContext[dict[str, Any]]) -> str:
    quote = ctx.input["price"]
    return f"filed a quote of {quote['total_eur']} EUR"
