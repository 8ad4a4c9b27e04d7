"""A request starts one run and gets its response, whichever gateway takes it and whoever goes.
Method: a real server, engine, worker and gateways; requests over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx2
import pytest
from tests.gateway.stage import SECRET, Stage, gateway, open_stage

from treadle.sdk import UserError, Workflow
from treadle.sdk.client import Http
from treadle.sdk.settings import Settings
from treadle.worker import TaskContext, Worker

Play = Callable[[Callable[[Stage], Awaitable[None]]], None]


def echo() -> Workflow:
    """A workflow whose response is what it was asked, and whose last step comes after it."""
    workflow = Workflow("echo")
    answer = workflow.task("answer")
    said = workflow.respond("said", status=201, headers={"x-kind": "echo"}, after=answer)
    workflow.task("file", after=[said, answer])
    return workflow


def silent() -> Workflow:
    """A workflow without a response."""
    workflow = Workflow("silent")
    workflow.task("answer")
    return workflow


def waits() -> Workflow:
    """A workflow that answers when it is told to."""
    workflow = Workflow("waits")
    go = workflow.wait_for_signal("go")
    workflow.respond("said", headers={"content-type": "text/plain"}, after=go)
    return workflow


@pytest.fixture
def play(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Play a story on a stage with a worker."""
    monkeypatch.setenv("TEST_TOKEN", SECRET)
    worker = Worker()

    @worker.handler("answer")
    async def answer(ctx: TaskContext[object]) -> object:
        if ctx.input == "fail":
            raise ValueError("no answer to that")
        return ctx.input

    @worker.handler("file")
    async def file(ctx: TaskContext[object]) -> str:
        return "filed"

    def play(story: Callable[[Stage], Awaitable[None]]) -> None:
        async def on_stage() -> None:
            async with open_stage(settings, worker) as stage:
                await story(stage)

        asyncio.run(on_stage())

    return play


async def serve(stage: Stage, workflow: Workflow, name: str = "ask", **how: object) -> None:
    await stage.client.triggers.create(name, workflow, Http(**how))  # type: ignore[arg-type]


def test_a_request_gets_the_response_of_its_run_and_the_run_goes_on(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await serve(stage, echo(), path="orders/quote")
        told = await stage.post("/api/orders/quote", {"n": 1})
        assert (told.status_code, told.json()) == (201, {"n": 1})
        assert (told.headers["x-kind"], told.headers["content-type"]) == (
            "echo",
            "application/json",
        )
        run = told.headers["treadle-run-id"]
        document = await stage.ended(run)
        assert (document.status, document.responded) == ("completed", "said")
        assert await stage.client.result(run) == "filed"
        view = await stage.client.get(run)
        assert view.step("said").why == "answers with status 201"
        again = await stage.get(f"/api/orders/quote/runs/{run}")
        assert (again.status_code, again.json(), again.headers["x-kind"]) == (201, {"n": 1}, "echo")

    play(story)


@pytest.mark.slow
def test_a_response_that_begins_a_run_has_the_runs_input_for_its_body(play: Play) -> None:
    workflow = Workflow("at-once")
    said = workflow.respond("said", status=202)
    workflow.task("file", after=said)

    async def story(stage: Stage) -> None:
        await serve(stage, workflow)
        for body in ({"n": 1}, [1, 2], "text", None):
            told = await stage.post("/api/ask", body)
            assert (told.status_code, told.json()) == (202, body)
        run = told.headers["treadle-run-id"]
        assert await stage.client.result(run, timeout_s=10) == "filed"

    play(story)


def test_a_run_without_a_response_answers_with_its_end(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await serve(stage, silent())
        told = await stage.post("/api/ask", [1, 2])
        assert (told.status_code, told.json()) == (200, [1, 2])
        failed = await stage.post("/api/ask", "fail")
        assert failed.status_code == 500
        assert failed.json()["error"] == {"type": "ValueError", "message": "no answer to that"}
        assert failed.json()["step"] == "answer"
        assert failed.json()["run"] == failed.headers["treadle-run-id"]

    play(story)


@pytest.mark.slow
def test_fifty_requests_at_once_get_their_own_responses_from_two_gateways(
    play: Play, settings: Settings
) -> None:
    async def story(stage: Stage) -> None:
        await serve(stage, echo())
        async with gateway(settings) as other:
            urls = ["/api/ask", f"{other}/api/ask"]
            told = await asyncio.gather(
                *(stage.post(urls[n % 2], {"n": n, "who": f"client {n}"}) for n in range(50))
            )
        assert [each.json() for each in told] == [{"n": n, "who": f"client {n}"} for n in range(50)]
        assert len({each.headers["treadle-run-id"] for each in told}) == 50

    play(story)


def test_an_idempotency_key_is_one_run_and_one_response(play: Play, settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await serve(stage, echo())
        async with gateway(settings) as other:
            urls = ["/api/ask", f"{other}/api/ask"]
            told = await asyncio.gather(
                *(stage.post(urls[n % 2], {"n": 1}, idempotency_key="k-1") for n in range(10))
            )
        later = await stage.post("/api/ask", {"n": 1}, idempotency_key="k-1")
        assert len({each.headers["treadle-run-id"] for each in (*told, later)}) == 1
        assert {each.text for each in (*told, later)} == {'{"n":1}'}
        assert len(await stage.client.list()) == 1
        other_input = await stage.post("/api/ask", {"n": 2}, idempotency_key="k-1")
        assert other_input.status_code == 422
        fresh = await stage.post("/api/ask", {"n": 1}, idempotency_key="k-2")
        assert fresh.headers["treadle-run-id"] != later.headers["treadle-run-id"]

    play(story)


def test_after_the_timeout_a_client_is_told_where_to_ask_and_the_run_goes_on(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await serve(stage, waits(), timeout_s=0.2)
        told = await stage.post("/api/ask", 1)
        run = told.headers["treadle-run-id"]
        where = f"/api/ask/runs/{run}"
        assert (told.status_code, told.headers["location"]) == (202, where)
        assert told.json() == {"run": run, "status": "running", "location": where}
        asked = await stage.get(where)
        assert (asked.status_code, asked.json()["status"]) == (202, "running")
        await stage.client.signal(run, "go", "at last")
        await stage.ended(run)
        answered = await stage.get(where)
        assert (answered.status_code, answered.text) == (200, "at last")
        assert answered.headers["content-type"].startswith("text/plain")
        at_once = await stage.post("/api/ask", 1, prefer="respond-async")
        assert at_once.status_code == 202
        assert (await stage.get("/api/ask/runs/unknown")).status_code == 404
        await serve(stage, silent(), "other")
        foreign = (await stage.post("/api/other", 1)).headers["treadle-run-id"]
        assert (await stage.get(f"/api/ask/runs/{foreign}")).status_code == 404

    play(story)


@pytest.mark.parametrize("cancels", [False, True])
def test_a_client_that_goes_away_ends_its_run_only_if_the_trigger_says_so(
    play: Play, cancels: bool
) -> None:
    async def story(stage: Stage) -> None:
        await serve(stage, waits(), cancels=cancels)
        with pytest.raises(httpx2.ReadTimeout):
            await stage.client_of.post("/api/ask", content=b"1", timeout=0.3)
        (view,) = await stage.until("the run", stage.client.list, lambda found: len(found) == 1)
        if cancels:
            ended = await stage.ended(view.id)
            assert ended.failure is not None and "went away" in ended.failure.message
        else:
            await stage.quiet(0.3)
            await stage.client.signal(view.id, "go", "still here")
            assert (await stage.ended(view.id)).status == "completed"

    play(story)


def test_a_gateway_that_stops_tells_those_who_wait_where_to_ask(
    play: Play, settings: Settings
) -> None:
    async def story(stage: Stage) -> None:
        await serve(stage, waits())
        async with gateway(settings) as other:
            asking = asyncio.create_task(stage.post(f"{other}/api/ask", 1))
            await stage.until("the run", stage.client.list, lambda found: len(found) == 1)
        told = await asking
        assert told.status_code == 202
        run = told.json()["run"]
        await stage.client.signal(run, "go", "later")
        await stage.ended(run)
        assert (await stage.get(told.headers["location"])).text == "later"

    play(story)


def test_a_token_is_asked_for_and_a_path_is_served_once(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await serve(stage, silent(), path="a/b", secret="env:TEST_TOKEN")
        assert (await stage.post("/api/a/b", 1)).status_code == 401
        wrong = await stage.post("/api/a/b", 1, authorization="Bearer no")
        assert (wrong.status_code, wrong.headers["www-authenticate"]) == (401, "Bearer")
        told = await stage.post("/api/a/b", 1, authorization=f"Bearer {SECRET}")
        assert (told.status_code, told.json()) == (200, 1)
        assert (await stage.post("/api/nothing", 1)).status_code == 404
        with pytest.raises(UserError, match=r"path /api/a/b is that of trigger 'ask'"):
            await serve(stage, silent(), "other", path="a/b")
        with pytest.raises(UserError, match="cannot be that of a trigger"):
            await serve(stage, silent(), "other", path="/a")
        # The path moves, and both addresses are known at once.
        await stage.client.triggers.create("ask", silent(), Http(path="c"), replace=True)
        assert (await stage.post("/api/a/b", 1)).status_code == 404
        await stage.until("it is served", lambda: stage.post("/api/c", 1), lambda t: t.is_success)

    play(story)


def test_a_body_is_bounded_before_it_is_read(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await serve(stage, silent(), body_bytes_max=10)

        # It announces no length, and does not end.
        url = stage.client_of.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = b"POST /api/ask HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"64\r\n" + b"x" * 100 + b"\r\n")
        assert b" 413 " in await reader.readline()
        writer.close()
        assert (await stage.post("/api/ask", b"x" * 11)).status_code == 413
        assert (await stage.post("/api/ask", b"{")).status_code == 400
        empty = await stage.post("/api/ask")
        assert (empty.status_code, empty.json()) == (200, None)
        assert (await stage.get("/healthz")).json() == {"status": "ok"}
        assert (await stage.get("/nothing")).json()["error"]["type"] == "HTTPError"

    play(story)
