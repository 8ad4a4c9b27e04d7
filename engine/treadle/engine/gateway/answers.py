"""What a run answers to the request that has started it: a function of the run as it stands.

A run answers once: with its first respond step, or with its end. Nobody stores the response, it
is read off the document and the outputs, so every gateway gives the same one, now and later.
"""

from __future__ import annotations

from starlette.responses import Response

from treadle.engine.gateway import replies
from treadle.sdk.client.deciding import input_of
from treadle.sdk.client.planned import graph_of
from treadle.sdk.client.result import output_of
from treadle.sdk.client.store import Store
from treadle.sdk.client.waiter import Deadline, Waiter
from treadle.sdk.definition import RespondStep
from treadle.sdk.run import RunDocument


async def answer(store: Store, run: str, timeout_s: float) -> Response | None:
    """Wait for the response of a run; None if there is none in the time given."""
    deadline = Deadline(timeout_s)
    async with Waiter(store.js.connection, store.subjects.run_document(run)) as waiter:
        while True:
            document = await store.document(run)
            if document is not None and (given := await answer_of(store, document)):
                return given
            if deadline.remaining_s() <= 0:
                return None
            await waiter.wait(deadline.remaining_s())


async def answer_of(store: Store, document: RunDocument) -> Response | None:
    """Return the response of a run; None if it has not given it yet."""
    run = document.run
    if document.responded:
        graph = await graph_of(store, document)
        step = graph.steps.get(document.responded) if graph else None
        if graph is not None and isinstance(step, RespondStep):
            body = await input_of(store, document, graph, step)
            return replies.raw(step.status, bytes(body), run, step.headers)
    if document.status == "completed":
        return replies.raw(200, bytes(await output_of(store, document)), run, {})
    if not document.is_terminal:
        return None
    failure = document.failure
    error = {
        "type": failure.type if failure else document.status,
        "message": failure.message if failure else "",
    }
    told = {"error": error, "run": run, "status": document.status, "step": document.failed_step}
    return replies.json(500, told, run)
